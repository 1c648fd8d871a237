"""How results leave the command line: as text for people or as JSON for machines."""

from enum import StrEnum

import typer
from pydantic_core import to_json

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
