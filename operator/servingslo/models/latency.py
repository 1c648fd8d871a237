"""Percentiles of TTFT, TPOT, queue time and latency of a fleet, and the load that meets them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from servingslo.errors import InvalidInputError
from servingslo.models import capacity, inter_token, output_laws
from servingslo.models.capacity import concurrency_cap, saturation_rate_per_second
from servingslo.models.kv_cache import HeldTokens, held_tokens, kv_usage_quantile
from servingslo.models.objectives import LatencyMetric, Objective, Routing
from servingslo.models.occupancy import (
    Occupancy,
    OccupancyBound,
    followed_bursts,
    occupancy,
    queue_factor,
    variability_factor,
)
from servingslo.models.output_laws import AtomLaw, GapMoments
from servingslo.models.prompt_work import prompt_work
from servingslo.models.service_time import (
    EngineLimits,
    RequestDemand,
    ServiceLaw,
    request_demand,
)
from servingslo.models.transform import TabulatedLaw
from servingslo.models.waiting import time_to_first_token_law
from servingslo.models.workload import Workload

__all__ = [
    "LatencyMetric",
    "LatencyModel",
    "Objective",
    "Prediction",
    "ReplicaGroup",
    "Routing",
    "admitted_rate_per_second",
    "concurrency_cap",
    "meets",
    "metric_seconds",
    "predict",
    "saturation_rate_per_second",
]

_LEAST_RATE = 1e-9
_MODEL_CACHE_SIZE = 64
_BISECTION_STEPS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """replica_count identical replicas behind one router."""

    law: ServiceLaw
    limits: EngineLimits
    replica_count: int
    routing: Routing = Routing.POOLED


class Prediction:
    """Percentiles of a group under a load; laws are evaluated when first asked for.

    stable: the load is below saturation. work_ratio: λ·t_req of a replica. utilization: λ/λ_sat of
    a replica. running_mean: running sequences of a replica. kv_usage_ratio: mean share of the KV
    cache in use. concurrency_cap: running sequences at saturation.
    saturation_rate_per_second: of one replica. Unstable groups have math.inf everywhere.
    """

    __slots__ = (
        "_gaps",
        "_held",
        "_latency",
        "_model",
        "_occupancy",
        "_rate",
        "_tpot",
        "_ttft",
        "concurrency_cap",
        "saturation_rate_per_second",
        "stable",
        "utilization",
        "work_ratio",
    )

    def __init__(
        self, model: "LatencyModel", rate_per_second: float, law_of_running: Occupancy | None
    ) -> None:
        self._model = model
        self._rate = rate_per_second
        self._occupancy = law_of_running
        self._gaps: GapMoments | None = None
        self._ttft: TabulatedLaw | None = None
        self._tpot: AtomLaw | None = None
        self._latency: AtomLaw | None = None
        self.stable = law_of_running is not None
        self.work_ratio = capacity.work_ratio(model.demand, rate_per_second)
        self.concurrency_cap = model.cap
        self.saturation_rate_per_second = model.saturation_rate_per_second
        self.utilization = rate_per_second / model.saturation_rate_per_second

    @property
    def running_mean(self) -> float:
        """Mean running sequences of one replica; inf when unstable.

        By Little's law from the time that a request runs, prefill and gaps, and at most the cap.
        """
        if self._occupancy is None:
            return math.inf
        moments, gaps = self._gap_moments(), self._model.gaps
        decoding = float((gaps.weights * gaps.gaps) @ moments.mean) * (1.0 - gaps.single_share)
        return min(self._rate * (moments.prefill_seconds + decoding), self._model.cap)

    @property
    def running_variance(self) -> float:
        """Variance over time of the running sequences of one replica; inf when unstable."""
        return self._occupancy.variance if self._occupancy else math.inf

    @property
    def wait_probability(self) -> float:
        """Share of arrivals that find every slot taken; 1 when unstable."""
        return self._occupancy.wait_probability if self._occupancy else 1.0

    @property
    def kv_usage_ratio(self) -> float:
        """Mean share of the KV cache in use, 0 to 1; inf when unstable."""
        if self._occupancy is None:
            return math.inf
        return min(self._occupancy.mean * self._model.held.mean / self._model.kv_capacity, 1.0)

    def kv_usage_quantile(self, percentile: float) -> float:
        """Share of the KV cache not exceeded this percent of the time; inf when unstable."""
        if self._occupancy is None:
            return math.inf
        return kv_usage_quantile(
            self._model.held,
            self._occupancy.mean,
            self._occupancy.variance,
            self._model.cap,
            self._model.kv_capacity,
            percentile,
        )

    @property
    def itl_mean_seconds(self) -> float:
        """Mean time between tokens over all gaps; inf when unstable.

        A gap is sampled in proportion to the sequences that run in its step.
        """
        if self._occupancy is None:
            return math.inf
        moments = self._gap_moments()
        per_gap = self._model.gaps.weights * self._model.gaps.gaps
        return float(per_gap @ moments.mean / per_gap.sum())

    def ttft_seconds(self, percentile: float) -> float:
        """Time to first token not exceeded by this percent of requests; inf when unstable."""
        law = self._ttft_law()
        return law.quantile(_share(percentile)) if law else math.inf

    def tpot_seconds(self, percentile: float) -> float:
        """Time per output token not exceeded by this percent of requests; inf when unstable.

        Over requests with at least two tokens.
        """
        law = self._tpot_law()
        return law.quantile(_share(percentile)) if law else math.inf

    def queue_seconds(self, percentile: float) -> float:
        """Wait for a slot not exceeded by this percent of requests; inf when unstable.

        The rest of the step in progress is no wait for a slot, it is part of TTFT.
        """
        if self._occupancy is None:
            return math.inf
        beyond = 1.0 - _share(percentile)
        waiting = self._occupancy.wait_probability
        if waiting <= beyond:
            return 0.0
        return math.log(waiting / beyond) / self._occupancy.wait_rate_per_second

    def latency_seconds(self, percentile: float) -> float:
        """End-to-end latency not exceeded by this percent of requests; inf when unstable."""
        law = self._latency_law()
        return law.quantile(_share(percentile)) if law else math.inf

    def share_within(
        self,
        ttft_seconds: float | None,
        tpot_seconds: float | None,
        latency_seconds: float | None = None,
    ) -> float:
        """Share of requests that meet every stated threshold, 0 to 1; 0 when unstable.

        Assumes that TTFT, TPOT and latency of a request are independent. They are positively
        correlated through the load, so the estimate is a little low (safe).
        """
        if self._occupancy is None:
            return 0.0
        share = 1.0
        if ttft_seconds is not None and (law := self._ttft_law()):
            share *= law.share_within(ttft_seconds)
        if tpot_seconds is not None and (tpot := self._tpot_law()):
            several = 1.0 - self._model.gaps.single_share
            share *= 1.0 - several * (1.0 - tpot.share_within(tpot_seconds))
        if latency_seconds is not None and (latency := self._latency_law()):
            share *= latency.share_within(latency_seconds)
        return min(max(share, 0.0), 1.0)  # rounding of the inversion

    def _gap_moments(self) -> GapMoments:
        assert self._occupancy is not None  # noqa: S101 - callers have checked stability
        if self._gaps is None:
            model = self._model
            steps = model.prompts.mean_steps(model.budget_tokens - self._occupancy.mean)
            self._gaps = inter_token.gap_moments(
                model.demand, model.gaps, self._occupancy, self._rate, model.budget_tokens, steps
            )
        return self._gaps

    def _ttft_law(self) -> TabulatedLaw | None:
        if self._ttft is None and self._occupancy is not None:
            model = self._model
            self._ttft = time_to_first_token_law(
                model.demand, model.prompts, self._occupancy, self._rate, model.budget_tokens
            )
        return self._ttft

    def _tpot_law(self) -> AtomLaw | None:
        if self._tpot is None and self._occupancy is not None:
            model, demand = self._model, self._model.demand
            least = demand.step_fixed_seconds + demand.step_growth_seconds
            # Sequences that decode take a token of the budget each.
            per_token = demand.prefill_per_token_seconds
            most = (
                demand.step_fixed_seconds
                + per_token * model.budget_tokens
                + max(demand.step_growth_seconds - per_token, 0.0) * model.cap
            )
            moments = self._gap_moments()
            states = inter_token.states_of_bursts(
                demand, model.gaps, self._occupancy, self._rate, model.budget_tokens, moments
            )
            self._tpot = output_laws.time_per_output_token_law(
                model.gaps, moments, states, least, most
            )
        return self._tpot

    def _latency_law(self) -> AtomLaw | None:
        first = self._ttft_law()
        if self._latency is None and first is not None:
            demand = self._model.demand
            self._latency = output_laws.end_to_end_law(
                self._model.gaps,
                self._gap_moments(),
                first.cumulants(),
                demand.step_fixed_seconds + demand.step_growth_seconds,
            )
        return self._latency


class LatencyModel:
    """The laws of one engine configuration and one mix of requests, prepared for many loads.

    Everything that does not depend on the arrival rate or the replica count is computed once.
    """

    __slots__ = (
        "budget_binds",
        "budget_tokens",
        "cap",
        "correlation_seconds",
        "demand",
        "dispersion",
        "gaps",
        "held",
        "kv_capacity",
        "prompts",
        "saturation_rate_per_second",
    )

    def __init__(self, workload: Workload, law: ServiceLaw, limits: EngineLimits) -> None:
        self.demand: RequestDemand = request_demand(workload, law)
        full = capacity.saturation(workload, law, limits)
        self.cap = full.sequence_count
        self.saturation_rate_per_second = full.rate_per_second
        self.budget_tokens = float(limits.max_num_batched_tokens)
        self.dispersion = workload.arrival_dispersion
        self.correlation_seconds = workload.arrival_correlation_seconds
        self.budget_binds = full.budget_binds
        self.kv_capacity = limits.kv_capacity_tokens
        self.held: HeldTokens = held_tokens(workload, limits.kv_block_tokens)
        self.gaps = output_laws.output_gaps(workload.output)
        self.prompts = prompt_work(
            workload.prompt, workload.cached_ratio, law.prefill_per_token_seconds
        )

    def predict(
        self, arrival_rate_per_second: float, replica_count: int, routing: Routing
    ) -> Prediction:
        """Prediction for this fleet arrival rate on replica_count replicas.

        Raises: InvalidInputError for a negative rate or fewer than one replica.
        """
        if replica_count < 1:
            raise InvalidInputError("replica_count", replica_count, "1 or more")
        if not arrival_rate_per_second >= 0:
            raise InvalidInputError("arrival_rate_per_second", arrival_rate_per_second, "0 or more")
        rate = max(arrival_rate_per_second / replica_count, _LEAST_RATE)
        if rate >= self.saturation_rate_per_second:
            return Prediction(self, rate, None)
        # Replicas that share arrivals at random each see the bursts of the fleet thinned out.
        excess = (self.dispersion - 1.0) / replica_count
        pool = replica_count if routing is Routing.POOLED else 1
        return Prediction(self, rate, self._running(rate, pool, excess))

    def _running(self, rate_per_second: float, pool_count: int, excess: float) -> Occupancy:
        bursts = followed_bursts(
            self.demand, rate_per_second, excess, self.correlation_seconds, pool_count, self.cap
        )
        followed = excess if bursts is None else bursts.relaxed_excess
        dispersion = 1.0 + followed * pool_count
        bound = OccupancyBound(
            cap=self.cap,
            saturation_rate_per_second=self.saturation_rate_per_second,
            pool_count=pool_count,
            queue_factor=queue_factor(
                self.demand, self.cap, dispersion, budget_binds=self.budget_binds
            ),
            bursts=bursts,
        )
        factor = variability_factor(self.demand, rate_per_second, dispersion)
        return occupancy(self.demand, rate_per_second, bound, factor)


@lru_cache(maxsize=_MODEL_CACHE_SIZE)
def _prepared(workload_at_one: Workload, law: ServiceLaw, limits: EngineLimits) -> LatencyModel:
    return LatencyModel(workload_at_one, law, limits)


def latency_model(workload: Workload, law: ServiceLaw, limits: EngineLimits) -> LatencyModel:
    """The prepared model of this mix on this engine; recent ones are kept."""
    return _prepared(workload.at_rate(1.0), law, limits)


def predict(workload: Workload, group: ReplicaGroup) -> Prediction:
    """Prediction for this workload on this group."""
    model = latency_model(workload, group.law, group.limits)
    return model.predict(workload.arrival_rate_per_second, group.replica_count, group.routing)


def metric_seconds(prediction: Prediction, metric: LatencyMetric, percentile: float) -> float:
    """The predicted percentile of a metric, in seconds."""
    if metric is LatencyMetric.TTFT:
        return prediction.ttft_seconds(percentile)
    if metric is LatencyMetric.TPOT:
        return prediction.tpot_seconds(percentile)
    if metric is LatencyMetric.LATENCY:
        return prediction.latency_seconds(percentile)
    return prediction.queue_seconds(percentile)


def meets(prediction: Prediction, objectives: Sequence[Objective]) -> bool:
    """Whether the prediction is stable and every objective holds."""
    return prediction.stable and all(
        metric_seconds(prediction, o.metric, o.percentile) <= o.threshold_seconds
        for o in objectives
    )


def admitted_rate_per_second(
    workload: Workload,
    group: ReplicaGroup,
    objectives: Sequence[Objective],
    utilization_limit: float = 1.0,
) -> float:
    """Largest fleet arrival rate, per second, at which this group meets every objective.

    0 when an objective fails even for a single request at a time. utilization_limit: most
    utilization allowed, in (0, 1].
    """
    model = latency_model(workload, group.law, group.limits)
    ceiling = model.saturation_rate_per_second * group.replica_count * utilization_limit
    low, high = 0.0, ceiling
    if not meets(model.predict(low, group.replica_count, group.routing), objectives):
        return 0.0
    for _ in range(_BISECTION_STEPS):
        middle = 0.5 * (low + high)
        if meets(model.predict(middle, group.replica_count, group.routing), objectives):
            low = middle
        else:
            high = middle
    return low


def _share(percentile: float) -> float:
    if not 0 < percentile < 100:
        raise InvalidInputError("percentile", percentile, "between 0 and 100, in percent")
    return percentile / 100.0
