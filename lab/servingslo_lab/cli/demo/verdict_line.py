"""How a scenario ends: its figures, then one line: kept or missed, and what was checked."""

from collections.abc import Sequence
from pathlib import Path

from servingslo_lab.errors import RigError


def verdict_line(short: Sequence[str], checked: Sequence[str]) -> str:
    """'verdict: kept; checked: …', or each promise that was missed. checked: all promises."""
    ended = f"missed: {'; '.join(short)}" if short else "kept"
    return f"verdict: {ended}; checked: {', '.join(checked)}"


def concluded(
    text: str, short: Sequence[str], checked: Sequence[str], *, full: bool, file: Path
) -> str:
    """The figures with their verdict, written to a file as well.

    full: the run was as long as its promises need. Raises: RigError if such a run missed one.
    """
    line = verdict_line(short, checked)
    if not full:
        line += "; a short run, which promises nothing"
    told = f"{text}\n{line}"
    file.write_text(f"{told}\n", encoding="utf-8")
    if short and full:
        raise RigError(f"{file.stem}\n{told}")
    return told
