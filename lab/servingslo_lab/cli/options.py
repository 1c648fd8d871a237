"""Options and files that several commands of the lab share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from servingslo.errors import InvalidInputError

GatewayName = Annotated[
    str | None,
    typer.Option(help="Name of the workload at the gateway; that of --target by default."),
]


@contextmanager
def flag_named(typed: str, of_operator: str = "--prometheus-url") -> Iterator[None]:
    """Errors about a flag of the operator's name the flag that was typed here."""
    try:
        yield
    except InvalidInputError as error:
        if error.field != of_operator:
            raise
        raise InvalidInputError(typed, error.value, error.allowed) from error


def check_read_back(prometheus: str | None, window: str | None, step: str | None) -> None:
    """Raises: InvalidInputError where nothing is read back, so that these would have no effect."""
    for flag, value in (("--window", window), ("--step", step)):
        if value is not None and not prometheus:
            raise InvalidInputError(flag, value, "only with --prometheus")


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
