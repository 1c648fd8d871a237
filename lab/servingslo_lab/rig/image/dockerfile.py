"""A Dockerfile as stages of instructions, and what its .dockerignore leaves out."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from servingslo_lab.errors import RigError

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction: its word in capitals, and the rest of it on one line."""

    word: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What follows one FROM.

    base: the reference of another image. name: for COPY --from, '' for a stage without one.
    """

    base: str
    name: str
    instructions: Sequence[Instruction] = field(default_factory=tuple)


def stages(text: str) -> list[Stage]:
    """The stages of a Dockerfile in their order.

    Raises: RigError for an instruction before the first FROM, or a FROM of another form.
    """
    found: list[Stage] = []
    for instruction in _instructions(text):
        if instruction.word == "FROM":
            match = re.fullmatch(r"(\S+)(?:\s+AS\s+(\S+))?", instruction.text, re.IGNORECASE)
            if match is None:
                raise RigError(f"FROM {instruction.text}: not of the form `FROM image [AS name]`")
            found.append(Stage(base=match[1], name=match[2] or ""))
        elif not found:
            raise RigError(f"{instruction.word} before the first FROM")
        else:
            last = found[-1]
            together = (*last.instructions, instruction)
            found[-1] = Stage(base=last.base, name=last.name, instructions=together)
    return found


def _instructions(text: str) -> list[Instruction]:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = "\n".join(lines).replace("\\\n", " ")
    parts = (line.strip().split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [Instruction(word=part[0].upper(), text=(part[1:] or [""])[0].strip()) for part in parts]


def pairs(text: str) -> dict[str, str]:
    """The `name=value` pairs of ENV, LABEL or ARG; a name without a value has ''."""
    return {name: value for name, _, value in (word.partition("=") for word in shlex.split(text))}


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """The text with `$name` and `${name}` replaced; an unknown name becomes ''."""
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text)


def ignored(path: PurePosixPath, patterns: Sequence[str]) -> bool:
    """Whether .dockerignore leaves out this path of the context, by itself or by a parent."""
    folders = [path, *path.parents]
    return any(
        re.fullmatch(_expression(pattern), str(folder))
        for pattern in patterns
        for folder in folders
    )


def ignore_patterns(context: Path) -> list[str]:
    """The patterns of .dockerignore. Raises: RigError for an exception (`!`), which is not read."""
    file = context / ".dockerignore"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = [line.strip().strip("/") for line in lines if line.strip() and line[0] != "#"]
    for pattern in found:
        if pattern.startswith("!"):
            raise RigError(f".dockerignore: {pattern}: exceptions are not read")
    return found


def _expression(pattern: str) -> str:
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    words = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return "".join(parts.get(word, re.escape(word)) for word in words)
