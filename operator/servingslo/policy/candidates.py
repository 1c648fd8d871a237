"""What counts are judged by, and the predictions that judge them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from servingslo.models.latency import (
    LatencyModel,
    Objective,
    Prediction,
    Routing,
    metric_seconds,
    prepare,
)
from servingslo.policy.known import Asked, Recall

# Share of time that KV use stays within its target: the sum of tokens held is a quantile, because
# lengths vary; above the target there is room to the capacity before the engine preempts.
KV_PERCENTILE = 95.0
# A single request at a time, in effect: the least that any objective can be.
IDLE_RATE_PER_SECOND = 1e-6


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
class Sized:
    """What counts were judged by at a tick, and the load they were judged for."""

    case: SizingCase
    load: Load


def replica_saturation_per_second(case: SizingCase) -> float:
    """Requests per second at which one replica, with all its engines, saturates."""
    return case.model.saturation_rate_per_second * case.engines_per_replica


def asked_of(case: SizingCase, objective: Objective, count: int) -> Asked:
    """The percentile that the objective is about, of this many replicas."""
    return objective.key, count * case.engines_per_replica, case.routing


class Candidates:
    """Predictions of one case under one load, each count evaluated once.

    recall: what is known of the case's model from other loads, and is added to.
    """

    __slots__ = ("_predictions", "_verdicts", "case", "load", "recall")

    def __init__(self, case: SizingCase, load: Load, recall: Recall | None = None) -> None:
        self.case = case
        self.load = load
        self.recall = recall
        self._predictions: dict[int, Prediction] = {}
        self._verdicts: dict[tuple[str, int], bool | None] = {}

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
        undecided = [count for count in counts if self.recalled(objective, count) is None]
        self.predict(undecided)
        prepare([self._predictions[count] for count in undecided], objective.metric)
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
        if self.recall is not None:
            self.recall.add(asked_of(self.case, objective, count), self.load.rate_per_second, raw)
        return raw * self._calibration(objective)

    def told_seconds(self, objective: Objective, count: int) -> float:
        """The same for people: from known percentiles close by where there are any, to 2 %."""
        told = self._told(objective, count)
        return self.seconds(objective, count) if told is None else told

    def recalled(self, objective: Objective, count: int) -> bool | None:
        """Whether the objective holds at this count, as far as other loads tell."""
        if self.recall is None:
            return None
        key = objective.key, count
        if key not in self._verdicts:
            self._verdicts[key] = self.recall.within(
                asked_of(self.case, objective, count),
                self.load.rate_per_second,
                objective.threshold_seconds / self._calibration(objective),
            )
        return self._verdicts[key]

    def unknown(self, objective: Objective, counts: Iterable[int], told: Iterable[int]) -> set[int]:
        """Counts at which it must be evaluated whether the objective holds, or what is told."""
        asked = {count for count in counts if self.recalled(objective, count) is None}
        return asked | {count for count in told if self._told(objective, count) is None}

    def meets(self, objective: Objective, count: int) -> bool:
        """Whether the objective holds at this count."""
        recalled = self.recalled(objective, count)
        if recalled is not None:
            return recalled
        prediction = self.at(count)
        return prediction.stable and self.seconds(objective, count) <= objective.threshold_seconds

    def fits_cache(self, count: int) -> bool:
        """Whether KV use stays within its target at this count."""
        prediction = self.at(count)
        return (
            prediction.stable
            and prediction.kv_usage_quantile(KV_PERCENTILE) <= self.case.kv_cache_target_ratio
        )

    def _told(self, objective: Objective, count: int) -> float | None:
        if self.recall is None:
            return None
        raw = self.recall.seconds(asked_of(self.case, objective, count), self.load.rate_per_second)
        return None if raw is None else raw * self._calibration(objective)

    def _calibration(self, objective: Objective) -> float:
        return self.case.calibration.get(objective.metric, 1.0)
