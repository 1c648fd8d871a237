"""Objectives: a percentile of a metric, and how requests reach replicas."""

from dataclasses import dataclass
from enum import StrEnum, unique


@unique
class Routing(StrEnum):
    """How requests reach the replicas of a group.

    POOLED: one queue for all, an optimistic bound that least-loaded routing comes close to.
    RANDOM: independent queues (pessimistic bound).
    """

    POOLED = "pooled"
    RANDOM = "random"


@unique
class LatencyMetric(StrEnum):
    """The metric of an objective, by its name in the API."""

    TTFT = "ttft"
    TPOT = "tpot"
    LATENCY = "latency"
    QUEUE_TIME = "queueTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A percentile (in percent, 50 to 99.9) of a metric stays at or below a threshold."""

    metric: LatencyMetric
    percentile: float
    threshold_seconds: float

    @property
    def key(self) -> str:
        """A name of the objective that is unique within a resource: 'ttft:p99'."""
        return f"{self.metric}:p{self.percentile:g}"
