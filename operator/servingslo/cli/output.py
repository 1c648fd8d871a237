"""How results leave the command line: as text for people or as JSON for machines."""

from enum import StrEnum
from functools import lru_cache
from typing import Any

import typer
from pydantic import TypeAdapter

NO_EXIT_CODE = 1


class OutputFormat(StrEnum):
    """What a result is written as."""

    TEXT = "text"
    JSON = "json"


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """A dataclass as JSON; its field names carry their units."""
    adapter = _adapter(type(value))  # type: ignore[arg-type]  # a class is hashable
    return adapter.dump_json(value, indent=indent).decode()


@lru_cache(maxsize=8)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Built once: a stream has many values of one kind."""
    return TypeAdapter(kind)


def answer_no() -> typer.Exit:
    """What to raise when the command worked and its answer is no."""
    return typer.Exit(NO_EXIT_CODE)
