"""A HorizontalPodAutoscaler of autoscaling/v2, as far as it says something about replicas."""

from typing import Any, Literal, Self

from pydantic import model_validator

from servingslo.api.constraints import not_allowed
from servingslo_lab.cli.autoscalers.shared import Behavior, BoundedSpec, Metadata, ReadModel

HPA_KIND = "HorizontalPodAutoscaler"
HPA_API_VERSION = "autoscaling/v2"


class MetricTarget(ReadModel):
    """Threshold of a metric. type: Utilization (percent), Value or AverageValue (quantities)."""

    type: Literal["Utilization", "Value", "AverageValue"]
    value: str | int | float | None = None
    average_value: str | int | float | None = None
    average_utilization: int | None = None

    @property
    def threshold(self) -> str:
        """The stated number, '' if there is none."""
        for one in (self.average_value, self.value, self.average_utilization):
            if one is not None:
                return str(one)
        return ""


class MetricName(ReadModel):
    """A metric by name; its selector is not read."""

    name: str


class MetricSource(ReadModel):
    """Where a metric comes from. name, metric: one of them names it, depending on the type."""

    name: str | None = None
    metric: MetricName | None = None
    target: MetricTarget


class Metric(ReadModel):
    """One metric of an HPA."""

    type: Literal["Resource", "ContainerResource", "Pods", "Object", "External"]
    resource: MetricSource | None = None
    container_resource: MetricSource | None = None
    pods: MetricSource | None = None
    object: MetricSource | None = None
    external: MetricSource | None = None

    @model_validator(mode="after")
    def _has_its_source(self) -> Self:
        if self.source is None:
            field = self.type[0].lower() + self.type[1:]
            raise not_allowed(f"a metric, required by type {self.type}", path=(field,), value=None)
        return self

    @property
    def source(self) -> MetricSource | None:
        """The source that the type names."""
        sources: dict[str, MetricSource | None] = {
            "Resource": self.resource,
            "ContainerResource": self.container_resource,
            "Pods": self.pods,
            "Object": self.object,
            "External": self.external,
        }
        return sources[self.type]

    @property
    def name(self) -> str:
        """The metric's name, such as cpu or vllm_num_requests_waiting; '' without one."""
        source = self.source
        if source is None:
            return ""
        return source.name or ("" if source.metric is None else source.metric.name)


class HpaSpec(BoundedSpec):
    """The spec: target, bounds, metrics, behavior."""

    metrics: tuple[Metric, ...] | None = None
    behavior: Behavior | None = None


class HorizontalPodAutoscaler(ReadModel):
    """An HPA."""

    api_version: str
    kind: str
    metadata: Metadata
    spec: HpaSpec

    @model_validator(mode="before")
    @classmethod
    def _version(cls, value: Any) -> Any:
        version = value.get("apiVersion") if isinstance(value, dict) else None
        if version != HPA_API_VERSION:
            allowed = f"{HPA_API_VERSION}, as `kubectl get hpa NAME -o yaml` prints it"
            raise not_allowed(allowed, path=("apiVersion",), value=version)
        return value
