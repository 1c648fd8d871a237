"""`python -m servingslo_lab.rig.image.build FOLDER`: the Dockerfile's image without a builder.

Every instruction of the Dockerfile is carried out here, in a root folder and its own namespaces;
unknown ones are refused. FOLDER/root is then the image's root, FOLDER/image.json its settings.
No registry of images is needed, nor root: see `base` for where the base image comes from.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from servingslo_lab.errors import RigError
from servingslo_lab.rig.image.base import Base, make_base
from servingslo_lab.rig.image.container import Container, Mount
from servingslo_lab.rig.image.dockerfile import (
    Instruction,
    Stage,
    expanded,
    ignore_patterns,
    ignored,
    pairs,
    stages,
)
from servingslo_lab.rig.programs.commands import without_addresses

_CONTEXT = Path(__file__).parents[4]
_STEP_SECONDS = 1800.0
# A builder lends the steps its own network: names, and how this machine reaches package indexes.
_NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf")
_NETWORK_VARIABLES = (
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL",
    "PIP_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_TRUSTED_HOST", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE",
)  # fmt: skip
_CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image in a folder.

    user: numbers of user and group. python: of the base, which may be another than its tag says.
    """

    root: Path
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: dict[str, str]
    user: tuple[int, int]
    working_directory: str
    labels: dict[str, str]
    ports: tuple[str, ...]
    reference: str
    python: str


@dataclass(slots=True, kw_only=True)
class _State:
    root: Path
    base: Base
    environment: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    ports: list[str] = field(default_factory=list)
    user: tuple[int, int] = (0, 0)
    working_directory: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ("python3",)

    def set(self, word: str, text: str) -> None:
        """Carry out an instruction that changes settings alone."""
        match word:
            case "ENV":
                self.environment |= pairs(text)
            case "LABEL":
                self.labels |= pairs(text)
            case "WORKDIR":
                self.working_directory = str(PurePosixPath(self.working_directory) / text)
                self.place(".").mkdir(parents=True, exist_ok=True)
            case "USER":
                user, _, group = text.partition(":")
                self.user = int(user), int(group or 0)
            case "EXPOSE":
                self.ports += text.split()
            case "ENTRYPOINT":
                self.entrypoint, self.command = tuple(json.loads(text)), ()
            case "CMD":
                self.command = tuple(json.loads(text))
            case _:
                raise RigError(f"{word}: not known here")

    def variables(self) -> dict[str, str]:
        """What a text of the Dockerfile may name."""
        return {**self.arguments, **self.environment}

    def place(self, path: str) -> Path:
        """A path of the image in its folder."""
        return self.root / str(PurePosixPath(self.working_directory) / path).lstrip("/")


def build(
    folder: Path, *, context: Path = _CONTEXT, arguments: dict[str, str] | None = None
) -> Image:
    """Build the image of this context's Dockerfile in a new or empty folder.

    arguments: instead of the defaults of ARG, as by --build-arg.
    Raises: RigError for an unknown instruction, and with the output of a step that fails.
    """
    builder = _Builder(folder=folder.resolve(), context=context, given=dict(arguments or {}))
    text = (context / "Dockerfile").read_text(encoding="utf-8")
    return builder.build(stages(text))


def load(folder: Path) -> Image:
    """The image that was built in this folder."""
    said = json.loads((folder / "image.json").read_text(encoding="utf-8"))
    for name in ("entrypoint", "command", "user", "ports"):
        said[name] = tuple(said[name])
    return Image(root=folder.resolve() / "root", **said)


