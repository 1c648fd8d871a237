"""How many replicas: the least count at which every constraint holds, and which one binds."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from servingslo.models.latency import (
    LatencyMetric,
    LatencyModel,
    Objective,
    Prediction,
    Routing,
    metric_seconds,
)
from servingslo.policy.decision import ConstraintNeed
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
            rate = self.load.rate_per_second
            engines = count * self.case.engines_per_replica
            found = self.case.model.predict(rate, engines, self.case.routing)
            self._predictions[count] = found
        return found

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


def size(candidates: Candidates, hints: Mapping[str, int]) -> Sizing:
    """The least count that satisfies every constraint of the case under its load.

    hints: counts near which the search of each need begins, by need key; they save evaluations
    and change no answer.
    """
    case, load = candidates.case, candidates.load
    needs = [
        ConstraintNeed(constraint=Constraint.UTILIZATION, replicas=_utilization_need(case, load)),
        *_backlog_need(case, load),
        ConstraintNeed(
            constraint=Constraint.KV_CACHE,
            replicas=_least(candidates.fits_cache, case, load, hints.get(Constraint.KV_CACHE, 1)),
        ),
    ]
    infeasible: list[Objective] = []
    for objective in case.objectives:
        need = _objective_need(candidates, objective, hints)
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

    def holds(count: int) -> bool:
        left = count - spare
        return (
            left >= least
            and candidates.fits_cache(left)
            and all(candidates.meets(objective, left) for objective in objectives)
        )

    if lowest >= current or holds(lowest):
        return min(lowest, current)
    return _bisect(holds, lowest, current)


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

    def fails(part: int) -> bool:
        return not carries(case, infeasible, serving, high * part / RATE_PARTS)

    if not fails(RATE_PARTS):
        return high
    # Gallop from the hint to a part that fails above one that does not, then bisect.
    low, top = 0, RATE_PARTS
    if hint_per_second is not None and high > 0:
        start = min(max(int(hint_per_second / high * RATE_PARTS), 1), RATE_PARTS - 1)
        low, top = _bracket(fails, start)
    return high * (_bisect(fails, low, top) - 1) / RATE_PARTS


def carries(
    case: SizingCase, infeasible: tuple[Objective, ...], serving: int, rate_per_second: float
) -> bool:
    """Whether these replicas keep every constraint at this fleet rate."""
    ceiling = replica_saturation_per_second(case) * case.utilization_target_ratio * serving
    if rate_per_second > ceiling:
        return False
    candidates = Candidates(case, Load(rate_per_second=rate_per_second))
    return candidates.fits_cache(serving) and all(
        candidates.meets(objective, serving)
        for objective in case.objectives
        if objective not in infeasible
    )


def _bracket(fails: Callable[[int], bool], start: int) -> tuple[int, int]:
    """A part that holds (or 0) and one above it that fails (or the last), close to the start."""
    stride = 1
    if fails(start):
        top = start
        while top > 1:
            trial = max(top - stride, 1)
            if not fails(trial):
                return trial, top
            top, stride = trial, stride * 4
        return 0, top
    low = start
    while low + stride < RATE_PARTS:
        if fails(low + stride):
            return low, low + stride
        low, stride = low + stride, stride * 4
    return low, RATE_PARTS


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


def _objective_need(
    candidates: Candidates, objective: Objective, hints: Mapping[str, int]
) -> ConstraintNeed:
    """Replicas that one objective asks for, or the least it could be where none are enough."""
    case, load = candidates.case, candidates.load
    constraint = CONSTRAINT_OF_METRIC[objective.metric]
    start = max(hints.get(objective_key(objective), 1), _stability_need(case, load))
    if not candidates.meets(objective, start):
        floor = _single_request_seconds(case, objective)
        if floor > objective.threshold_seconds:
            return ConstraintNeed(constraint=constraint, replicas=None, least_feasible=floor)
    count = _least(lambda n: candidates.meets(objective, n), case, load, start)
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


def _least(holds: Callable[[int], bool], case: SizingCase, load: Load, hint: int) -> int | None:
    """The least count at which a condition holds that stays true from there on; None past the end.

    Gallops away from the hint, then bisects: a hint that is right costs two evaluations.
    """
    low, high = _stability_need(case, load), case.largest_count
    start = min(max(hint, low), high)
    if holds(start):
        below = start
        stride = 1
        while below > low:
            trial = max(below - stride, low)
            if not holds(trial):
                return _bisect(holds, trial, below)
            below, stride = trial, stride * 2
        return below
    above, stride = start, 1
    while above < high:
        trial = min(above + stride, high)
        if holds(trial):
            return _bisect(holds, above, trial)
        above, stride = trial, stride * 2
    return None


def _bisect(holds: Callable[[int], bool], failing: int, holding: int) -> int:
    """The least holding count above one that fails and at most one that holds (or is taken so)."""
    while holding - failing > 1:
        middle = (failing + holding) // 2
        if holds(middle):
            holding = middle
        else:
            failing = middle
    return holding


def counted(replicas: float, largest: int) -> int:
    """A whole number of replicas, 1 at least; a quotient such as 3.0000000001 is 3."""
    if not replicas < largest:
        return largest
    return max(1, math.ceil(replicas - 1e-9))
