"""How many replicas: the least count at which every constraint holds, and which one binds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from servingslo.models.judging import LatencyLimit, LoadLimits, judged
from servingslo.models.latency import LatencyMetric, Objective, Prediction, prepare
from servingslo.models.objective_metrics import ROW_OF, ROW_OF_CONSTRAINT
from servingslo.policy.candidates import (
    IDLE_RATE_PER_SECOND,
    KV_PERCENTILE,
    Candidates,
    Load,
    SizingCase,
    asked_of,
    replica_saturation_per_second,
)
from servingslo.policy.decision import ConstraintNeed
from servingslo.policy.known import Recall
from servingslo.policy.searching import Crossing, greatest_holding, least_holding
from servingslo.reasons import Constraint

# While a backlog drains the fleet may run this close to saturation: the greatest utilization that
# the resource accepts as a target.
DRAIN_UTILIZATION = 0.95
# Equal parts of the range of rates up to saturation: the answer is exact to 0.1 % of it.
RATE_PARTS = 1024
# Below this utilization a replica is all but idle: by M/M/1 a wait is a tenth of a service time,
# and even without it a percentile falls by no more than that.
IDLE_UTILIZATION = 0.1
# Needs that are a quotient are told in full, however few are allowed; no fleet has as many.
UNBOUNDED_COUNT = 1_000_000


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
    low = _least_count(case, load)
    starts = _starts(case, low, hints)
    _evaluate_first(candidates, low, starts, likely, beside)
    kv_start = starts[Constraint.KV_CACHE.value]
    fitting = least_holding(candidates.fitting, low, case.largest_count, kv_start)
    needs = [
        ConstraintNeed(constraint=Constraint.UTILIZATION, replicas=utilization),
        *_backlog_need(case, load),
        ConstraintNeed(
            constraint=Constraint.KV_CACHE,
            replicas=fitting,
            more_than=case.largest_count if fitting is None else None,
        ),
    ]
    infeasible: list[Objective] = []
    for objective in case.objectives:
        need = _objective_need(candidates, objective, low, starts[objective.key])
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


def _starts(case: SizingCase, low: int, hints: Mapping[str, int]) -> dict[str, int]:
    """Where the search of each need begins: at its hint, else at the least count of all."""
    keys = [Constraint.KV_CACHE.value, *(o.key for o in case.objectives)]
    return {key: min(max(hints.get(key, low), low), case.largest_count) for key in keys}


def _evaluate_first(
    candidates: Candidates,
    low: int,
    starts: Mapping[str, int],
    likely: Sequence[int],
    beside: Candidates | None,
) -> None:
    """Evaluate at once what the searches look at first: their starts, and one fewer."""
    pairs = {key: {start, max(start - 1, low)} for key, start in starts.items()}
    asked = [count for count in likely if count >= low]
    around = {count + more for count in asked for more in (-1, 0, 1)} - {0}
    candidates.predict(sorted(around.union(*pairs.values())))
    by_metric: dict[LatencyMetric, dict[tuple[int, bool], Prediction]] = {}
    other = max(starts.values())
    for objective in candidates.case.objectives:
        found = by_metric.setdefault(objective.metric, {})
        for count in candidates.unknown(objective, pairs[objective.key], asked):
            found[count, False] = candidates.at(count)
        if beside is not None and beside.recalled(objective, other) is None:
            found[other, True] = beside.at(other)
    for metric, predictions in by_metric.items():
        prepare([predictions[key] for key in sorted(predictions)], metric)


def need_hints(
    needs: tuple[ConstraintNeed, ...], objectives: tuple[Objective, ...]
) -> dict[str, int]:
    """Where the next search of each need begins: where this one ended."""
    hints = {}
    for need in needs:
        if need.constraint is Constraint.KV_CACHE and need.replicas is not None:
            hints[Constraint.KV_CACHE.value] = need.replicas
    sized = [need for need in needs if need.constraint in ROW_OF_CONSTRAINT]
    for objective, need in zip(objectives, sized, strict=False):
        if need.replicas is not None:
            hints[objective.key] = need.replicas
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


class GreatestRate(NamedTuple):
    """The greatest fleet rate, per second, that keeps every constraint.

    steepness: rise of the logarithm of what is most of its limit there, over that of the rate; None
    where no more than the ceiling of utilization was asked for.
    """

    per_second: float
    steepness: float | None = None


def greatest_rate(
    case: SizingCase,
    infeasible: tuple[Objective, ...],
    serving: int,
    hint: GreatestRate | None = None,
    recall: Recall | None = None,
) -> GreatestRate:
    """The greatest fleet rate at which these replicas keep every constraint.

    0 when an objective fails even for a single request at a time. Exact to 0.1 % of saturation.
    infeasible objectives do not count. hint: where the search begins; it saves evaluations and
    changes no answer. recall: what is evaluated is added to it.
    """
    high = replica_saturation_per_second(case) * case.utilization_target_ratio * serving
    objectives = [objective for objective in case.objectives if objective not in infeasible]
    limits = _limits(case, objectives)

    def excess(part: int) -> float:
        return _excess(case, objectives, limits, serving, high * part / RATE_PARTS, recall)

    near = None
    if hint is not None and high > 0:
        near = Crossing(int(hint.per_second / high * RATE_PARTS), hint.steepness)
    found = greatest_holding(excess, RATE_PARTS, near)
    return GreatestRate(high * found.part / RATE_PARTS, found.steepness)


def _excess(
    case: SizingCase,
    objectives: Sequence[Objective],
    limits: LoadLimits,
    serving: int,
    rate_per_second: float,
    recall: Recall | None = None,
) -> float:
    """The logarithm of what is most of its limit, over the limit, at a fleet rate.

    Above 0 where a constraint fails; of the constraints after the first that does nothing is known.
    """
    engines = serving * case.engines_per_replica
    usage, *seconds = judged(case.model, rate_per_second, engines, case.routing, limits)
    most = usage / limits.kv_usage_ratio
    for objective, limit, raw in zip(objectives, limits.latencies, seconds, strict=False):
        if recall is not None:
            recall.add(asked_of(case, objective, serving), rate_per_second, raw)
        most = max(most, raw / limit.seconds)
    return math.log(most) if most > 0.0 else -math.inf


def _limits(case: SizingCase, objectives: Sequence[Objective]) -> LoadLimits:
    """What KV use and latencies may reach, by the model."""
    return LoadLimits(
        kv_percentile=KV_PERCENTILE,
        kv_usage_ratio=case.kv_cache_target_ratio,
        latencies=tuple(
            LatencyLimit(
                objective.metric,
                objective.percentile,
                objective.threshold_seconds / case.calibration.get(objective.metric, 1.0),
            )
            for objective in objectives
        ),
    )


def carries(
    case: SizingCase, infeasible: tuple[Objective, ...], serving: int, rate_per_second: float
) -> bool:
    """Whether these replicas keep every constraint at this fleet rate."""
    ceiling = replica_saturation_per_second(case) * case.utilization_target_ratio * serving
    if rate_per_second > ceiling:
        return False
    objectives = [objective for objective in case.objectives if objective not in infeasible]
    limits = _limits(case, objectives)
    return _excess(case, objectives, limits, serving, rate_per_second) <= 0.0


def _utilization_need(case: SizingCase, load: Load) -> int:
    """Arrival rate over saturation rate stays at or below its target."""
    capacity = replica_saturation_per_second(case) * case.utilization_target_ratio
    return counted(load.rate_per_second / capacity, UNBOUNDED_COUNT)


def _backlog_need(case: SizingCase, load: Load) -> tuple[ConstraintNeed, ...]:
    """What the arrivals and the backlog need together while it drains; nothing without one."""
    if load.drain_per_second <= 0:
        return ()
    capacity = replica_saturation_per_second(case) * DRAIN_UTILIZATION
    count = counted((load.rate_per_second + load.drain_per_second) / capacity, UNBOUNDED_COUNT)
    return (ConstraintNeed(constraint=Constraint.BACKLOG, replicas=count),)


def _objective_need(
    candidates: Candidates, objective: Objective, low: int, start: int
) -> ConstraintNeed:
    """Replicas that one objective asks for, or the least it could be where none are enough.

    low: the least count that is looked at.
    """
    case = candidates.case
    constraint = ROW_OF[objective.metric].constraint
    if not candidates.meets(objective, start):
        floor = _single_request_seconds(candidates, objective)
        if floor > objective.threshold_seconds:
            return ConstraintNeed(constraint=constraint, replicas=None, least_feasible=floor)
    count = least_holding(partial(candidates.meeting, objective), low, case.largest_count, start)
    if count is not None:
        return ConstraintNeed(constraint=constraint, replicas=count)
    least = _least_of_idle_fleet(candidates, objective)
    more = case.largest_count if least is None else None
    return ConstraintNeed(
        constraint=constraint, replicas=None, least_feasible=least, more_than=more
    )


def _least_of_idle_fleet(candidates: Candidates, objective: Objective) -> float | None:
    """What the largest count gives where it is all but idle: no larger one would give much less.

    None where it is not: there more replicas do help.
    """
    largest = candidates.case.largest_count
    if candidates.at(largest).utilization > IDLE_UTILIZATION:
        return None
    return candidates.seconds(objective, largest)


def _single_request_seconds(candidates: Candidates, objective: Objective) -> float:
    """The objective's percentile when requests come one at a time: the least there is."""
    case = candidates.case
    raw = case.alone_seconds.get(objective.key)
    if raw is not None:
        return raw * case.calibration.get(objective.metric, 1.0)
    alone = Candidates(case, Load(rate_per_second=IDLE_RATE_PER_SECOND), candidates.recall)
    return alone.told_seconds(objective, 1)


def _least_count(case: SizingCase, load: Load) -> int:
    """The least count that is looked at: no plan has a higher utilization, whatever is stated.

    Laws close to saturation take several times as long to evaluate.
    """
    capacity = replica_saturation_per_second(case) * DRAIN_UTILIZATION
    return counted(load.rate_per_second / capacity, case.largest_count)


def counted(replicas: float, largest: int) -> int:
    """A whole number of replicas, 1 at least; a quotient such as 3.0000000001 is 3."""
    if not replicas < largest:
        return largest
    return max(1, math.ceil(replicas - 1e-9))
