"""How many replicas: the least count at which every constraint holds, and which one binds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from servingslo.models.latency import (
    LatencyMetric,
    LatencyModel,
    Objective,
    Prediction,
    Routing,
    metric_seconds,
    prepare,
)
from servingslo.policy.decision import ConstraintNeed
from servingslo.policy.searching import greatest_holding, least_holding
from servingslo.reasons import Constraint

# Share of time that KV use stays within its target: the sum of tokens held is a quantile, because
# lengths vary; above the target there is room to the capacity before the engine preempts.
KV_PERCENTILE = 95.0
# While a backlog drains the fleet may run this close to saturation: the greatest utilization that
# the resource accepts as a target.
DRAIN_UTILIZATION = 0.95
# Equal parts of the range of rates up to saturation: the answer is exact to 0.1 % of it.
RATE_PARTS = 1024
# A single request at a time, in effect: the least that any objective can be.
IDLE_RATE_PER_SECOND = 1e-6
# Below this utilization a replica is all but idle: by M/M/1 a wait is a tenth of a service time,
# and even without it a percentile falls by no more than that.
IDLE_UTILIZATION = 0.1

CONSTRAINT_OF_METRIC = {
    LatencyMetric.TTFT: Constraint.TTFT,
    LatencyMetric.TPOT: Constraint.TPOT,
    LatencyMetric.LATENCY: Constraint.LATENCY,
    LatencyMetric.QUEUE_TIME: Constraint.QUEUE_TIME,
}


def objective_key(objective: Objective) -> str:
    """A name of the objective that is unique within a resource: 'ttft:p99'."""
    return f"{objective.metric.value}:p{objective.percentile:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the fleet has to carry.

    rate_per_second: arrivals. drain_per_second: requests of the backlog to be served on top.
    """

    rate_per_second: float
    drain_per_second: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingCase:
    """What a count is judged by.

    model: laws of one replica's engine under this mix of requests. objectives: that decide; none
    while the latency model is not trusted. calibration: observed over predicted, by metric.
    largest_count: where the search ends. engines_per_replica: the model is of one engine, and a
    data-parallel pod holds several. alone_seconds: each objective's percentile for requests that
    come one at a time, by objective key, where it is known already.
    """

    model: LatencyModel
    routing: Routing
    objectives: tuple[Objective, ...]
    utilization_target_ratio: float
    kv_cache_target_ratio: float
    largest_count: int
    engines_per_replica: int = 1
    calibration: Mapping[str, float] = field(default_factory=dict)
    alone_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The least sufficient count, what each constraint needs by itself, and which one binds.

    replicas: at most the case's largest count. infeasible: objectives that no count can meet; they
    do not size.
    """

    replicas: int
    binding: Constraint
    needs: tuple[ConstraintNeed, ...]
    infeasible: tuple[Objective, ...] = ()


def replica_saturation_per_second(case: SizingCase) -> float:
    """Requests per second at which one replica, with all its engines, saturates."""
    return case.model.saturation_rate_per_second * case.engines_per_replica


class Candidates:
    """Predictions of one case under one load, each count evaluated once."""

    __slots__ = ("_predictions", "case", "load")

    def __init__(self, case: SizingCase, load: Load) -> None:
        self.case = case
        self.load = load
        self._predictions: dict[int, Prediction] = {}

    def at(self, count: int) -> Prediction:
        """The prediction for this count."""
        found = self._predictions.get(count)
        if found is None:
            self.predict((count,))
            found = self._predictions[count]
        return found

    def predict(self, counts: Iterable[int]) -> None:
        """Predict for all of these counts at once."""
        lacking = [count for count in counts if count not in self._predictions]
        if lacking:
            case = self.case
            made = case.model.predict_many(
                [self.load.rate_per_second] * len(lacking),
                [count * case.engines_per_replica for count in lacking],
                case.routing,
            )
            self._predictions.update(zip(lacking, made, strict=True))

    def fitting(self, counts: Sequence[int]) -> list[int]:
        """Those of the counts at which KV use stays within its target."""
        self.predict(counts)
        return [count for count in counts if self.fits_cache(count)]

    def meeting(self, objective: Objective, counts: Sequence[int]) -> list[int]:
        """Those of the counts at which the objective holds."""
        self.predict(counts)
        prepare([self._predictions[count] for count in counts], objective.metric)
        return [count for count in counts if self.meets(objective, count)]

    def holding(self, objectives: Sequence[Objective], counts: Sequence[int]) -> list[int]:
        """Those of the counts at which the KV cache and every objective hold."""
        held = self.fitting(counts)
        for objective in objectives:
            held = self.meeting(objective, held)
        return held

    def seconds(self, objective: Objective, count: int) -> float:
        """The calibrated percentile of the objective at this count, in seconds."""
        raw = metric_seconds(self.at(count), objective.metric, objective.percentile)
        return raw * self.case.calibration.get(objective.metric.value, 1.0)

    def meets(self, objective: Objective, count: int) -> bool:
        """Whether the objective holds at this count."""
        prediction = self.at(count)
        return prediction.stable and self.seconds(objective, count) <= objective.threshold_seconds

    def fits_cache(self, count: int) -> bool:
        """Whether KV use stays within its target at this count."""
        prediction = self.at(count)
        return (
            prediction.stable
            and prediction.kv_usage_quantile(KV_PERCENTILE) <= self.case.kv_cache_target_ratio
        )


def size(
    candidates: Candidates,
    hints: Mapping[str, int],
    likely: Sequence[int] = (),
    beside: Candidates | None = None,
) -> Sizing:
    """The least count that satisfies every constraint of the case under its load.

    hints: counts near which the search of each need begins, by need key. likely: counts that will
    be asked for later. beside: another load that will be asked about the count that is found. All
    save evaluations and change no answer.
    """
    case, load = candidates.case, candidates.load
    utilization = _utilization_need(case, load)
    starts = _starts(case, load, hints)
    _evaluate_first(candidates, starts, likely, beside)
    low, kv_start = _stability_need(case, load), starts[Constraint.KV_CACHE.value]
    needs = [
        ConstraintNeed(constraint=Constraint.UTILIZATION, replicas=utilization),
        *_backlog_need(case, load),
        ConstraintNeed(
            constraint=Constraint.KV_CACHE,
            replicas=least_holding(candidates.fitting, low, case.largest_count, kv_start),
        ),
    ]
    infeasible: list[Objective] = []
    for objective in case.objectives:
        need = _objective_need(candidates, objective, starts[objective_key(objective)])
        needs.append(need)
        if need.least_feasible is not None:
            infeasible.append(objective)
    wanted = [
        (case.largest_count if need.replicas is None else need.replicas, index)
        for index, need in enumerate(needs)
        if need.least_feasible is None
    ]
    replicas, index = max(wanted, key=lambda pair: (pair[0], -pair[1]))
    return Sizing(
        replicas=min(replicas, case.largest_count),
        binding=needs[index].constraint,
        needs=tuple(needs),
        infeasible=tuple(infeasible),
    )


def _starts(case: SizingCase, load: Load, hints: Mapping[str, int]) -> dict[str, int]:
    """Where the search of each need begins: at its hint, else at the least stable count."""
    low = _stability_need(case, load)
    keys = [Constraint.KV_CACHE.value, *(objective_key(o) for o in case.objectives)]
    return {key: min(max(hints.get(key, low), low), case.largest_count) for key in keys}


def _evaluate_first(
    candidates: Candidates,
    starts: Mapping[str, int],
    likely: Sequence[int],
    beside: Candidates | None,
) -> None:
    """Evaluate at once what the searches look at first: their starts, and one fewer."""
    low = _stability_need(candidates.case, candidates.load)
    pairs = {key: {start, max(start - 1, low)} for key, start in starts.items()}
    asked = [count for count in likely if count >= low]
    around = {count + more for count in asked for more in (-1, 0, 1)} - {0}
    candidates.predict(sorted(around.union(*pairs.values())))
    others = [] if beside is None else [beside.at(max(starts.values()))]
    by_metric: dict[LatencyMetric, set[int]] = {}
    for objective in candidates.case.objectives:
        counts = by_metric.setdefault(objective.metric, set(asked))
        counts |= pairs[objective_key(objective)]
    for metric, counts in by_metric.items():
        prepare([*(candidates.at(count) for count in sorted(counts)), *others], metric)


def need_hints(
    needs: tuple[ConstraintNeed, ...], objectives: tuple[Objective, ...]
) -> dict[str, int]:
    """Where the next search of each need begins: where this one ended."""
    hints = {}
    for need in needs:
        if need.constraint is Constraint.KV_CACHE and need.replicas is not None:
            hints[Constraint.KV_CACHE.value] = need.replicas
    sized = [need for need in needs if need.constraint in CONSTRAINT_OF_METRIC.values()]
    for objective, need in zip(objectives, sized, strict=False):
        if need.replicas is not None:
            hints[objective_key(objective)] = need.replicas
    return hints


def least_safe_count(
    candidates: Candidates,
    infeasible: tuple[Objective, ...],
    *,
    lowest: int,
    current: int,
    spare: int = 0,
) -> int:
    """The least count from lowest to current that holds under the load with spare ones lost.

    current when no lower one does. infeasible objectives do not count.
    """
    case, load = candidates.case, candidates.load
    objectives = [objective for objective in case.objectives if objective not in infeasible]
    least = max(
        _utilization_need(case, load),
        *(need.replicas or 1 for need in _backlog_need(case, load)),
        1,
    )

    def holding(counts: Sequence[int]) -> list[int]:
        left = [count - spare for count in counts if count - spare >= least]
        return [count + spare for count in candidates.holding(objectives, left)]

    found = None if lowest >= current else least_holding(holding, lowest, current - 1, lowest)
    return found or current


def greatest_rate_per_second(
    case: SizingCase,
    infeasible: tuple[Objective, ...],
    serving: int,
    hint_per_second: float | None = None,
) -> float:
    """The greatest fleet rate, per second, at which these replicas keep every constraint.

    0 when an objective fails even for a single request at a time. Exact to 0.1 % of saturation.
    infeasible objectives do not count. hint_per_second: where the search begins; it saves
    evaluations and changes no answer.
    """
    high = replica_saturation_per_second(case) * case.utilization_target_ratio * serving
    objectives = [objective for objective in case.objectives if objective not in infeasible]

    def excesses(parts: Sequence[int]) -> dict[int, float]:
        rates = [high * part / RATE_PARTS for part in parts]
        return dict(zip(parts, _excesses(case, objectives, serving, rates), strict=True))

    hint = None
    if hint_per_second is not None and high > 0:
        hint = int(hint_per_second / high * RATE_PARTS)
    return high * greatest_holding(excesses, RATE_PARTS, hint) / RATE_PARTS


def _excesses(
    case: SizingCase, objectives: Sequence[Objective], serving: int, rates: Sequence[float]
) -> list[float]:
    """The logarithm of what is most of its limit, over the limit, at each fleet rate.

    Above 0 where a constraint fails; of the constraints after the first that does nothing is known.
    """
    engines = serving * case.engines_per_replica
    predictions = case.model.predict_many(rates, [engines] * len(rates), case.routing)
    most = [
        one.kv_usage_quantile(KV_PERCENTILE) / case.kv_cache_target_ratio for one in predictions
    ]
    for objective in objectives:
        rows = [row for row, ratio in enumerate(most) if ratio <= 1.0]
        prepare([predictions[row] for row in rows], objective.metric)
        for row in rows:
            raw = metric_seconds(predictions[row], objective.metric, objective.percentile)
            seconds = raw * case.calibration.get(objective.metric.value, 1.0)
            most[row] = max(most[row], seconds / objective.threshold_seconds)
    return [math.log(ratio) if ratio > 0.0 else -math.inf for ratio in most]


def carries(
    case: SizingCase, infeasible: tuple[Objective, ...], serving: int, rate_per_second: float
) -> bool:
    """Whether these replicas keep every constraint at this fleet rate."""
    ceiling = replica_saturation_per_second(case) * case.utilization_target_ratio * serving
    if rate_per_second > ceiling:
        return False
    objectives = [objective for objective in case.objectives if objective not in infeasible]
    return _excesses(case, objectives, serving, [rate_per_second])[0] <= 0.0


def _utilization_need(case: SizingCase, load: Load) -> int:
    """Arrival rate over saturation rate stays at or below its target."""
    capacity = replica_saturation_per_second(case) * case.utilization_target_ratio
    return counted(load.rate_per_second / capacity, case.largest_count)


def _backlog_need(case: SizingCase, load: Load) -> tuple[ConstraintNeed, ...]:
    """What the arrivals and the backlog need together while it drains; nothing without one."""
    if load.drain_per_second <= 0:
        return ()
    capacity = replica_saturation_per_second(case) * DRAIN_UTILIZATION
    count = counted((load.rate_per_second + load.drain_per_second) / capacity, case.largest_count)
    return (ConstraintNeed(constraint=Constraint.BACKLOG, replicas=count),)


def _objective_need(candidates: Candidates, objective: Objective, start: int) -> ConstraintNeed:
    """Replicas that one objective asks for, or the least it could be where none are enough."""
    case, load = candidates.case, candidates.load
    constraint = CONSTRAINT_OF_METRIC[objective.metric]
    if not candidates.meets(objective, start):
        floor = _single_request_seconds(case, objective)
        if floor > objective.threshold_seconds:
            return ConstraintNeed(constraint=constraint, replicas=None, least_feasible=floor)
    low = _stability_need(case, load)
    count = least_holding(partial(candidates.meeting, objective), low, case.largest_count, start)
    least = None if count is not None else _least_of_idle_fleet(candidates, objective)
    return ConstraintNeed(constraint=constraint, replicas=count, least_feasible=least)


def _least_of_idle_fleet(candidates: Candidates, objective: Objective) -> float | None:
    """What the largest count gives where it is all but idle: no larger one would give much less.

    None where it is not: there more replicas do help.
    """
    largest = candidates.case.largest_count
    if candidates.at(largest).utilization > IDLE_UTILIZATION:
        return None
    return candidates.seconds(objective, largest)


def _single_request_seconds(case: SizingCase, objective: Objective) -> float:
    """The objective's percentile when requests come one at a time: the least there is."""
    raw = case.alone_seconds.get(objective_key(objective))
    if raw is None:
        alone = case.model.predict(IDLE_RATE_PER_SECOND, 1, case.routing)
        raw = metric_seconds(alone, objective.metric, objective.percentile)
    return raw * case.calibration.get(objective.metric.value, 1.0)


def _stability_need(case: SizingCase, load: Load) -> int:
    """The least count below saturation."""
    capacity = replica_saturation_per_second(case)
    return min(math.floor(load.rate_per_second / capacity) + 1, case.largest_count)


def counted(replicas: float, largest: int) -> int:
    """A whole number of replicas, 1 at least; a quotient such as 3.0000000001 is 3."""
    if not replicas < largest:
        return largest
    return max(1, math.ceil(replicas - 1e-9))
