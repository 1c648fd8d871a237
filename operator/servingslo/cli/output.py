"""How results leave the command line: as text for people or as JSON for machines."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile

import typer
from pydantic_core import to_json

from servingslo.errors import InvalidInputError

NO_EXIT_CODE = 1


class OutputFormat(StrEnum):
    """What a result is written as."""

    TEXT = "text"
    JSON = "json"


def as_json(value: object, *, indent: int | None = 2) -> str:
    """A dataclass as JSON; its field names carry their units."""
    return to_json(value, indent=indent).decode()


def answer_no() -> typer.Exit:
    """What to raise when the command worked and its answer is no."""
    return typer.Exit(NO_EXIT_CODE)


def check_writable(path: Path, flag: str) -> None:
    """Raises: InvalidInputError where no file can be written there: told before a long run."""
    if path.is_dir():
        raise InvalidInputError(flag, str(path), "a file, not a folder")
    if not path.parent.is_dir():
        raise InvalidInputError(flag, str(path), "a file in a folder that exists")
    if path.exists() and not os.access(path, os.W_OK):
        raise InvalidInputError(flag, str(path), "a file that can be written")
    if not path.exists() or path.is_file():
        try:
            TemporaryFile(dir=path.resolve().parent).close()
        except OSError as error:
            raise _not_written(path, flag, error) from error


@contextmanager
def written_whole(path: Path, flag: str) -> Iterator[Path]:
    """Where to write what `path` is to hold: a file beside it, so that no half of one is left.

    A device or a pipe is written as it is.
    Raises: InvalidInputError where it cannot be written.
    """
    check_writable(path, flag)
    target = path.resolve()
    plain = target.is_file() or not target.exists()
    part = target.with_name(f"{target.name}.part") if plain else target
    try:
        yield part
        if plain:
            part.replace(target)
    except OSError as error:
        raise _not_written(path, flag, error) from error
    finally:
        if plain:
            part.unlink(missing_ok=True)


def _not_written(path: Path, flag: str, error: OSError) -> InvalidInputError:
    return InvalidInputError(flag, str(path), f"a file that can be written ({error.strerror})")
