"""What ServingSLO reads of a container, and what a real shell and argparse make of it.

The oracle is a shell with a program `vllm` that writes down its arguments, Kubernetes' rule for
$(NAME), and argparse with every flag that vLLM publishes.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from servingslo.adapters.kubernetes.pods.config_maps import NoConfigMaps, started_with
from servingslo.adapters.kubernetes.pods.launches import read_launch
from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.runtimes.catalogue import profile

VLLM = profile("vllm")
KNOWN = {"N": "48", "ARGS": "--max-num-seqs 48 --max-model-len 512", "EMPTY": "", "M": "org/m"}
# Set in the container by what is not read.
SECRET = {"SECRET": "48", "SECRET_ARGS": "--max-num-seqs 48"}
CONTRACT = Path(__file__).parents[1] / "contracts" / "vllm.json"
_STUB = """#!/bin/sh
for word in "$@"; do printf '%s\\037' "$word" >> "$OUT"; done
printf '\\036' >> "$OUT"
exit "$CODE"
"""
_PROGRAMS = ("vllm", "numactl", "tini")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A container's command and args, with variables.

    literal: nothing in it is unknown before it runs, so that its limit has to be read.
    """

    command: tuple[str, ...]
    args: tuple[str, ...] = ()
    known: dict[str, str] = field(default_factory=lambda: dict(KNOWN))
    secret: dict[str, str] = field(default_factory=lambda: dict(SECRET))
    literal: bool = False

    def spec(self, image: str = "vllm/vllm-openai:v0.11.0") -> dict[str, object]:
        """The pod's spec."""
        reference = {"secretKeyRef": {"name": "s", "key": "k"}}
        env = [{"name": name, "value": value} for name, value in self.known.items()]
        env += [{"name": name, "valueFrom": reference} for name in self.secret]
        engine = {
            "name": "engine",
            "image": image,
            "command": list(self.command),
            "args": list(self.args),
            "env": env,
            "resources": {"limits": {"nvidia.com/gpu": 1}},
        }
        return {"containers": [engine]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What ServingSLO reads of a container."""

    seqs: int | None
    tokens: int | None
    servers: int | None
    chunked: bool | None
    told: str


def read(case: Case, runtime: str = "vllm") -> Read:
    """As the operator reads the pod, without ConfigMaps."""
    known = profile(runtime)
    metadata = {"namespace": "n", "name": "p", "uid": "u"}
    (container,) = pod_record({"metadata": metadata, "spec": case.spec()}, None).containers
    line = asyncio.run(
        started_with(container, "n", NoConfigMaps(), None, has_file=bool(known.launch.config))
    )
    found = read_launch(container, line, known)
    limits, launch = found.arguments, found.launch
    assert limits is not None
    assert launch is not None
    return Read(
        seqs=limits.max_num_seqs,
        tokens=limits.max_num_batched_tokens,
        servers=launch.api_server_count,
        chunked=launch.chunked_prefill,
        told=launch.unread,
    )


class Shell:
    """A real shell that runs a container's command in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        programs = directory / "bin"
        programs.mkdir()
        for name in _PROGRAMS:
            stub = _STUB if name == "vllm" else _passing_on(name)
            (programs / name).write_text(stub, encoding="utf-8")
            (programs / name).chmod(0o755)
        for name in ("sh", "bash", "env", "nice", "cat", "echo", "true", "false", "xargs"):
            (programs / name).symlink_to(str(shutil.which(name)))
        self._programs = programs

    def started(self, case: Case, **more: str) -> list[list[str]]:
        """The arguments of each engine that it starts, whether the first one lives or dies.

        more: variables that the pod does not say.
        """
        found = []
        for code in ("0", "1"):
            out = self._directory / "out"
            out.write_text("", encoding="utf-8")
            subprocess.run(
                [*case.command, *case.args],
                env={
                    **case.known,
                    **case.secret,
                    **more,
                    "PATH": str(self._programs),
                    "OUT": str(out),
                    "CODE": code,
                    "HOME": str(self._directory),
                },
                cwd=self._directory,
                capture_output=True,
                check=False,
                timeout=20,
                stdin=subprocess.DEVNULL,
            )
            lines = out.read_text(encoding="utf-8").split("\036")[:-1]
            found += [line.split("\037")[:-1] for line in lines]
        return found


def _passing_on(name: str) -> str:
    """A program in front of another: options, then a command."""
    return f'#!/bin/sh\n# {name}\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\nexec "$@"\n'


class RefusedError(Exception):
    """argparse does not take the words: the engine does not start."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RefusedError(message)


def parser() -> argparse.ArgumentParser:
    """A parser with vLLM's flags; the limits are numbers."""
    flags = json.loads(CONTRACT.read_text(encoding="utf-8"))["flags"]
    found = _Parser(add_help=False)
    found.add_argument("words", nargs="*")
    for flag in flags:
        if flag in {"--max-num-seqs", "--max-num-batched-tokens"}:
            found.add_argument(flag, type=int)
        else:
            found.add_argument(flag, nargs="?", const="", action="append")
    return found


_PARSER = parser()


def limit(words: Sequence[str], name: str = "max_num_seqs") -> int | str | None:
    """A limit as vLLM's parser takes it; None where it is not given, 'refused' where it refuses."""
    spelt = []
    for word in words:
        flag, equals, value = word.partition("=")
        spelt.append((flag.replace("_", "-") if flag.startswith("--") else flag) + equals + value)
    try:
        found: int | None = getattr(_PARSER.parse_known_args(spelt)[0], name)
    except RefusedError:
        return "refused"
    return found


def as_kubernetes(case: Case) -> list[str]:
    """The words that the container's program gets, by Kubernetes' rule for $(NAME) and $$.

    Source: kubernetes/third_party/forked/golang/expansion/expand.go.
    """
    values: dict[str, str] = {}
    for name, value in case.known.items():
        values[name] = _filled_in(value, values)
    return [_filled_in(word, values | case.secret) for word in (*case.command, *case.args)]


def _filled_in(text: str, values: dict[str, str]) -> str:
    filled, at = "", 0
    while at < len(text):
        end = text.find(")", at)
        if text.startswith("$$", at):
            filled, at = filled + "$", at + 2
        elif text.startswith("$(", at) and end > 0:
            name = text[at + 2 : end]
            filled += values.get(name, text[at : end + 1])
            at = end + 1
        else:
            filled, at = filled + text[at], at + 1
    return filled


def verdict(seen: Read, started: Sequence[Sequence[str]]) -> str:
    """What is read beside what is started.

    'read': the limit of every engine; 'told'; 'absent': none has one; 'refused': none starts;
    'wrong' where another limit was read, or one was missed in silence.
    """
    limits = {limit(words) for words in started} - {"refused"}
    if not limits:
        return "refused"
    if seen.seqs is not None:
        return "read" if limits == {seen.seqs} else "wrong"
    if seen.told:
        return "told"
    return "absent" if limits == {None} else "wrong"
