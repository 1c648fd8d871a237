"""Percentiles of TTFT, TPOT, queue time and latency of a fleet, and the load that meets them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from servingslo.errors import InvalidInputError
from servingslo.models import capacity
from servingslo.models.batch_model import BatchPrediction, BatchServer
from servingslo.models.capacity import concurrency_cap, saturation_rate_per_second
from servingslo.models.kv_cache import held_tokens
from servingslo.models.load_laws import EngineLaws, load_laws
from servingslo.models.objective_metrics import metric_seconds, prepare
from servingslo.models.objectives import LatencyMetric, Objective, Routing
from servingslo.models.occupancy import NO_BUDGET, BudgetBound, service_dispersion
from servingslo.models.output_laws import output_gaps
from servingslo.models.prediction import Prediction
from servingslo.models.prompt_work import prompt_work
from servingslo.models.replica_load import FleetLaw
from servingslo.models.service_time import (
    EngineLimits,
    ServiceLaw,
    request_demand,
)
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
    "forget_models",
    "meets",
    "metric_seconds",
    "predict",
    "prepare",
    "saturation_rate_per_second",
]

# Mixes that are evaluated in turn by one process, with what is tried for them.
_MODEL_CACHE_SIZE = 64
# Requests per second of a fleet without any: one in thirty years.
_LEAST_RATE = 1e-9
# Halvings of the range up to saturation: to 6e-8 of it.
_BISECTION_STEPS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """replica_count identical replicas behind one router."""

    law: ServiceLaw
    limits: EngineLimits
    replica_count: int
    routing: Routing = Routing.POOLED


class LatencyModel:
    """The laws of one engine configuration and one mix of requests, prepared for many loads.

    Everything that does not depend on the arrival rate or the replica count is computed once.
    batches: of an engine that serves dynamic batches; then it alone predicts.
    """

    __slots__ = (
        "batches",
        "cap",
        "demand",
        "engine",
        "saturation_rate_per_second",
    )

    def __init__(self, workload: Workload, law: ServiceLaw, limits: EngineLimits) -> None:
        demand = self.demand = request_demand(workload, law)
        full = capacity.saturation(workload, law, limits)
        self.cap = full.sequence_count
        self.saturation_rate_per_second = full.rate_per_second
        budget, per_token = float(limits.max_num_batched_tokens), demand.prefill_per_token_seconds
        correlation = workload.arrival_correlation_seconds
        binds = full.budget_binds
        fleet = FleetLaw(
            cap=self.cap,
            running_cap=float(limits.max_num_seqs) if binds else self.cap,
            saturation_rate_per_second=full.rate_per_second,
            service_dispersion=service_dispersion(demand, self.cap, budget_binds=binds),
            dispersion=workload.arrival_dispersion,
            correlation_seconds=math.nan if correlation is None else correlation,
            budget=BudgetBound(budget, self.cap) if binds else NO_BUDGET,
        )
        # Sequences that decode take a token of the budget each.
        growth = max(demand.step_growth_seconds - per_token, 0.0)
        self.engine = EngineLaws(
            demand=demand,
            fleet=fleet,
            gaps=output_gaps(workload.output),
            prompts=prompt_work(workload.prompt, workload.cached_ratio, per_token),
            budget_tokens=budget,
            least_step_seconds=demand.step_fixed_seconds + demand.step_growth_seconds,
            most_step_seconds=demand.step_fixed_seconds + per_token * budget + growth * self.cap,
            cap=self.cap,
            saturation_rate_per_second=self.saturation_rate_per_second,
            held=held_tokens(workload, limits.kv_block_tokens),
            kv_capacity_tokens=limits.kv_capacity_tokens,
        )
        self.batches = None if limits.batcher is None else BatchServer(law, limits.batcher)
        if self.batches is not None:
            self.cap = self.batches.cap
            self.saturation_rate_per_second = self.batches.saturation_rate_per_second

    @property
    def metrics(self) -> frozenset[LatencyMetric]:
        """Those that there are percentiles of."""
        return (Prediction if self.batches is None else BatchPrediction).metrics

    def predict(
        self, arrival_rate_per_second: float, replica_count: int, routing: Routing
    ) -> Prediction:
        """Prediction for this fleet arrival rate on replica_count replicas.

        Raises: InvalidInputError for a negative rate or fewer than one replica.
        """
        return self.predict_many([arrival_rate_per_second], [replica_count], routing)[0]

    def predict_many(
        self,
        arrival_rates_per_second: Sequence[float],
        replica_counts: Sequence[int],
        routing: Routing,
    ) -> list[Prediction]:
        """A prediction for each pair of a fleet arrival rate and a number of replicas.

        Raises: as `predict`.
        """
        rates = [
            _replica_rate_per_second(rate, count)
            for rate, count in zip(arrival_rates_per_second, replica_counts, strict=True)
        ]
        engine = self.engine
        if self.batches is not None:
            return [BatchPrediction(engine, self.batches, rate) for rate in rates]
        laws = load_laws(engine, rates, replica_counts, pooled=routing is Routing.POOLED)
        return [Prediction(engine, rate, law) for rate, law in zip(rates, laws, strict=True)]


def _replica_rate_per_second(arrival_rate_per_second: float, replica_count: int) -> float:
    """The rate of one of these replicas."""
    if replica_count < 1:
        raise InvalidInputError("replica_count", replica_count, "1 or more")
    if not arrival_rate_per_second >= 0:
        raise InvalidInputError("arrival_rate_per_second", arrival_rate_per_second, "0 or more")
    return max(arrival_rate_per_second / replica_count, _LEAST_RATE)


@lru_cache(maxsize=_MODEL_CACHE_SIZE)
def _prepared(workload_at_one: Workload, law: ServiceLaw, limits: EngineLimits) -> LatencyModel:
    return LatencyModel(workload_at_one, law, limits)


def latency_model(workload: Workload, law: ServiceLaw, limits: EngineLimits) -> LatencyModel:
    """The prepared model of this mix on this engine; recent ones are kept."""
    return _prepared(workload.at_rate(1.0), law, limits)


def forget_models() -> None:
    """Prepare each model anew that is asked for from now on, as after a start."""
    _prepared.cache_clear()


def predict(workload: Workload, group: ReplicaGroup) -> Prediction:
    """Prediction for this workload on this group."""
    model = latency_model(workload, group.law, group.limits)
    return model.predict(workload.arrival_rate_per_second, group.replica_count, group.routing)


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
