"""Find the least replica count at which every constraint holds, and which constraint binds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from servingslo.models.fleet.crossing import IDLE_UTILIZATION
from servingslo.models.fleet.frontier import (
    GREATEST_UTILIZATION,
    Fleet,
    Frontier,
    Limit,
    whole_count,
)
from servingslo.models.fleet.latency import LatencyModel, Objective, Routing
from servingslo.models.fleet.objective_metrics import ROW_OF, metric_seconds
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.decision_parts import ConstraintNeed
from servingslo.reasons import Constraint

# Share of time that KV use stays within its target. The sum of tokens held is a quantile because
# lengths vary. Above the target, capacity remains before the engine preempts.
KV_PERCENTILE = 95.0
# While a backlog drains the fleet may run this close to saturation: the greatest utilization that
# the resource accepts as a target.
DRAIN_UTILIZATION = GREATEST_UTILIZATION
# Needs that are a quotient are reported in full, however few are allowed; no fleet is this large.
UNBOUNDED_COUNT = 1_000_000
# At least half of the slow pods' requests keep an objective, however few requests they get.
LEAST_SLOW_PERCENTILE = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load that the fleet has to carry.

    rate_per_second: arrivals. drain_per_second: requests of the backlog, served in addition.
    """

    rate_per_second: float
    drain_per_second: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """Pods of a fleet that are slower than the others.

    share_ratio: of the replicas. ratio: how many times as long their steps take.

    An engine whose steps take r times as long is the same engine on a clock r times as slow: it
    keeps a threshold T at a rate λ as a usual one keeps T/r at r·λ. Least-loaded routing keeps as
    many running at each, so a slow pod gets 1/r of the requests of a usual one.
    """

    share_ratio: float = 0.0
    ratio: float = 1.0

    def traffic_ratio(self, routing: Routing) -> float:
        """Share of the requests that go to the slow pods."""
        if routing is Routing.RANDOM:
            return self.share_ratio
        return self.share_ratio / (self.share_ratio + (1.0 - self.share_ratio) * self.ratio)

    def load_factor(self, routing: Routing) -> float:
        """How many times as loaded a slow pod is, on its own clock, as a pod of an even fleet."""
        if not self.share_ratio:
            return 1.0
        return self.ratio * self.traffic_ratio(routing) / self.share_ratio

    def percentile(self, percentile: float, routing: Routing) -> float:
        """The percentile of slow pods at which no more of all requests miss than allowed."""
        if not self.share_ratio:
            return percentile
        beyond = (100.0 - percentile) / self.traffic_ratio(routing)
        return max(100.0 - beyond, LEAST_SLOW_PERCENTILE)


