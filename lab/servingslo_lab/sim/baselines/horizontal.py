"""The HorizontalPodAutoscaler: its metric arithmetic and its behavior, shared by several rules.

Source: Kubernetes pkg/controller/podautoscaler/replica_calculator.go (calcPlainMetricReplicas,
GetExternalPerPodMetricReplicas) and horizontal.go; defaults of API version autoscaling/v2.
"""

import math
from collections.abc import Collection, Sequence

from servingslo.policy.hpa_behavior import (
    Behavior,
    BehaviorState,
    PolicyType,
    ScalingPolicy,
    ScalingRules,
    initial_state,
    normalize,
    record_scale,
)

DEFAULT_TOLERANCE = 0.1
# Source: pkg/apis/autoscaling/v2/defaults.go.
DEFAULT_DOWN_WINDOW_SECONDS = 300


def default_behavior(
    down_window_seconds: int = DEFAULT_DOWN_WINDOW_SECONDS, up_window_seconds: int = 0
) -> Behavior:
    """Up: double or 4 more pods in 15 s, whichever is more. Down: any number after five minutes."""
    return Behavior(
        scale_up=ScalingRules(
            stabilization_window_seconds=up_window_seconds,
            policies=(
                ScalingPolicy(type=PolicyType.PERCENT, value=100, period_seconds=15),
                ScalingPolicy(type=PolicyType.PODS, value=4, period_seconds=15),
            ),
        ),
        scale_down=ScalingRules(
            stabilization_window_seconds=down_window_seconds,
            policies=(ScalingPolicy(type=PolicyType.PERCENT, value=100, period_seconds=15),),
        ),
    )


def pods_metric_replicas(
    values: Collection[float],
    *,
    missing: int,
    current: int,
    target: float,
    tolerance: float = DEFAULT_TOLERANCE,
) -> int:
    """Replicas for a metric averaged over pods; `missing` pods have no value.

    Pods without the metric count as the target value for a scale-down and as 0 for a scale-up. If
    they reverse the direction, nothing changes.
    """
    if not values:
        return current
    ratio = sum(values) / len(values) / target
    if not missing:
        return current if abs(ratio - 1.0) <= tolerance else math.ceil(ratio * len(values) - 1e-9)
    assumed = target if ratio < 1.0 else 0.0
    count = len(values) + missing
    tempered = (sum(values) + missing * assumed) / count / target
    if abs(tempered - 1.0) <= tolerance or (ratio < 1.0) != (tempered < 1.0):
        return current
    wanted = math.ceil(tempered * count - 1e-9)
    if (tempered < 1.0 and wanted > current) or (tempered > 1.0 and wanted < current):
        return current
    return wanted


def external_metric_replicas(
    total: float, *, target: float, live: int, current: int, tolerance: float = DEFAULT_TOLERANCE
) -> int:
    """Replicas by an external metric of type AverageValue: total over target, rounded up."""
    if live > 0 and abs(total / (target * live) - 1.0) <= tolerance:
        return current
    return math.ceil(total / target - 1e-9)


class Horizontal:
    """Behavior with its history: limits the replica counts that metrics require."""

    def __init__(self, behavior: Behavior, *, minimum: int, maximum: int) -> None:
        self._behavior = behavior
        self._minimum, self._maximum = minimum, maximum
        self._state: BehaviorState | None = None

    def replicas(self, current: int, wanted: Sequence[int], now_seconds: float) -> int:
        """The replica count to order for these wanted counts; the largest of them decides."""
        if self._state is None:
            self._state = initial_state(replicas=current, now_seconds=now_seconds)
        outcome, state = normalize(
            self._state,
            behavior=self._behavior,
            current=current,
            desired=max(wanted, default=current),
            min_replicas=self._minimum,
            max_replicas=self._maximum,
            now_seconds=now_seconds,
        )
        self._state = record_scale(
            state,
            behavior=self._behavior,
            previous=current,
            new=outcome.replicas,
            now_seconds=now_seconds,
        )
        return outcome.replicas
