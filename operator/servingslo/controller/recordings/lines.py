"""Lines of a recording, and the files that more of them may be appended to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servingslo.errors import InvalidInputError
from servingslo.parsing import written_json


def decoded_line(line: str, number: int) -> Mapping[str, Any]:
    """The JSON object of a line. Raises: InvalidInputError naming the line."""
    try:
        entry = written_json(line)
    except ValueError as error:
        raise InvalidInputError(f"line {number}", line[:80], "one JSON object") from error
    if not isinstance(entry, dict):
        raise InvalidInputError(f"line {number}", line[:80], "one JSON object")
    return entry


def check_recording(path: Path) -> None:
    """Check that a file, if it exists and is not empty, begins as a recording does.

    Raises: InvalidInputError if it does not; OSError if it cannot be read.
    """
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    try:
        if first:
            decoded_line(first, 1)
    except InvalidInputError as error:
        raise InvalidInputError("recording", str(path), "a new file, or a recording") from error
