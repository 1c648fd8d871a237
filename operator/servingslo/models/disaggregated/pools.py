"""One pool of a pair: its engine, its bounds, and the counts that it needs by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from servingslo.models.fleet.crossing import IDLE_UTILIZATION
from servingslo.models.fleet.frontier import Fleet, Frontier, Limit, whole_count
from servingslo.models.fleet.objective_metrics import metric_seconds
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.numerics import ROUNDING
from servingslo.models.objectives import LatencyMetric, Objective, Routing


class Needs(NamedTuple):
    """What one pool needs without the other.

    replicas: the least allowed count. enough: whether it suffices; else it is the largest allowed.
    infeasible: objectives that no count meets; they do not affect the count.
    """

    replicas: int
    enough: bool
    infeasible: tuple[Objective, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolModel:
    """Equal replicas of one role.

    frontier: of one engine, under the requests of this role (`workloads`). price: of one replica,
    in any unit that both pools share. least, most: allowed counts. utilization_ceiling_ratio: most
    utilization. kv_ceiling_ratio, kv_percentile: the KV cache in use, None without a limit.
    calibration: observed over predicted, by metric of this pool.
    """

    frontier: Frontier
    routing: Routing = Routing.POOLED
    engines_per_replica: int = 1
    price: float = 1.0
    least: int = 1
    most: int = 64
    utilization_ceiling_ratio: float = 0.85
    kv_ceiling_ratio: float | None = None
    kv_percentile: float = 95.0
    calibration: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def ceiling_per_second(self) -> float:
        """The greatest rate of one replica under the ceiling of utilization."""
        saturation = self.frontier.model.saturation_rate_per_second
        return saturation * self.engines_per_replica * self.utilization_ceiling_ratio

    def ratio(self, metric: LatencyMetric) -> float:
        """Observed over predicted percentile of a metric."""
        return self.calibration.get(metric, 1.0)

    def predictions(
        self, counts: Sequence[int], rates_per_second: Sequence[float]
    ) -> list[Prediction]:
        """Return the pool with these replica counts, each at its rate."""
        engines = [count * self.engines_per_replica for count in counts]
        return self.frontier.model.predict_many(rates_per_second, engines, self.routing)

    def seconds(self, prediction: Prediction, objective: Objective) -> float:
        """Return the calibrated percentile of this pool alone."""
        found = metric_seconds(prediction, objective.metric, objective.percentile)
        return found * self.ratio(objective.metric)

    def carried_per_second(
        self, thresholds_seconds: Mapping[Objective, float], count: int
    ) -> dict[Objective, float]:
        """Return the greatest rate of this many replicas, by objective with its threshold."""
        fleet = Fleet(count * self.engines_per_replica, self.routing)
        rows = {
            one: (Limit(one.metric, one.percentile, seconds / self.ratio(one.metric)), fleet)
            for one, seconds in thresholds_seconds.items()
        }
        self.frontier.solve(rows.values())
        return {one: self.frontier.greatest_rate_per_second(*row) for one, row in rows.items()}

    def limits(self, objectives: Sequence[Objective]) -> list[Limit]:
        """Return the limits on the KV cache, if any, and on these objectives of this pool alone."""
        limits = [
            Limit(one.metric, one.percentile, one.threshold_seconds / self.ratio(one.metric))
            for one in objectives
        ]
        if self.kv_ceiling_ratio is not None:
            limits.insert(0, Limit(None, self.kv_percentile, self.kv_ceiling_ratio))
        return limits

    def needs_alone(self, objectives: Sequence[Objective], rate_per_second: float) -> Needs:
        """Return what the ceilings and these objectives of this pool alone need."""
        limits = self.limits(objectives)
        counts = self.frontier.least_counts(
            limits,
            rate_per_second,
            engines_per_replica=self.engines_per_replica,
            routing=self.routing,
            low=self.least,
            high=self.most,
        )
        first = len(limits) - len(objectives)
        never = tuple(
            objective
            for objective, count in zip(objectives, counts[first:], strict=True)
            if count is None and self._infeasible(objective, rate_per_second)
        )
        kept = [one for one in objectives if one not in never]
        needs = counts[:first] + [counts[first + objectives.index(one)] for one in kept]
        busy = rate_per_second / self.ceiling_per_second
        return Needs(
            replicas=max(
                self.least,
                whole_count(busy, self.most),
                *(self.most if count is None else count for count in needs),
            ),
            enough=busy <= self.most * (1.0 + ROUNDING) and None not in needs,
            infeasible=never,
        )

    def idle(self, rate_per_second: float) -> bool:
        """Whether the largest count is almost idle, so that no further replica helps."""
        saturation = self.frontier.model.saturation_rate_per_second * self.engines_per_replica
        return rate_per_second <= IDLE_UTILIZATION * saturation * self.most

    def _infeasible(self, objective: Objective, rate_per_second: float) -> bool:
        alone = self.frontier.unloaded_seconds(objective.metric, objective.percentile)
        if alone * self.ratio(objective.metric) > objective.threshold_seconds:
            return True
        return self.idle(rate_per_second)
