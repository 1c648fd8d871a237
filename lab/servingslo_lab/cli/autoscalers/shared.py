"""What an HPA and a ScaledObject share: metadata, the target, and `behavior`.

Fields that are not read are allowed: both resources come from a live cluster, with status and all.
Sources: Kubernetes v1.36 pkg/apis/autoscaling/validation; KEDA v2.21 apis/keda/v1alpha1.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from servingslo.api.constraints import MAX_REPLICAS, Between, Count, not_allowed
from servingslo.api.patterns import API_VERSION_NAME, DNS_LABEL, DNS_NAME, KIND_NAME
from servingslo.api.v1alpha1.behavior import MAX_POLICIES, MAX_WINDOW_SECONDS, ScalingPolicy
from servingslo.policy.hpa_behavior import SelectPolicy

DEFAULT_API_VERSION = "apps/v1"
# Source: Kubernetes pkg/apis/autoscaling/v2/defaults.go.
DEFAULT_MIN_REPLICAS = 1


class ReadModel(BaseModel):
    """A part of somebody else's resource: immutable, camelCase names, unknown fields kept aside."""

    model_config = ConfigDict(
        frozen=True, extra="allow", alias_generator=to_camel, allow_inf_nan=False
    )


class Owner(ReadModel):
    """What made an object. controller: whether it makes the object again."""

    kind: str
    name: str
    controller: bool | None = None


class Metadata(ReadModel):
    """Name, namespace (None if the manifest states none), annotations and owners."""

    name: Annotated[str, DNS_NAME]
    namespace: Annotated[str, DNS_LABEL] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None

    @property
    def annotated(self) -> dict[str, str]:
        """The annotations, none if there are none."""
        return self.annotations or {}

    @property
    def controller(self) -> Owner | None:
        """Who makes this object again when it is deleted."""
        return next((one for one in self.owner_references or () if one.controller), None)


class Target(ReadModel):
    """The workload that is scaled. api_version, kind: of a Deployment if they are not stated."""

    api_version: Annotated[str, API_VERSION_NAME] | None = None
    kind: Annotated[str, KIND_NAME] | None = None
    name: Annotated[str, DNS_NAME]


class Rules(ReadModel):
    """Rules of one direction; None is what is not stated. tolerance: a ratio, as a quantity."""

    stabilization_window_seconds: Annotated[Count, Between(0, MAX_WINDOW_SECONDS)] | None = None
    policies: Annotated[tuple[ScalingPolicy, ...], Field(max_length=MAX_POLICIES)] | None = None
    select_policy: SelectPolicy | None = None
    tolerance: str | float | None = None


class Behavior(ReadModel):
    """`behavior` of autoscaling/v2."""

    scale_up: Rules | None = None
    scale_down: Rules | None = None


def stated(model: BaseModel) -> dict[str, Any]:
    """What is read of a model, under the names of a manifest."""
    known = set(type(model).model_fields)
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, include=known)


def unread(model: BaseModel, path: str) -> Iterator[tuple[str, object]]:
    """Path and value of each field that is stated and not read, also in the items of lists."""
    for name, value in (model.model_extra or {}).items():
        yield f"{path}.{name}", value
    for name, field in type(model).model_fields.items():
        part = getattr(model, name)
        items = [(f"[{at}]", one) for at, one in enumerate(part)] if isinstance(part, tuple) else []
        for place, one in items or [("", part)]:
            if isinstance(one, BaseModel):
                yield from unread(one, f"{path}.{field.alias}{place}")


class BoundedSpec(ReadModel):
    """Target and bounds, as an HPA and AIBrix's PodAutoscaler state them."""

    scale_target_ref: Target
    min_replicas: Annotated[Count, Between(0, MAX_REPLICAS)] | None = None
    max_replicas: Annotated[Count, Between(1, MAX_REPLICAS)]

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.least > self.max_replicas:
            allowed = f"at most maxReplicas, {self.max_replicas}"
            raise not_allowed(allowed, path=("minReplicas",), value=self.least)
        return self

    @property
    def least(self) -> int:
        """The lower bound."""
        return DEFAULT_MIN_REPLICAS if self.min_replicas is None else self.min_replicas
