"""The production planner as an autoscaler of the simulator: `plan()` and nothing else."""

from dataclasses import dataclass, replace

from scipy import stats

from servingslo.models.latency import LatencyMetric, Objective
from servingslo.models.service_time import EngineLimits
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import (
    AdmissionMode,
    BatchingMode,
    BatchingTargets,
    Limits,
    Observation,
    ReplicaTargets,
    ScaleTarget,
    Targets,
)
from servingslo.policy.planner import plan
from servingslo.policy.state import PlannerState
from servingslo.sim.cluster import Wanted
from servingslo.sim.pods import WORKLOAD_NAME

# A full engine stays at its bound all the time, so the bound lies below what percentiles allow for
# moments. Of 50 to 99 tried on crowds, ramps and mixes, 80 to 90 served most requests in time.
_IN_FLIGHT_PERCENTILE = 85.0
_TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name=WORKLOAD_NAME)


def benchmark_targets(
    *,
    ttft_seconds: float = 1.0,
    tpot_seconds: float = 0.05,
    percentile: float = 99.0,
    max_replicas: int | None = None,
) -> Targets:
    """The resource of the benchmark: two objectives at one percentile, defaults otherwise."""
    return Targets(
        target=_TARGET,
        objectives=(
            Objective(
                metric=LatencyMetric.TTFT, percentile=percentile, threshold_seconds=ttft_seconds
            ),
            Objective(
                metric=LatencyMetric.TPOT, percentile=percentile, threshold_seconds=tpot_seconds
            ),
        ),
        replicas=ReplicaTargets(maximum=max_replicas),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Which of the planner's decisions are carried out beside replicas."""

    batching: bool = False
    admission: bool = False


class Production:
    """The planner with its state, its decisions carried out as the controller would.

    decisions: all of them, for reports. An admission limit is put on running + waiting of each
    engine: what runs at the rate that may be admitted, and what may wait beside it.
    """

    def __init__(self, targets: Targets, knobs: Knobs | None = None) -> None:
        self._knobs = knobs or Knobs()
        batching = BatchingMode.AUTO if self._knobs.batching else BatchingMode.OFF
        admission = AdmissionMode.RECOMMEND if self._knobs.admission else AdmissionMode.OFF
        self._targets = replace(
            targets,
            batching=replace(targets.batching, mode=batching)
            if targets.batching
            else BatchingTargets(mode=batching),
            admission_mode=admission,
        )
        self._limits = Limits(batching_apply_enabled=self._knobs.batching)
        self._state = PlannerState()
        self.decisions: list[Decision] = []

    def decide(self, observation: Observation) -> Wanted:
        """What the planner decides, as far as it may be carried out."""
        decision, self._state = plan(
            observation, self._targets, self._limits, self._state, observation.time_seconds
        )
        self.decisions.append(decision)
        return Wanted(
            replicas=decision.replicas_after if decision.apply_replicas else None,
            limits=_limits(observation, decision) if decision.batching.apply else None,
            max_queued=_bound(observation, decision),
        )


def _limits(observation: Observation, decision: Decision) -> EngineLimits | None:
    engines = [engine for pod in observation.pods for engine in pod.engines]
    capacity = next((e.kv_capacity_tokens for e in engines if e.kv_capacity_tokens), None)
    seqs = decision.batching.recommended_max_num_seqs
    tokens = decision.batching.recommended_max_num_batched_tokens
    if capacity is None or seqs is None or tokens is None:
        return None
    return EngineLimits(
        max_num_seqs=seqs, max_num_batched_tokens=tokens, kv_capacity_tokens=capacity
    )


def _bound(observation: Observation, decision: Decision) -> int | None:
    """Requests that may be in one engine: those that run when it takes all it can, and a queue."""
    queue = decision.admission.queue_limit
    engines = [engine for pod in observation.pods for engine in pod.engines]
    seqs = [engine.max_num_seqs for engine in engines if engine.max_num_seqs is not None]
    if queue is None or not seqs:
        return None
    in_flight = _in_flight(decision)
    return min(max(seqs), in_flight or max(seqs)) + queue


def _in_flight(decision: Decision) -> int | None:
    """What an engine's batch seldom exceeds at the rate that may be admitted.

    A batch limit alone bounds too late: where the inter-token objective breaks at fewer sequences
    than may run, an overload hides in the batch and every request in it misses.
    Source: requests in a processor-sharing batch with a fixed step time are negative binomial, mean
    λ·O·a/(1 − ρ), variance 1/(1 − ρ) times that (models.md, continuous batching).
    """
    law, demand = decision.model.law, decision.demand
    rate, ready = decision.admission.admitted_rate_per_second, decision.replicas.ready
    prompt, output = demand.prompt_tokens_mean, demand.output_tokens_mean
    if law is None or rate is None or prompt is None or output is None or not ready:
        return None
    rate /= ready
    context = prompt + output / 2
    per_token = law.step_per_sequence_seconds + law.context_per_token_seconds * context
    computed = prompt * (1.0 - (demand.cached_ratio or 0.0))
    load = rate * (output * per_token + computed * law.prefill_per_token_seconds)
    fixed = rate * output * law.step_fixed_seconds
    if not 0 < load < 1 or fixed <= 0:
        return None
    # With spread F and mean L, scipy's n is L/(F − 1) and its p is 1/F; F = 1/(1 − ρ).
    shape = fixed / load
    return max(1, int(stats.nbinom.ppf(_IN_FLIGHT_PERCENTILE / 100.0, shape, 1.0 - load)))
