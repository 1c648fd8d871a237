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


def _nothing(_value: Any, _spec: Any) -> dict[str, Any]:
    """It says what it says in its own value."""
    return {}


def _agrees(_spec: Any) -> None:
    """Whatever is stated goes with it."""


@dataclass(frozen=True, kw_only=True)
class SpecPart:
    """What a feature adds to the spec, or to its part `within`: a field of the key's name.

    key: of what the planner gets, in `Targets.features`. field: annotation and pydantic field.
    targets: what the planner gets of the field's value, in SI units. states: fields of `Targets`
    that the value, in the spec, sets instead of the kernel; within replicas, of `ReplicaTargets`.
    rules: CEL over the whole spec or the part; check: the same in Python, raises `not_allowed`.
    of_route: with several pools only the one that the route is read for has it. several_routes: it
    states several, each with a bound of its own; what needs one_route then excludes it.
    """

    key: Key[Any]
    field: tuple[Any, Any]
    within: str = ""
    targets: Callable[[Any], object]
    rules: tuple[dict[str, Any], ...] = ()
    check: Callable[[Any], None] = _agrees
    of_route: bool = False
    one_route: bool = False
    several_routes: bool = False
    states: Callable[[Any, Any], dict[str, Any]] = _nothing

    @property
    def field_name(self) -> str:
        """The name of the field in manifests."""
        return to_camel(self.key.name)


SPEC: Aspect[SpecPart] = Aspect("spec")


# The part of the spec with the bounds on counts, where a feature may add a field.
OF_REPLICAS = "replicas"


def parts_within(part: str = "") -> tuple[SpecPart, ...]:
    """What features add to this part of the spec, '' for the spec itself."""
    return tuple(one for one in SPEC.parts() if one.within == part)


def with_features(model: type[Model], within: str = "") -> type[Model]:
    """The model with the field of each feature at its end."""
    fields: dict[str, Any] = {part.key.name: part.field for part in parts_within(within)}
    return create_model(model.__name__, __base__=model, **fields)


def features_of(model: BaseModel, within: str = "") -> dict[str, object]:
    """What the planner gets of the fields that features add to a part of the spec, by name."""
    return {part.key.name: part.targets(value) for part, value in _stated(model, within)}


def states_of(model: BaseModel, within: str = "") -> dict[str, Any]:
    """Fields of the planner's targets that features state by their fields of a part."""
    return {
        name: found
        for part, value in _stated(model, within)
        for name, found in part.states(value, model).items()
    }


def _stated(model: BaseModel, within: str) -> list[tuple[SpecPart, Any]]:
    every = ((part, getattr(model, part.key.name)) for part in parts_within(within))
    return [(part, value) for part, value in every if value is not None]


class ApiModel(BaseModel):
    """A part of the resource: immutable, camelCase in manifests, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, allow_inf_nan=False
    )
