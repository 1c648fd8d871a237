"""Read records from annotations, untrusted: anyone who may edit the object can write them."""

from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

_MOST_CHARACTERS = 65_536
# A float holds it exactly.
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
AS_WRITTEN = ConfigDict(extra="forbid", strict=True)

_Record = TypeVar("_Record")


def record_in(text: str, adapter: TypeAdapter[_Record]) -> _Record | None:
    """The record in an annotation; None if it is another record or not JSON."""
    try:
        return adapter.validate_json(text) if len(text) <= _MOST_CHARACTERS else None
    except ValidationError:
        return None