EVEN = Slowness()


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingCase:
    """The constraints on a count.

    frontier: of one replica's engine under this mix of requests. objectives: those that decide;
    none while the latency model is not trusted. calibration: observed over predicted, by metric.
    slowness: of pods that are slower than the others. capacity_ratio: what replicas are measured to
    serve over what the law says, see `saturation`. length_error_ratio: standard error of the mean
    lengths, and so of what a request alone takes. largest_count: where the search ends.
    engines_per_replica: the frontier is of engines, and a data-parallel pod holds several. tried:
    the count that serves while saturation is beyond the reach of the law: at each decision its
    utilization then asks for one more or one fewer at most; None if the law is known there.
    """

    frontier: Frontier
    routing: Routing
    objectives: tuple[Objective, ...]
    utilization_target_ratio: float
    kv_cache_target_ratio: float
    largest_count: int
    engines_per_replica: int = 1
    calibration: Mapping[str, float] = field(default_factory=dict)
    slowness: Slowness = EVEN
    capacity_ratio: float = 1.0
    length_error_ratio: float = 0.0
    tried: int | None = None

    @property
    def load_factor(self) -> float:
        """Factor on the rate if some pods are slow, or if less is served than the law says."""
        return self.slowness.load_factor(self.routing) / self.capacity_ratio

    def percentile(self, percentile: float) -> float:
        """The percentile that decides: of the slow pods if there are any."""
        return self.slowness.percentile(percentile, self.routing)

    @property
    def model(self) -> LatencyModel:
        """The latency model of one engine."""
        return self.frontier.model

    @property
    def saturation_per_second(self) -> float:
        """Requests per second at which one replica, with all its engines, saturates."""
        one = self.model.saturation_rate_per_second * self.engines_per_replica
        return one / self.load_factor

    @property
    def kv_limit(self) -> Limit:
        """The limit on KV use."""
        return Limit(None, KV_PERCENTILE, self.kv_cache_target_ratio)

    @property
    def infeasible(self) -> tuple[Objective, ...]:
        """Objectives that a request alone misses: no count keeps them."""
        return tuple(o for o in self.objectives if self.unloaded_seconds(o) > o.threshold_seconds)

    def limit(self, objective: Objective) -> Limit:
        """The largest prediction of the model at which the objective is kept.

        What a request alone leaves for waiting is known no better than the lengths. Less than that
        error of it asks for any number of replicas, so no less is planned with.
        """
        seconds = objective.threshold_seconds
        if self.length_error_ratio > 0.0 and ROW_OF[objective.metric].waits:
            alone = self.unloaded_seconds(objective)
            if alone <= seconds:
                seconds = max(seconds, alone * (1.0 + self.length_error_ratio))
        seconds = seconds / self.ratio(objective.metric) / self.slowness.ratio
        return Limit(objective.metric, self.percentile(objective.percentile), seconds)

    def ratio(self, metric: LatencyMetric) -> float:
        """Observed over predicted percentile of a metric."""
        return self.calibration.get(metric, 1.0)

    def fleet(self, count: int) -> Fleet:
        """The engines of this many replicas."""
        return Fleet(count * self.engines_per_replica, self.routing)

    def predicted(self, count: int, rate_per_second: float) -> Prediction:
        """The prediction for this many replicas at a fleet rate, evaluated without the frontier."""
        return self.model.predict(self.load_factor * rate_per_second, *self.fleet(count))

    def seconds_of(
        self, metric: LatencyMetric, percentile: float, count: int, rate_per_second: float
    ) -> float:
        """The calibrated value of any percentile of a metric, as read from the frontier."""

        def measure(prediction: Prediction) -> float:
            return metric_seconds(prediction, metric, self.percentile(percentile))

        rate = self.load_factor * rate_per_second
        found = self.frontier.reading(measure, rate, self.fleet(count))
        return found * self.ratio(metric) * self.slowness.ratio

    def unloaded_seconds(self, objective: Objective) -> float:
        """The calibrated percentile of a request alone: no count is faster."""
        alone = self.frontier.unloaded_seconds(objective.metric, objective.percentile)
        return alone * (self.ratio(objective.metric) * self.slowness.ratio)

    def greatest_rate_per_second(self, objective: Objective, count: int) -> float:
        """The greatest fleet rate at which the objective holds."""
        found = self.frontier.greatest_rate_per_second(self.limit(objective), self.fleet(count))
        return found / self.load_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The case and the load for which counts were sized at a tick."""

    case: SizingCase
    load: Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The least sufficient count, what each constraint needs by itself, and which one binds.

    replicas: at most the case's largest count. infeasible: objectives that no count can meet; they
    do not affect the count.
    """

    replicas: int
    binding: Constraint
    needs: tuple[ConstraintNeed, ...]
    infeasible: tuple[Objective, ...] = ()


def size(case: SizingCase, load: Load) -> Sizing:
    """The least count that satisfies every constraint of the case under its load."""
    fitting, *counts = _least_counts(
        case, [case.kv_limit, *map(case.limit, case.objectives)], load, high=case.largest_count
    )
    needs = [
        ConstraintNeed(constraint=Constraint.UTILIZATION, replicas=_utilization_need(case, load)),
        *_backlog_need(case, load),
        ConstraintNeed(
            constraint=Constraint.KV_CACHE,
            replicas=fitting,
            more_than=case.largest_count if fitting is None else None,
        ),
        *(
            _objective_need(case, load, objective, count)
            for objective, count in zip(case.objectives, counts, strict=True)
        ),
    ]
    wanted = [
        (case.largest_count if need.replicas is None else need.replicas, index)
        for index, need in enumerate(needs)
        if not need.infeasible
    ]
    replicas, index = max(wanted, key=lambda pair: (pair[0], -pair[1]))
    return Sizing(
        replicas=min(replicas, case.largest_count),
        binding=needs[index].constraint,
        needs=tuple(needs),
        infeasible=infeasible_objectives(needs),
    )


def infeasible_objectives(needs: Iterable[ConstraintNeed]) -> tuple[Objective, ...]:
    """The objectives that no count meets."""
    return tuple(need.objective for need in needs if need.infeasible and need.objective is not None)


