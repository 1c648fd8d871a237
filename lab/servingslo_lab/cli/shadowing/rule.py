"""The rule in an HPA or a ScaledObject: gauges of engines, their thresholds, bounds, behavior."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from servingslo.errors import InvalidInputError
from servingslo.estimation.sample import EngineSample
from servingslo.models.numerics import ROUNDING
from servingslo.policy.hpa_behavior import Behavior, ScalingPolicy, ScalingRules
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.units import parse_quantity_bytes
from servingslo_lab.cli.autoscalers.documents import Autoscaler
from servingslo_lab.cli.autoscalers.hpa import HorizontalPodAutoscaler, Metric
from servingslo_lab.cli.autoscalers.pod_autoscaler import PodAutoscaler
from servingslo_lab.cli.autoscalers.scaled_object import Trigger
from servingslo_lab.cli.autoscalers.shared import Behavior as ReadBehavior
from servingslo_lab.cli.autoscalers.shared import Rules
from servingslo_lab.sim.baselines import view
from servingslo_lab.sim.baselines.horizontal import DEFAULT_TOLERANCE, default_behavior
from servingslo_lab.sim.baselines.view import Scrape

Gauge = Callable[[EngineSample], float | None]

_GAUGES: dict[str, Gauge] = {
    "running": view.running,
    "waiting": view.waiting,
    "kv_usage_ratio": view.kv_usage,
}
_FORMULA = "spec.advanced.scalingModifiers.formula"
_BEHAVIOR_OF_KEDA = "spec.advanced.horizontalPodAutoscalerConfig.behavior"
_GOOGLE = "prometheus.googleapis.com|"
_TERM = re.compile(r"(sum|avg|max)\s*\(\s*([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{[^}]*\})?\s*\)")
_A_GAUGE = "gauge of running or waiting requests or of KV use, alone or as a sum of such"
_NOT_A_GAUGE = f"no {_A_GAUGE}"
# Autoscalers scale to zero by other means than their metric's arithmetic.
_LEAST = 1


class Over(StrEnum):
    """How a gauge of several pods becomes one number."""

    SUM = "sum"
    AVERAGE = "avg"
    MAXIMUM = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A sum of gauges over pods and its threshold.

    by_pods: the threshold is one for the whole, as type Value has it: the replicas of now are
    multiplied by the ratio. Otherwise it is one for each replica.
    """

    field: str
    parts: tuple[tuple[Over, Gauge], ...]
    target: float
    by_pods: bool

    def replicas(self, scrape: Scrape) -> float | None:
        """Replicas that it asks for, not rounded; None if no pod has the gauge."""
        total = 0.0
        for over, gauge in self.parts:
            values = [*scrape.values(gauge).values()]
            if not values:
                return None
            total += (
                max(values)
                if over is Over.MAXIMUM
                else sum(values) / (len(values) if over is Over.AVERAGE else 1)
            )
        return total / self.target * (scrape.ready if self.by_pods else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What decides. unread: metrics that no recording has, in words; the largest of all decides.

    up_tolerance_ratio, down_tolerance_ratio: by which a signal may be off while nothing changes.
    """

    name: str
    minimum: int
    maximum: int
    behavior: Behavior
    signals: tuple[Signal, ...]
    unread: tuple[str, ...]
    up_tolerance_ratio: float = DEFAULT_TOLERANCE
    down_tolerance_ratio: float = DEFAULT_TOLERANCE

    def replicas(self, needed: float, current: int) -> int:
        """What a signal that needs so many orders.

        Source: Kubernetes, pkg/controller/podautoscaler/replica_calculator.go, isWithin.
        """
        low, high = 1.0 - self.down_tolerance_ratio, 1.0 + self.up_tolerance_ratio
        if current > 0 and low <= needed / current <= high:
            return current
        return math.ceil(needed - ROUNDING)


def rule_of(source: Autoscaler) -> Rule:
    """The rule in an HPA or a ScaledObject.

    Raises: InvalidInputError if a recording has none of its metrics, or a formula is over them.
    """
    name = f"{source.kind} {source.metadata.name}"
    if isinstance(source, PodAutoscaler):
        raise InvalidInputError("kind", source.kind, "an HPA or a ScaledObject")
    if isinstance(source, HorizontalPodAutoscaler):
        hpa = source.spec
        found = [_of_metric(one, f"spec.metrics[{i}]") for i, one in enumerate(hpa.metrics or ())]
        least, most, behavior, path = hpa.least, hpa.max_replicas, hpa.behavior, "spec.behavior"
    else:
        spec = source.spec
        if spec.formula:
            allowed = "none: with one KEDA ignores the thresholds of triggers, and it is not played"
            raise InvalidInputError(f"{name}: {_FORMULA}", spec.formula, allowed)
        found = [_of_trigger(one, f"spec.triggers[{i}]") for i, one in enumerate(spec.triggers)]
        least, most, behavior, path = spec.least, spec.most, spec.behavior, _BEHAVIOR_OF_KEDA
    stated = behavior or ReadBehavior()
    signals = tuple(one for one in found if isinstance(one, Signal))
    unread = tuple(one for one in found if isinstance(one, str))
    if not signals:
        field = "spec.metrics" if isinstance(source, HorizontalPodAutoscaler) else "spec.triggers"
        value = "; ".join(unread) or None
        raise InvalidInputError(f"{name}: {field}", value, f"at least one {_A_GAUGE}")
    return Rule(
        name=name,
        minimum=max(least, _LEAST),
        maximum=most,
        behavior=_behavior(behavior),
        signals=signals,
        unread=unread,
        up_tolerance_ratio=_tolerance(stated.scale_up, f"{path}.scaleUp"),
        down_tolerance_ratio=_tolerance(stated.scale_down, f"{path}.scaleDown"),
    )


def _of_metric(metric: Metric, field: str) -> Signal | str:
    source, told = metric.source, f"{field} {metric.type} {metric.name}"
    gauge = _gauge(metric.name)
    if source is None or metric.type not in {"Pods", "External"} or gauge is None:
        return f"{told}: {_NOT_A_GAUGE}"
    by_pods = source.target.type == "Value"
    return _signal(field, ((Over.SUM, gauge),), source.target.threshold, by_pods=by_pods)


def _of_trigger(trigger: Trigger, field: str) -> Signal | str:
    query = " ".join(trigger.metadata.get("query", "").split())
    parts = tuple(_parts(query)) if trigger.type == "prometheus" else ()
    if not parts or None in parts:
        return f"{field} {trigger.type} {query}".rstrip() + f": {_NOT_A_GAUGE}"
    known = tuple(part for part in parts if part is not None)
    by_pods = trigger.metric_type == "Value"
    return _signal(field, known, trigger.metadata.get("threshold", ""), by_pods=by_pods)


def _parts(query: str) -> Iterator[tuple[Over, Gauge] | None]:
    """The terms of a sum; None for one that is no gauge over pods."""
    for term in query.split("+"):
        match = _TERM.fullmatch(term.strip())
        gauge = None if match is None else _gauge(match[2])
        yield None if match is None or gauge is None else (Over(match[1]), gauge)


def _signal(
    field: str, parts: tuple[tuple[Over, Gauge], ...], threshold: str, *, by_pods: bool
) -> Signal:
    target = parse_quantity_bytes(threshold, f"{field}: threshold")
    if target <= 0:
        raise InvalidInputError(f"{field}: threshold", threshold, "above 0")
    return Signal(field=field, parts=parts, target=target, by_pods=by_pods)


def _gauge(name: str) -> Gauge | None:
    """The gauge under an engine's name, also as adapters write it.

    With _ for :, or as Google Cloud's: prometheus.googleapis.com|vllm:num_requests_running|gauge.
    """
    plain = _plain(name.removeprefix(_GOOGLE).partition("|")[0])
    fields = (
        one.field
        for profile in CATALOGUE
        for one in profile.metrics
        if plain in map(_plain, one.names)
    )
    return next((_GAUGES[field] for field in fields if field in _GAUGES), None)


def _plain(name: str) -> str:
    return name.replace(":", "_")


def _behavior(read: ReadBehavior | None) -> Behavior:
    """What is stated, and the HPA's own defaults else."""
    default = default_behavior()
    if read is None:
        return default
    return Behavior(
        scale_up=_rules(read.scale_up, default.scale_up),
        scale_down=_rules(read.scale_down, default.scale_down),
    )


def _rules(read: Rules | None, default: ScalingRules) -> ScalingRules:
    if read is None:
        return default
    window, select = read.stabilization_window_seconds, read.select_policy
    return replace(
        default,
        stabilization_window_seconds=(
            default.stabilization_window_seconds if window is None else window
        ),
        policies=default.policies if read.policies is None else tuple(_policies(read.policies)),
        select_policy=default.select_policy if select is None else select,
    )


def _tolerance(read: Rules | None, path: str) -> float:
    """The ratio that is stated, and the HPA's own default else."""
    if read is None or read.tolerance is None:
        return DEFAULT_TOLERANCE
    ratio = parse_quantity_bytes(str(read.tolerance), f"{path}.tolerance")
    if ratio < 0:
        raise InvalidInputError(f"{path}.tolerance", read.tolerance, "0 or more")
    return ratio


def _policies(read: Iterable[object]) -> Iterator[ScalingPolicy]:
    for one in read:
        kind, value, period = (getattr(one, key) for key in ("type", "value", "period_seconds"))
        yield ScalingPolicy(type=kind, value=value, period_seconds=period)
