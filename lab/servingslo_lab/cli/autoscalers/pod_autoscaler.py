"""A PodAutoscaler of AIBrix, as far as it says something about replicas.

Source: AIBrix api/autoscaling/v1alpha1/podautoscaler_types.go.
"""

from typing import Annotated, Any, Self

from pydantic import model_validator

from servingslo.api.constraints import MAX_REPLICAS, Between, Count, Matching, not_allowed
from servingslo_lab.cli.autoscalers.shared import BoundedSpec, Metadata, ReadModel

POD_AUTOSCALER_KIND = "PodAutoscaler"
POD_AUTOSCALER_API_VERSION = "autoscaling.aibrix.ai/v1alpha1"
_TIME = Matching(r"^([01][0-9]|2[0-3]):[0-5][0-9]$", "a time of day (such as 08:30)", 5)
_DAY = Matching("^(?i:mon|tue|wed|thu|fri|sat|sun)$", "a day of the week (such as Mon)", 3)


class Schedule(ReadModel):
    """Other bounds from one time of day to a later one, on some days of the week."""

    name: str
    timezone: str = "UTC"
    days_of_week: tuple[Annotated[str, _DAY], ...] = ()
    start_time: Annotated[str, _TIME]
    end_time: Annotated[str, _TIME]
    min_replicas: Annotated[Count, Between(0, MAX_REPLICAS)] | None = None
    max_replicas: Annotated[Count, Between(1, MAX_REPLICAS)] | None = None

    @model_validator(mode="after")
    def _ends_later(self) -> Self:
        if self.start_time >= self.end_time:
            allowed = f"later than startTime, {self.start_time}"
            raise not_allowed(allowed, path=("endTime",), value=self.end_time)
        return self

    @property
    def cron(self) -> str:
        """When it begins."""
        hour, minute = self.start_time.split(":")
        days = ",".join(day.upper() for day in self.days_of_week) or "*"
        return f"{int(minute)} {int(hour)} * * {days}"

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return _seconds(self.end_time) - _seconds(self.start_time)


class MetricSource(ReadModel):
    """What it scales by."""

    target_metric: str = ""
    target_value: str = ""


class PodAutoscalerSpec(BoundedSpec):
    """The spec: target, bounds, schedules, metrics."""

    schedules: tuple[Schedule, ...] = ()
    metrics_sources: tuple[MetricSource, ...] = ()
    scaling_strategy: str = ""
    sub_target_selector: dict[str, Any] | None = None


class PodAutoscaler(ReadModel):
    """A PodAutoscaler."""

    api_version: str
    kind: str
    metadata: Metadata
    spec: PodAutoscalerSpec

    @model_validator(mode="before")
    @classmethod
    def _version(cls, value: Any) -> Any:
        version = value.get("apiVersion") if isinstance(value, dict) else None
        if version != POD_AUTOSCALER_API_VERSION:
            raise not_allowed(POD_AUTOSCALER_API_VERSION, path=("apiVersion",), value=version)
        return value


def _seconds(time: str) -> float:
    hour, minute = time.split(":")
    return 3600.0 * int(hour) + 60.0 * int(minute)
