"""Admission: how many requests may wait, how many may enter, and which share is shed."""

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy.special import betainc

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import RequestDemand
from servingslo.models.numerics import TINY_NUMBER

# A full engine stays at its bound all the time, so the bound lies below what percentiles allow for
# moments. Of 50 to 99 tried in simulation on crowds, ramps and mixes of lengths, 80 to 90 served
# most requests in time.
RUNNING_PERCENTILE = 85.0
# An admitted rate, and with it the bound of its batch, is kept for many ticks: one for each
# workload.
_BOUNDS_KEPT = 256


def queue_bound(drain_rate_per_second: float, wait_budget_seconds: float) -> int:
    """Most requests that may wait and still meet the objective, Q_max = μ·w, rounded down.

    drain_rate_per_second: of the replicas that are ready now, never of those ordered.
    Source: Little's law.
    """
    if drain_rate_per_second < 0 or wait_budget_seconds < 0:
        raise InvalidInputError(
            "wait_budget_seconds", (drain_rate_per_second, wait_budget_seconds), "0 or more"
        )
    return math.floor(drain_rate_per_second * wait_budget_seconds * (1.0 + TINY_NUMBER))


@lru_cache(maxsize=_BOUNDS_KEPT)
def running_bound(demand: RequestDemand, rate_per_second: float, max_num_seqs: int) -> int:
    """Return a batch size that an engine seldom exceeds at the admitted rate, at least 1.

    A batch limit alone bounds too late. The inter-token objective may break at fewer sequences than
    may run; then an overload hides in the batch, and every request in it misses. Requests in a
    processor-sharing batch with a fixed step time are negative binomial, with shape λ·t_fixed/ρ and
    ρ = λ·t_req. If that law does not exist, as at saturation, all slots may be taken.
    rate_per_second: of one engine.
    Source: F. P. Kelly, Reversibility and Stochastic Networks (1979), symmetric queues, for the
    law; the percentile is a choice, see there.
    """
    load = rate_per_second * demand.marginal_seconds
    fixed = rate_per_second * demand.fixed_seconds
    if not 0.0 < load < 1.0 or fixed <= 0.0:
        return max_num_seqs
    low, high = 1, max_num_seqs
    while low < high:
        middle = (low + high) // 2
        if betainc(fixed / load, middle + 1.0, 1.0 - load) >= RUNNING_PERCENTILE / 100.0:
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBound:
    """The bounds of the requests in flight at one replica.

    max_num_seqs, max_num_batched_tokens, saturation_rate_per_second: of one engine. engine_count:
    engines of the replica. wait_budget_seconds: how long a request may wait for a slot.
    full_batch: most sequences that should decode at once in one engine; with more, it makes more
    requests late than it serves in addition; None without an inter-token objective.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    saturation_rate_per_second: float
    wait_budget_seconds: float
    engine_count: int = 1
    full_batch: int | None = None

    @property
    def queue_limit(self) -> int:
        """Requests that may wait here, at least 1: with 0 it refuses while a slot is freed."""
        drained = self.saturation_rate_per_second * self.engine_count
        return max(1, queue_bound(drained, self.wait_budget_seconds))


def in_flight_bound(demand: RequestDemand, rate_per_second: float, bound: EngineBound) -> int:
    """Most requests at one replica: its engines' batches, prompts in prefill, and one queue.

    If there are more slots than a full batch may use, no request waits for a slot: admitted
    requests run, and no more are admitted than a full batch may have.
    rate_per_second: of one engine, at most the admissible rate.
    Source: the sum of the bounds above; simulated in docs/lab/findings.md.
    """
    decoding = running_bound(demand, rate_per_second, bound.max_num_seqs)
    prefilling = math.ceil(prefilling_count(demand, rate_per_second, bound.max_num_batched_tokens))
    # Both hold slots.
    running = min(decoding + prefilling, bound.max_num_seqs)
    in_flight = bound.engine_count * running + bound.queue_limit
    if bound.full_batch is None or bound.full_batch + prefilling >= bound.max_num_seqs:
        return in_flight
    return min(in_flight, bound.engine_count * (bound.full_batch + prefilling))


def prefilling_count(
    demand: RequestDemand, rate_per_second: float, max_num_batched_tokens: int
) -> float:
    """Return the mean prompts in prefill at one engine, λ·(c·I + ⌈I/M⌉·(a + (b + d·k)·n)).

    The law of the batch counts decoding requests: in it prefill slows the clock but occupies no
    slot. With long prompts and short outputs, requests in prefill are equally many.
    Source: Little's law.
    """
    slack = 1.0 - rate_per_second * demand.marginal_seconds
    if slack <= 0.0:
        return 0.0
    sequences = rate_per_second * demand.fixed_seconds / slack
    step = demand.step_fixed_seconds + demand.step_growth_seconds * sequences
    steps = max(math.ceil(demand.uncached_mean_tokens / max_num_batched_tokens), 1)
    return rate_per_second * (demand.prefill_mean_seconds + steps * step)


def shed_ratio(offered_rate_per_second: float, admitted_per_second: float) -> float:
    """Return the share of arrivals to refuse, max(0, 1 − λ_admitted/λ): one for all replicas.

    Coordinated on purpose: replicas that shed on their own send retries to each other.
    Source: Machine Learning Systems (V. J. Reddi), chapter "Model Serving", admission control.
    """
    if offered_rate_per_second <= 0:
        return 0.0
    return min(max(0.0, 1.0 - admitted_per_second / offered_rate_per_second), 1.0)
