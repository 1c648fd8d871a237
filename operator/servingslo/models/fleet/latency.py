"""Percentiles of TTFT, TPOT, queue time and latency of a fleet."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from servingslo.errors import InvalidInputError
from servingslo.models.engine import capacity
from servingslo.models.engine.capacity import concurrency_cap, saturation_rate_per_second
from servingslo.models.engine.kv_cache import held_tokens
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw, request_demand
from servingslo.models.fleet.batch_model import BatchPrediction, BatchServer
from servingslo.models.fleet.load_laws import EngineLaws, load_laws
from servingslo.models.fleet.objective_metrics import metric_seconds, prepare
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.fleet.tangents import Tangents
from servingslo.models.objectives import LatencyMetric, Objective, Routing
from servingslo.models.running.occupancy import NO_BUDGET, BudgetBound, service_dispersion
from servingslo.models.running.replica_load import FleetLaw
from servingslo.models.tokens.output_laws import output_gaps
from servingslo.models.waits.prompt_work import prompt_work
from servingslo.models.workload import Workload

__all__ = [
    "LatencyMetric",
    "LatencyModel",
    "Objective",
    "Prediction",
    "Routing",
    "concurrency_cap",
    "forget_models",
    "metric_seconds",
    "prepare",
    "saturation_rate_per_second",
]

# Mixes that one process evaluates in turn, including trial mixes.
_MODEL_CACHE_SIZE = 64
# Lengths among them: trials of batch limits share the lengths of one mix.
_LENGTHS_CACHE_SIZE = 16
# Requests per second used for a fleet without any: one in thirty years.
_LEAST_RATE = 1e-9

# By the rates of a replica, each among so many, and whether they share one queue.
Predictions = Callable[[Sequence[float], Sequence[int], bool], list[Prediction]]


class LatencyModel:
    """The laws of one engine configuration and one mix of requests, prepared for many loads.

    Everything that does not depend on the arrival rate or the replica count is computed once.
    predictions: the seam between engines whose requests share steps, and those that serve whole
    requests in batches.
    """

    __slots__ = ("cap", "demand", "engine", "metrics", "predictions", "saturation_rate_per_second")

    def __init__(self, workload: Workload, law: ServiceLaw, limits: EngineLimits) -> None:
        full = capacity.saturation(workload, law, limits)
        budget = float(limits.max_num_batched_tokens)
        demand = self.demand = request_demand(workload, law, full.sequence_count, budget)
        cap = full.sequence_count
        per_token = demand.prefill_per_token_seconds
        correlation = workload.arrival_correlation_seconds
        binds = full.budget_binds
        fleet = FleetLaw(
            cap=cap,
            running_cap=float(limits.max_num_seqs) if binds else cap,
            saturation_rate_per_second=full.rate_per_second,
            service_dispersion=service_dispersion(demand, cap, budget_binds=binds),
            dispersion=workload.arrival_dispersion,
            correlation_seconds=math.nan if correlation is None else correlation,
            budget=BudgetBound(budget, cap) if binds else NO_BUDGET,
        )
        # Each decoding sequence takes one token of the budget.
        growth = max(demand.step_growth_seconds - per_token, 0.0)
        least = request_demand(workload, law)
        self.engine = EngineLaws(
            demand=demand,
            fleet=fleet,
            gaps=_output_gaps(workload.output),
            prompts=_prompt_work(*workload.prefilled, per_token),
            budget_tokens=budget,
            least_step_seconds=least.step_fixed_seconds + least.step_growth_seconds,
            most_step_seconds=demand.step_fixed_seconds + per_token * budget + growth * cap,
            cap=cap,
            saturation_rate_per_second=full.rate_per_second,
            held=held_tokens(workload, limits.kv_block_tokens),
            kv_capacity_tokens=limits.kv_capacity_tokens,
            tangents=Tangents(workload, law, limits, cap) if law.bends else None,
        )
        self.cap, self.metrics = cap, Prediction.metrics
        self.saturation_rate_per_second = full.rate_per_second
        self.predictions: Predictions = partial(_predict_steps, self.engine)
        if limits.batcher is not None:
            server = BatchServer(self.engine, law, limits.batcher)
            self.cap, self.metrics = server.cap, BatchPrediction.metrics
            self.saturation_rate_per_second = server.saturation_rate_per_second
            self.predictions = server.predictions

    def predict(
        self, arrival_rate_per_second: float, replica_count: int, routing: Routing
    ) -> Prediction:
        """Return the prediction for this fleet arrival rate on replica_count replicas.

        Raises: InvalidInputError for a negative rate or fewer than one replica.
        """
        return self.predict_many([arrival_rate_per_second], [replica_count], routing)[0]

    def predict_many(
        self,
        arrival_rates_per_second: Sequence[float],
        replica_counts: Sequence[int],
        routing: Routing,
    ) -> list[Prediction]:
        """Return a prediction for each pair of a fleet arrival rate and a replica count.

        Raises: as `predict`.
        """
        rates = [
            _replica_rate_per_second(rate, count)
            for rate, count in zip(arrival_rates_per_second, replica_counts, strict=True)
        ]
        return self.predictions(rates, replica_counts, routing is Routing.POOLED)


def _predict_steps(
    engine: EngineLaws, rates: Sequence[float], replica_counts: Sequence[int], pooled: bool
) -> list[Prediction]:
    """Of an engine whose running requests share steps: continuous batching."""
    laws = load_laws(engine, rates, replica_counts, pooled=pooled)
    return [Prediction(engine, rate, law) for rate, law in zip(rates, laws, strict=True)]


def _replica_rate_per_second(arrival_rate_per_second: float, replica_count: int) -> float:
    """Return the rate of one of these replicas."""
    if replica_count < 1:
        raise InvalidInputError("replica_count", replica_count, "1 or more")
    if not arrival_rate_per_second >= 0:
        raise InvalidInputError("arrival_rate_per_second", arrival_rate_per_second, "0 or more")
    return max(arrival_rate_per_second / replica_count, _LEAST_RATE)


_output_gaps = lru_cache(maxsize=_LENGTHS_CACHE_SIZE)(output_gaps)
_prompt_work = lru_cache(maxsize=_LENGTHS_CACHE_SIZE)(prompt_work)


@lru_cache(maxsize=_MODEL_CACHE_SIZE)
def _prepare(workload_at_one: Workload, law: ServiceLaw, limits: EngineLimits) -> LatencyModel:
    return LatencyModel(workload_at_one, law, limits)


def latency_model(workload: Workload, law: ServiceLaw, limits: EngineLimits) -> LatencyModel:
    """Return the prepared model of this mix on this engine; recent ones are kept."""
    return _prepare(workload.at_rate(1.0), law, limits)


def forget_models() -> None:
    """Forget all prepared models, as after a start."""
    for kept in (_prepare, _output_gaps, _prompt_work):
        kept.cache_clear()
