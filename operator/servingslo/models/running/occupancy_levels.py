"""Occupancy levels of a pool: the requests that an arrival finds at its least loaded replica.

Law: balance of flows between levels of join-the-shortest-queue; the number of requests in a pool is
negative binomial.
Source: P. H. Brill, Level Crossing Methods in Stochastic Models (2008), chapter 1.
Assumes: the number in the pool is that of its law of running sequences, and its prompts.
Fails: pools in which arrivals find idle replicas: TPOT p95 of long prompts with outputs of a few
tokens up to a quarter late.
Shown by: `make validate`, "long prompts, outputs of a few tokens"; the guard's long-context and
document bursts cost 2 and 9 % more without it.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from servingslo.models.engine.service_time import RequestDemand
from servingslo.models.numerics import ALMOST_ONE, TINY_SECONDS

# Pools are not idle this many deviations below their mean. A Poisson law is close to this.
# Measured: 9 deviations move no percentile by more than 0.02 %.
_IDLE_DEVIATIONS = 6.0
# A replica that always runs more than this is never idle.
_BUSY = 2.0
# Shares of arrivals that move no percentile below p99.9.
_NEGLIGIBLE_IDLE = 1e-4
# Pools with fewer requests per replica are described by levels, others by the mean. Measured: with
# 3 in place of 4 gaps of twelve replicas are 2 % longer, of outputs of 30 tokens 0.4 %.
_FEW = 4.0


class Pool(NamedTuple):
    """Properties of a pool that decide what arrivals find.

    pool_count: replicas. rate_per_second: of one of them. mean, variance: of the running sequences
    of one replica. mean_step: seconds of a step. prefill_steps: mean number of steps of a prompt.
    """

    pool_count: int
    rate_per_second: float
    mean: float
    variance: float
    mean_step: float
    prefill_steps: float


class Found(NamedTuple):
    """What arrivals of a pool find at their replica.

    free: share that meets no prefill there, 0 to 1. delayed: mean number of requests there that
    wait for the arrival's prefill. early: share of a stay that is before the first token. few:
    probability that the pool holds so few requests that levels describe them, see `most_few`.
    """

    free: float
    delayed: float
    early: float
    few: float


# For a pool that always has requests at every replica.
NEVER_IDLE = Found(0.0, 0.0, 0.0, 0.0)


class Requests(NamedTuple):
    """The requests of a pool, see `requests_of`.

    mean, excess: of their number, and the excess of its variance as a share of the mean. arriving:
    per second, in the whole pool. first, prefill, alone: seconds of a request that meets no other:
    to its first token, of prefill, and in all.
    """

    mean: float
    excess: float
    arriving: float
    first: float
    prefill: float
    alone: float


class Averages(NamedTuple):
    """Means over the number of requests in a pool.

    seen: requests at the replica of an arrival. idle: share that finds an idle one. few:
    probability of so few that levels describe them. busy: share of the replicas that have any.
    """

    seen: float
    idle: float
    few: float
    busy: float


def level_at_arrival(demand: RequestDemand, pool: Pool) -> Found:
    """Return what arrivals of a pool find at the least loaded of its replicas.

    Prompts are at λ·T of the busy replicas, T their prefill, and a pool sends fewer requests to a
    replica with a prompt. So among arrivals that find a replica busy, the share that meets its
    steps is the share that finds prompts, relative to these λ·T.
    """
    requests = requests_of(demand, pool)
    if requests.mean <= 0.0 or pool.mean - _IDLE_DEVIATIONS * math.sqrt(pool.variance) > _BUSY:
        return NEVER_IDLE
    averages = averages_of(pool.pool_count, requests)
    if averages.idle < _NEGLIGIBLE_IDLE:
        return NEVER_IDLE
    # Some of the requests found are prompts, in proportion to their part of a stay. Those that
    # decode leave in the steps until these prompts are done.
    prompts = averages.seen * min(requests.first * requests.arriving / requests.mean, 1.0)
    gaps = max(demand.output_mean_tokens - 1.0, 1.0)
    leaving = (1.0 + prompts * pool.prefill_steps) / gaps
    delayed = averages.seen * max(1.0 - leaving, 0.0)
    avoided = 0.0
    if pool.pool_count > 1 and requests.first > 0.0:
        meeting = prompts * averages.busy / (pool.rate_per_second * requests.first)
        avoided = averages.few * max(1.0 - averages.idle - meeting, 0.0)
    before = requests.first * (1.0 + prompts)
    stay = requests.alone + requests.first * prompts + requests.prefill * delayed
    return Found(
        averages.idle + avoided,
        delayed,
        before / stay,
        1.0 if averages.few > ALMOST_ONE else averages.few,
    )


def averages_of(pool_count: int, requests: Requests) -> Averages:
    """Return means over the number of requests in the pool."""
    spread = math.sqrt(requests.mean * (1.0 + requests.excess))
    most = math.ceil(max(requests.mean + _IDLE_DEVIATIONS * spread, 3.0 * pool_count))
    number = np.arange(most + 1.0)
    seen, idle = found_at(number, float(pool_count), requests)
    busy = np.minimum(number / pool_count, 1.0)
    shape, success = law_of_number(requests.mean, requests.excess)
    logs = gammaln(number + shape) - gammaln(number + 1.0) + number * math.log1p(-success)
    shares = np.exp(logs - logs.max())
    table = np.stack([seen, idle, number < most_few(pool_count), busy])
    return Averages(*(table @ shares / shares.sum()).tolist())


def found_at(number: Any, replicas: float, requests: Requests) -> tuple[Any, Any]:
    """Return the requests at an arrival's replica and the chance that it is idle, by pool total.

    A balanced pool of c with M requests has ⌊M/c⌋ or one more at each replica, N of them with the
    lower number k. An arrival finds k, unless a replica with k has just lost one. These losses have
    the rate N·μ_k, and the next arrival finds each, at Λ = cλ. As departures are as frequent as
    arrivals, M falls below k·c before with the chance 2^−(M−kc), and there arrivals find k − 1
    anyway. k requests need k·c·I of prefill and the steps of one, which they share: μ_k = k/(k·c·I
    + O·s).

    Pools are out of balance. If all have two or more, a loss leaves one behind until the next
    arrival: with x requests more than two each and y replicas with one, y grows by 2·(c − x − 2y)
    and falls by 2c + x and by y, in units of one request's rate of leaving. 3x·E[y] + 5·E[y²] = 2c;
    with E[y²] as in half a normal law, π/2·E[y]², E[y] = (√(9x² + 20πc) − 3x)/(5π). A single
    replica has no such imbalance: factor 1 − 1/c. While M is below, the replicas left at x = 0 are
    added to the others.
    """
    steps = requests.alone - requests.prefill
    level = np.floor(number / replicas)
    above = number - level * replicas
    below = np.maximum(level - 1.0, 0.0)
    leaving = level / (level * requests.prefill + steps)
    leaving_below = below / (below * requests.prefill + steps)
    noise = 20.0 * math.pi * replicas
    scale = (1.0 - 1.0 / replicas) / (5.0 * math.pi)
    behind = (np.sqrt(9.0 * above * above + noise) - 3.0 * above) * scale
    left = above / replicas * math.sqrt(noise) * scale
    lower = (replicas - above + left) * (1.0 - np.exp2(-above)) * leaving
    lower = np.minimum(lower / requests.arriving, 1.0)
    lowest = np.minimum(behind * leaving_below / requests.arriving, 1.0)
    idle = (level < 1.0) + (level == 1.0) * lower + (level == 2.0) * lowest
    return np.maximum(level - lower - lowest, 0.0), np.minimum(idle, 1.0)


def most_few(pool_count: int) -> float:
    """Return the requests from which on levels do not describe a pool; 0 for a single replica.

    The number in a small pool swings widely, which an average over levels does not show.
    """
    return _FEW * (pool_count - 1.0)


def law_of_number(mean: float, excess: float) -> tuple[float, float]:
    """Return shape and success of a negative binomial law with this mean and excess variance."""
    success = min(1.0 / (1.0 + excess), ALMOST_ONE)
    return mean * success / (1.0 - success), success


def requests_of(demand: RequestDemand, pool: Pool) -> Requests:
    """Return the requests of a pool: its running sequences, and a Poisson number of prompts."""
    count, step = pool.pool_count, pool.mean_step
    prefill = demand.prefill_mean_seconds
    first = prefill + pool.prefill_steps * step
    prompts = count * pool.rate_per_second * (first + 0.5 * step)
    mean = count * pool.mean + prompts
    variance = count**2 * pool.variance + prompts
    return Requests(
        mean,
        max(variance / mean - 1.0, 0.0) if mean > 0.0 else 0.0,
        count * pool.rate_per_second,
        first,
        prefill,
        max(first + max(demand.output_mean_tokens - 1.0, 0.0) * step, TINY_SECONDS),
    )
