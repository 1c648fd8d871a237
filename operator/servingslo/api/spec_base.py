"""What all parts of the spec share: immutable, camelCase names, unknown fields refused."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from servingslo.api.constraints import RULES


def with_rules(*rules: dict[str, Any]) -> ConfigDict:
    """The configuration of a model that adds cross-field CEL rules to its schema."""
    return ConfigDict(json_schema_extra={RULES: list(rules)})


class ApiModel(BaseModel):
    """A part of the resource: immutable, camelCase in manifests, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, allow_inf_nan=False
    )
