"""What annotations hold: read as what anybody may have written, who may change the object."""

from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

_MOST_CHARACTERS = 65_536
# A float holds it exactly.
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
AS_WRITTEN = ConfigDict(extra="forbid", strict=True)

_Record = TypeVar("_Record")


def record_in(text: str, adapter: TypeAdapter[_Record]) -> _Record | None:
    """The record that an annotation holds; None where it holds another, or what is no JSON."""
    try:
        return adapter.validate_json(text) if len(text) <= _MOST_CHARACTERS else None
    except ValidationError:
        return None
