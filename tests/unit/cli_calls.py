"""The `servingslo` command called in this process, and the inputs that its tests share."""

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from servingslo.cli.main import main

MANIFEST = """\
apiVersion: servingslo.dev/v1beta1
kind: ServingSLO
metadata: {name: llama, namespace: inference}
spec:
  targetRef: {kind: Deployment, name: llama}
  objectives:
    - {metric: ttft, percentile: 99, threshold: 1s}
    - {metric: tpot, percentile: 95, threshold: 50ms}
  replicas: {max: 8}
"""


@dataclass(frozen=True)
class Called:
    """What a call gave. line: of standard error, the error alone."""

    exit_code: int
    out: str
    err: str

    def refuses(self, *words: str) -> bool:
        """Whether it ended as on bad input, and said all of this on one line."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return self.exit_code == 2 and len(lines) == 1 and all(word in lines[0] for word in words)


class CLI:
    """Calls the command with arguments, and with standard input where it is given."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str | Path, stdin: str = "") -> Called:
        """What a call gives."""
        self._monkeypatch.setattr(sys, "argv", ["servingslo", *map(str, arguments)])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        self._capsys.readouterr()
        exit_code = 0
        try:
            main()
        except SystemExit as end:
            exit_code = end.code if isinstance(end.code, int) else 0
        captured = self._capsys.readouterr()
        return Called(exit_code, captured.out, captured.err)


def with_flag(arguments: Sequence[str], flag: str, value: str | None) -> list[str]:
    """The arguments with one flag set to another value, or left out."""
    kept = list(arguments)
    if flag in kept:
        place = kept.index(flag)
        del kept[place : place + 2]
    return kept if value is None else [*kept, flag, value]
