"""A ScaledObject of KEDA, as far as it says something about replicas.

Source: KEDA v2.21 apis/keda/v1alpha1/scaledobject_types.go; defaults of keda.sh, "ScaledObject
specification".
"""

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from servingslo.api.constraints import MAX_REPLICAS, Between, Count, not_allowed
from servingslo_lab.cli.autoscalers.shared import Behavior, Metadata, ReadModel, Target

SCALED_OBJECT_KIND = "ScaledObject"
SCALED_OBJECT_API_VERSION = "keda.sh/v1alpha1"
DEFAULT_MIN_REPLICAS, DEFAULT_MAX_REPLICAS = 0, 100
DEFAULT_POLLING_SECONDS, DEFAULT_COOLDOWN_SECONDS = 30, 300
_TYPE = "how a threshold becomes a count; the replica count follows from the objectives"
_ACTIVATION = "the first replica follows from requests at the gateway, not from a threshold"
_READING = "where and how KEDA reads the trigger; the operator reads engines and gateway"


class FallbackKind(StrEnum):
    """What KEDA does when a trigger fails."""

    STATIC = "static"
    CURRENT = "currentReplicas"
    CURRENT_IF_HIGHER = "currentReplicasIfHigher"
    CURRENT_IF_LOWER = "currentReplicasIfLower"
    MODIFIERS = "scalingModifiers"


class KedaFallback(ReadModel):
    """Replicas after `failure_threshold` failed polls in a row."""

    failure_threshold: Annotated[Count, Between(0)]
    replicas: Annotated[Count, Between(0)]
    behavior: FallbackKind = FallbackKind.STATIC


class Trigger(ReadModel):
    """One trigger. metadata: its settings, all strings."""

    type: str
    metadata: dict[str, str] = Field({})
    metric_type: Literal["AverageValue", "Value", "Utilization"] | None = None

    def beside(self, known: Collection[str]) -> Iterator[tuple[str, str, str]]:
        """Path, value and meaning of each setting but the known ones.

        Addresses may contain credentials: only the value of an activation is given.
        """
        if self.metric_type is not None and "metricType" not in known:
            yield "metricType", self.metric_type, _TYPE
        for name, value in self.metadata.items():
            if name.startswith("activation"):
                yield f"metadata.{name}", value, _ACTIVATION
            elif name not in known:
                yield f"metadata.{name}", "", _READING


class Modifiers(ReadModel):
    """A formula over triggers."""

    formula: str | None = None
    target: str | None = None


class HpaConfig(ReadModel):
    """What KEDA writes into the HPA that it makes."""

    behavior: Behavior | None = None


class Advanced(ReadModel):
    """Settings of the HPA, a formula, and what happens at deletion."""

    horizontal_pod_autoscaler_config: HpaConfig | None = None
    scaling_modifiers: Modifiers | None = None
    restore_to_original_replica_count: bool | None = None


class ScaledObjectSpec(ReadModel):
    """The spec: target, bounds, triggers, fallback, behavior."""

    scale_target_ref: Target
    polling_interval: Annotated[Count, Between(1)] | None = None
    cooldown_period: Annotated[Count, Between(0)] | None = None
    initial_cooldown_period: Annotated[Count, Between(0)] | None = None
    idle_replica_count: Annotated[Count, Between(0)] | None = None
    min_replica_count: Annotated[Count, Between(0, MAX_REPLICAS)] | None = None
    max_replica_count: Annotated[Count, Between(1, MAX_REPLICAS)] | None = None
    triggers: Annotated[tuple[Trigger, ...], Field(min_length=1)]
    fallback: KedaFallback | None = None
    advanced: Advanced | None = None

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.least > self.most:
            allowed = f"at most maxReplicaCount, {self.most}"
            raise not_allowed(allowed, path=("minReplicaCount",), value=self.least)
        return self

    @property
    def least(self) -> int:
        """The lower bound while a trigger is active, and without idleReplicaCount also else."""
        return DEFAULT_MIN_REPLICAS if self.min_replica_count is None else self.min_replica_count

    @property
    def most(self) -> int:
        """The upper bound."""
        return DEFAULT_MAX_REPLICAS if self.max_replica_count is None else self.max_replica_count

    @property
    def polling_seconds(self) -> int:
        """Time between two polls of the triggers."""
        return DEFAULT_POLLING_SECONDS if self.polling_interval is None else self.polling_interval

    @property
    def cooldown_seconds(self) -> int:
        """Time without an active trigger before the last replica goes."""
        return DEFAULT_COOLDOWN_SECONDS if self.cooldown_period is None else self.cooldown_period

    @property
    def formula(self) -> str:
        """What takes the place of the triggers' thresholds; '' if nothing does."""
        modifiers = None if self.advanced is None else self.advanced.scaling_modifiers
        return "" if modifiers is None else modifiers.formula or ""

    @property
    def behavior(self) -> Behavior | None:
        """`behavior` of the HPA that KEDA makes."""
        config = None if self.advanced is None else self.advanced.horizontal_pod_autoscaler_config
        return None if config is None else config.behavior


class ScaledObject(ReadModel):
    """A ScaledObject."""

    api_version: str
    kind: str
    metadata: Metadata
    spec: ScaledObjectSpec

    @model_validator(mode="before")
    @classmethod
    def _version(cls, value: Any) -> Any:
        version = value.get("apiVersion") if isinstance(value, dict) else None
        if version != SCALED_OBJECT_API_VERSION:
            raise not_allowed(SCALED_OBJECT_API_VERSION, path=("apiVersion",), value=version)
        return value
