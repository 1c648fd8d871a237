"""The clairvoyant oracle: the cost of a fleet that knows the trace in advance.

It has one parameter: the work per second that a replica can take while the objectives are met.
Each interval has just enough replicas for the work that arrives in it, ready in time and without
other friction. The parameter is the largest value with which the trace meets its share. So the
oracle is a real schedule, not a bound: by smoothing over intervals, another schedule may be a few
per cent cheaper.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from servingslo.models.engine.service_time import FloatArray
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec, SlowPods
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.replicas.backend import Backend
from servingslo_lab.sim.standard import SHARE_TARGET, TPOT_SECONDS, TTFT_SECONDS
from servingslo_lab.sim.traces.trace import Trace

INTERVAL_SECONDS = 60.0
_STEPS = 9
# Upper limit of work per replica: no engine of the catalogue overlaps more requests than this.
_REPLICA_BUSY_BATCH = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """The oracle's schedule and its run.

    replicas: of each interval. work_per_replica: allowed seconds of work a second.
    """

    replicas: tuple[int, ...]
    work_per_replica: float
    result: RunResult

    @property
    def peak(self) -> int:
        """The largest replica count of the schedule."""
        return max(self.replicas)


class Schedule:
    """An autoscaler that follows a schedule, from the start of each interval."""

    def __init__(self, replicas: tuple[int, ...]) -> None:
        self._replicas = replicas

    def decide(self, observation: Observation) -> Wanted:
        """The replica count of the interval that begins."""
        interval = int(observation.time_seconds / INTERVAL_SECONDS + 0.5)
        return Wanted(replicas=self._replicas[min(interval, len(self._replicas) - 1)])


def work_seconds(fleet: FleetSpec, trace: Trace) -> FloatArray:
    """Engine time of each request, including its share of the fixed step time.

    Source: the closed form of continuous batching, t_req + O·a/n at a full batch n.
    """
    law, limits = fleet.engine_law, fleet.engine_limits
    prompt = trace.prompt_tokens.astype(np.float64)
    output = trace.output_tokens.astype(np.float64)
    held = (output * (prompt + output / 2)).sum() / output.sum()
    batch = min(limits.max_num_seqs, limits.kv_capacity_tokens / held, _REPLICA_BUSY_BATCH)
    steps = output * (law.step_fixed_seconds / batch + law.step_per_sequence_seconds)
    prefill = (1.0 - fleet.cached_ratio) * prompt * law.prefill_per_token_seconds
    context = (output - 1.0) * (prompt + output / 2) * law.context_per_token_seconds
    work: FloatArray = steps + prefill + context
    return work


def interval_work(fleet: FleetSpec, trace: Trace) -> FloatArray:
    """Arriving work in each interval, in seconds a second."""
    place = (trace.arrival_seconds // INTERVAL_SECONDS).astype(np.int64)
    count = int(np.ceil(trace.duration_seconds / INTERVAL_SECONDS))
    total = np.bincount(place, weights=work_seconds(fleet, trace), minlength=count)
    lasted = np.full(len(total), INTERVAL_SECONDS)
    lasted[-1] = trace.duration_seconds - (len(total) - 1) * INTERVAL_SECONDS
    work: FloatArray = total / np.maximum(lasted, 1.0)
    return work


def find_oracle(
    fleet: FleetSpec,
    trace: Trace,
    *,
    share: float = SHARE_TARGET,
    ttft_seconds: float = TTFT_SECONDS,
    tpot_seconds: float = TPOT_SECONDS,
    latency_seconds: float = math.inf,
    backend: Backend | None = None,
) -> Oracle | None:
    """The cheapest schedule of this kind that meets the share; None if none does."""
    work = interval_work(fleet, trace)

    def attempt(allowed: float) -> Oracle:
        replicas = schedule(work, allowed)
        friction_free = replace(
            fleet,
            initial_replicas=replicas[0],
            max_replicas=None,
            max_queued=None,
            gpu_quota=None,
            drain=True,
            drain_seconds=None,
            mean_seconds_to_failure=None,
            slow_pods=SlowPods(),
            cold_start=ColdStart(mean_seconds=1e-3, variation_ratio=0.0),
            scrape_interval_seconds=INTERVAL_SECONDS,
            scrape_lag_seconds=0.0,
        )
        result = simulate(friction_free, trace, Schedule(replicas), seed=0, backend=backend)
        return Oracle(replicas=replicas, work_per_replica=allowed, result=result)

    low, high = 0.2, 1.1
    best: Oracle | None = None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        oracle = attempt(middle)
        met = oracle.result.share_in_slo(ttft_seconds, tpot_seconds, latency_seconds)
        if met >= share:
            low = middle
            if best is None or oracle.result.replica_seconds < best.result.replica_seconds:
                best = oracle
        else:
            high = middle
    return best


def schedule(work: FloatArray, allowed: float) -> tuple[int, ...]:
    """Replicas of each interval, for its own work and the rest of the previous interval's.

    Requests continue into the next interval, so its count must not fall at once below the previous
    need; the mean of both is enough.
    """
    before = np.concatenate([work[:1], work[:-1]])
    needed = np.maximum(work, (work + before) / 2) / allowed
    return tuple(int(n) for n in np.maximum(np.ceil(needed - 1e-9), 1))
