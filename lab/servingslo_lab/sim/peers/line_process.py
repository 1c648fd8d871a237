"""A peer's Go code as a process that answers each line with one line, both JSON objects.

The first line is the setting and has no answer. The program is built on first use, into the user's
cache; its go.mod pins the peer's version.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from servingslo.errors import InvalidInputError, ServingSLOError

PROGRAMS = Path(__file__).parent / "programs"
_SOURCES = ("go.mod", "go.sum", "main.go")
_BUILD_TIMEOUT_SECONDS = 1800.0
_END_TIMEOUT_SECONDS = 5.0
_KEY_LENGTH = 12


class LineProcess:
    """A running program; its setting is sent at once."""

    def __init__(self, command: Sequence[str], setting: Mapping[str, object]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._ended = weakref.finalize(self, _end, self._process)
        self._send(setting)

    def answer(self, observation: Mapping[str, object]) -> dict[str, Any]:
        """The program's answer.

        Raises: ServingSLOError with what it said if it ended, or with a line that is no object.
        """
        self._send(observation)
        return decoded(self._line())

    def close(self) -> None:
        """End the program."""
        self._ended()

    def _send(self, document: Mapping[str, object]) -> None:
        try:
            print(encoded(document), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._failure() from None

    def _line(self) -> str:
        for line in self._process.stdout or ():
            return line
        raise self._failure()

    def _failure(self) -> ServingSLOError:
        said = self._process.stderr.read() if self._process.stderr is not None else ""
        return ServingSLOError(f"{self._process.args!r} ended: {said.strip() or 'without a word'}")


Lines = Callable[[dict[str, object]], LineProcess]


def started(program: str, setting: Mapping[str, object]) -> LineProcess:
    """A peer's program, with this setting."""
    return LineProcess([str(built(program))], setting)


def _end(process: "subprocess.Popen[str]") -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    try:
        process.wait(_END_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def encoded(document: Mapping[str, object]) -> str:
    """One line, without its end. Raises: ValueError for a number that JSON does not have."""
    return json.dumps(document, allow_nan=False)


def decoded(line: str) -> dict[str, Any]:
    """The object of one line. Raises: ServingSLOError if it is none."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ServingSLOError(f"a peer answered {line.strip()!r}, which is no JSON") from error
    if not isinstance(found, dict):
        raise ServingSLOError(f"a peer answered {line.strip()!r}, which is no JSON object")
    return found


def identity(name: str) -> str:
    """A digest of the program's sources, its pins included."""
    digest = hashlib.sha256()
    for source in _SOURCES:
        digest.update((PROGRAMS / name / source).read_bytes())
    return digest.hexdigest()[:_KEY_LENGTH]


def program_path(name: str) -> Path:
    """Where the built program is kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    return root / "servingslo" / "peers" / f"{name}-{identity(name)}" / name


@cache
def built(name: str) -> Path:
    """The program, built if it is not there.

    Raises: InvalidInputError without Go, ServingSLOError with the compiler's last lines.
    """
    target = program_path(name)
    if target.exists():
        return target
    go = shutil.which("go")
    if go is None:
        raise InvalidInputError("policy", f"real:{name}", "a machine with Go 1.26 on its PATH")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may build at once: each into its own folder, the last one stays.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        output = Path(scratch) / name
        finished = subprocess.run(
            [go, "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", str(output), "."],
            cwd=PROGRAMS / name,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_SECONDS,
            check=False,
        )
        if finished.returncode != 0:
            said = finished.stderr.strip().splitlines()[-1:]
            raise ServingSLOError(f"real:{name}: go build failed: {' '.join(said)}")
        output.replace(target)
    return target
