"""What all parts of the spec share: immutable, camelCase names, unknown fields refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, create_model
from pydantic.alias_generators import to_camel

from servingslo.api.constraints import RULES
from servingslo.plugins import Aspect, Key

Model = TypeVar("Model", bound=BaseModel)


def with_rules(*rules: dict[str, Any]) -> ConfigDict:
    """The configuration of a model that adds cross-field CEL rules to its schema."""
    return ConfigDict(json_schema_extra={RULES: list(rules)})


def _agrees(_spec: Any) -> None:
    """Whatever is stated goes with it."""


@dataclass(frozen=True, kw_only=True)
class SpecPart:
    """What a feature adds to the spec: a field of the key's name.

    key: of what the planner gets, in `Targets.features`. field: annotation and pydantic field.
    targets: what the planner gets of the field's value, in SI units. rules: CEL over the whole
    spec; check: the same in Python, of the spec, raises `not_allowed`. of_route: with several pools
    only the one that the route is read for has it.
    """

    key: Key[Any]
    field: tuple[Any, Any]
    targets: Callable[[Any], object]
    rules: tuple[dict[str, Any], ...] = ()
    check: Callable[[Any], None] = _agrees
    of_route: bool = False


SPEC: Aspect[SpecPart] = Aspect("spec")


def with_features(model: type[Model]) -> type[Model]:
    """The model with the field of each feature at its end."""
    fields: dict[str, Any] = {part.key.name: part.field for part in SPEC.parts()}
    return create_model(model.__name__, __base__=model, **fields)


def features_of(spec: BaseModel) -> dict[str, object]:
    """What the planner gets of each feature that is stated, by name."""
    stated = ((part, getattr(spec, part.key.name)) for part in SPEC.parts())
    return {part.key.name: part.targets(value) for part, value in stated if value is not None}


class ApiModel(BaseModel):
    """A part of the resource: immutable, camelCase in manifests, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, allow_inf_nan=False
    )
