"""Whether lines of a recording may be appended to a file."""

from pathlib import Path

from servingslo.errors import InvalidInputError
from servingslo.parsing import written_json


def check_recording(path: Path) -> None:
    """Check that a file, if it exists and is not empty, begins as a recording does.

    Raises: InvalidInputError if it does not; OSError if it cannot be read.
    """
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    try:
        begins = not first or isinstance(written_json(first), dict)
    except ValueError:
        begins = False
    if not begins:
        raise InvalidInputError("recording", str(path), "a new file, or a recording")