def least_safe_count(
    case: SizingCase,
    load: Load,
    infeasible: tuple[Objective, ...],
    *,
    lowest: int,
    current: int,
    spare: int = 0,
) -> int:
    """The least count from lowest to current that holds under the load with spare ones lost.

    current if no lower one does. infeasible objectives do not count.
    """
    least = max(
        lowest - spare,
        _utilization_need(case, load),
        *(need.replicas or 1 for need in _backlog_need(case, load)),
        1,
    )
    found = _least_counts(
        case, _limits(case, infeasible), load, low=least, high=current - 1 - spare, start=least
    )
    counts = [count for count in found if count is not None]
    return max(counts) + spare if len(counts) == len(found) else current


def size_of_serving(case: SizingCase, load: Load, serving: int) -> tuple[SizingCase, Sizing]:
    """The sizing of a fleet with so many replicas, and the case that it holds for.

    Pods that are slower are a larger share of fewer: a count below the present one is judged with
    their share of it, so that it is not ordered back at once.
    """
    sizing = size(case, load)
    slow = case.slowness.share_ratio * serving
    if not slow or sizing.replicas >= serving:
        return case, sizing
    share = min(slow / max(sizing.replicas, 1), 1.0)
    case = replace(case, slowness=replace(case.slowness, share_ratio=share))
    again = size(case, load)
    return case, replace(again, replicas=min(max(again.replicas, sizing.replicas), serving))


def carried_rate_per_second(
    case: SizingCase, infeasible: tuple[Objective, ...], serving: int
) -> float:
    """The greatest fleet rate at which these replicas keep every constraint.

    0 if an objective fails even for a single request at a time. infeasible ones do not count.
    """
    most = case.load_factor * ceiling_rate_per_second(case, serving)
    limits, fleet = _limits(case, infeasible), case.fleet(serving)
    return case.frontier.carried_rate_per_second(limits, fleet, most) / case.load_factor


def ceiling_rate_per_second(case: SizingCase, serving: int) -> float:
    """The fleet rate at the utilization target: these replicas carry no more."""
    return case.saturation_per_second * case.utilization_target_ratio * serving


def _limits(case: SizingCase, infeasible: Sequence[Objective]) -> list[Limit]:
    """Limits on KV use and on the objectives that can be kept."""
    return [case.kv_limit, *(case.limit(o) for o in case.objectives if o not in infeasible)]


def _least_counts(
    case: SizingCase,
    limits: Sequence[Limit],
    load: Load,
    *,
    high: int,
    low: int = 1,
    start: int | None = None,
) -> list[int | None]:
    return case.frontier.least_counts(
        limits,
        case.load_factor * load.rate_per_second,
        engines_per_replica=case.engines_per_replica,
        routing=case.routing,
        low=low,
        high=high,
        start=start,
    )


def _utilization_need(case: SizingCase, load: Load) -> int:
    """Replicas at which arrival rate over saturation rate is at or below its target."""
    capacity = case.saturation_per_second * case.utilization_target_ratio
    count = whole_count(load.rate_per_second / capacity, UNBOUNDED_COUNT)
    return count if case.tried is None else min(max(count, case.tried - 1), case.tried + 1)


def _backlog_need(case: SizingCase, load: Load) -> tuple[ConstraintNeed, ...]:
    """Replicas for arrivals and backlog together while the backlog drains; nothing without one."""
    if load.drain_per_second <= 0:
        return ()
    capacity = case.saturation_per_second * DRAIN_UTILIZATION
    count = whole_count((load.rate_per_second + load.drain_per_second) / capacity, UNBOUNDED_COUNT)
    return (ConstraintNeed(constraint=Constraint.BACKLOG, replicas=count),)


def _objective_need(
    case: SizingCase, load: Load, objective: Objective, count: int | None
) -> ConstraintNeed:
    """Replicas that one objective needs, or its least possible value if no count is enough."""
    constraint = ROW_OF[objective.metric].constraint
    if count is not None:
        return ConstraintNeed(constraint=constraint, replicas=count, objective=objective)
    least = _least_seconds(case, load, objective)
    more = case.largest_count if least is None else None
    return ConstraintNeed(
        constraint=constraint,
        replicas=None,
        least_feasible=least,
        more_than=more,
        objective=objective,
    )


def _least_seconds(case: SizingCase, load: Load, objective: Objective) -> float | None:
    """The least value of an objective, if that is too large; None if replicas would help.

    It is the time of a request alone, or the value at the largest count when nearly idle: a larger
    count would not reduce it much.
    """
    alone = case.unloaded_seconds(objective)
    if alone > objective.threshold_seconds:
        return alone
    largest = case.largest_count * case.saturation_per_second
    if load.rate_per_second > IDLE_UTILIZATION * largest:
        return None
    return case.seconds_of(
        objective.metric, objective.percentile, case.largest_count, load.rate_per_second
    )
