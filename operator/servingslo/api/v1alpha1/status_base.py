"""What all parts of the status share: immutable, camelCase names, finite numbers."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PRESERVE_UNKNOWN = {"x-kubernetes-preserve-unknown-fields": True}

Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class StatusModel(BaseModel):
    """A part of the status, built by snake_case names, written in camelCase."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )


class OpenStatusModel(StatusModel):
    """A part of the status with further fields of no fixed schema."""

    model_config = ConfigDict(extra="allow", json_schema_extra=dict(PRESERVE_UNKNOWN))