class _Builder:
    """The stages in their order; the last one is the image."""

    def __init__(self, *, folder: Path, context: Path, given: dict[str, str]) -> None:
        self._folder = folder
        self._context = context
        self._given = given
        self._bases: dict[str, tuple[Base, Path]] = {}
        self._stages: dict[str, _State] = {}

    def build(self, parsed: Sequence[Stage]) -> Image:
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, stage in enumerate(parsed):
            name = stage.name or str(number)
            last = number == len(parsed) - 1
            root = self._folder / ("root" if last else f"stage-{name}")
            base, pristine = self._base(stage.base)
            _say(f"FROM {stage.base}")
            shutil.copytree(pristine, root, symlinks=True)
            state = _State(root=root, base=base, environment=dict(base.environment))
            self._stages[name] = state
            for instruction in stage.instructions:
                _say(f"{instruction.word} {instruction.text}"[:100])
                self._carry_out(instruction, state)
        for folder in (*self._folder.glob("stage-*"), *self._folder.glob("base-*")):
            shutil.rmtree(folder)
        return self._finish(state)

    def _base(self, reference: str) -> tuple[Base, Path]:
        if reference not in self._bases:
            root = self._folder / f"base-{len(self._bases)}"
            base = make_base(reference, root)
            if not reference.startswith(f"python:{base.python}-"):
                _say(f"{reference}: here with Python {base.python} of this machine")
            self._bases[reference] = base, root
        return self._bases[reference]

    def _carry_out(self, instruction: Instruction, state: _State) -> None:
        text = expanded(instruction.text, state.variables())
        match instruction.word:
            case "RUN":
                self._run(instruction.text, state)
            case "COPY":
                self._copy(text, state)
            case "ARG":
                declared = pairs(text)
                given = {name: self._given[name] for name in declared if name in self._given}
                state.arguments |= declared | given
            case word:
                state.set(word, text)

    def _run(self, text: str, state: _State) -> None:
        lent = {name: os.environ[name] for name in _NETWORK_VARIABLES if name in os.environ}
        files = (*_NETWORK_FILES, *(lent[name] for name in _CERTIFICATES if name in lent))
        there = [name for name in dict.fromkeys(files) if Path(name).is_file()]
        container = Container(
            root=state.root,
            command=("/bin/sh", "-c", text),
            environment={"HOME": "/root", **lent, **state.variables()},
            user=state.user,
            working_directory=state.working_directory,
            mounts=[Mount(target=name, source=Path(name)) for name in there],
        )
        container.make_mount_points()
        done = subprocess.run(
            container.start_command(),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_STEP_SECONDS,
        )
        if done.returncode != 0:
            said = without_addresses(f"{done.stdout}\n{done.stderr}")
            raise RigError(f"RUN {text}: ended with status {done.returncode}\n{said}")

    def _copy(self, text: str, state: _State) -> None:
        words = shlex.split(text)
        source_root, patterns = self._context, ignore_patterns(self._context)
        if words[0].startswith("--from="):
            source_root, patterns = self._stages[words.pop(0).partition("=")[2]].root, []
        *names, target = words
        for name in names:
            source = source_root / name.lstrip("/").removeprefix("./")
            place = state.place(target)
            if source.is_dir():
                _copy_tree(source, place, source_root, patterns)
                continue
            if target.endswith("/"):
                place = place / source.name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, place)

    def _finish(self, state: _State) -> Image:
        said = {
            "entrypoint": state.entrypoint,
            "command": state.command,
            "environment": state.environment,
            "user": state.user,
            "working_directory": state.working_directory,
            "labels": state.labels,
            "ports": state.ports,
            "reference": state.base.reference,
            "python": state.base.python,
        }
        text = json.dumps(said, indent=2) + "\n"
        (self._folder / "image.json").write_text(text, encoding="utf-8")
        return load(self._folder)


def _copy_tree(source: Path, place: Path, root: Path, patterns: Sequence[str]) -> None:
    """What a folder holds, without what is ignored."""

    def left_out(folder: str, names: list[str]) -> list[str]:
        inside = PurePosixPath(Path(folder).relative_to(root))
        return [name for name in names if ignored(inside / name, patterns)]

    shutil.copytree(source, place, symlinks=True, ignore=left_out, dirs_exist_ok=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def main() -> int:
    """Build into the folder of the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="The Dockerfile's image in a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    arguments = dict(one.partition("=")[::2] for one in given.build_arg)
    try:
        image = build(given.folder, arguments=arguments)
    except RigError as error:
        _say(f"error: {error}")
        return 1
    _say(f"{image.root}: {shlex.join((*image.entrypoint, *image.command))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
