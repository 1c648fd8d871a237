"""Occupancy levels of a pool: how many requests an arrival finds at its least loaded replica.

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

# Pools are not idle this many deviations below their mean. A Poisson law is close to this.
# Measured: 9 deviations move no percentile by more than 0.02 %.
_IDLE_DEVIATIONS = 6.0
# A replica that always runs more than these is never found idle.
_BUSY = 2.0
# Against the end of the range of a negative binomial law; a Poisson law is within a millionth.
_LARGEST_SUCCESS = 1.0 - 1e-6
# Shares of arrivals that move no percentile below p99.9.
_NEGLIGIBLE_IDLE = 1e-4
# Pools with fewer requests for each replica are told by their levels, others by the mean. Measured:
# with 3 in place of 4 gaps of twelve replicas are 2 % longer, of outputs of 30 tokens 0.4 %.
_FEW = 4.0
# Probability from which on pools have as few requests always: what is left has no moments.
_ALL_FEW = 1.0 - 1e-6
# Against divisions by zero where nothing is computed.
_TINY_SECONDS = 1e-12


class Pool(NamedTuple):
    """What a pool shares, as far as it tells what arrivals find.

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
    """What arrivals of a pool find at the replica that they are sent to.

    free: share that meets no prefill there, 0 to 1. delayed: mean number of requests there that
    wait for its prefill. early: share of a stay that is before the first token. few: probability
    that the pool holds so few requests that levels tell them, see `most_few`.
    """

    free: float
    delayed: float
    early: float
    few: float


# Of a pool that always has requests at every replica.
NEVER_IDLE = Found(0.0, 0.0, 0.0, 0.0)


class Requests(NamedTuple):
    """The requests of a pool, see `requests_of`.

    mean, excess: of their number, and what its variance has on top as a share of the mean.
    arriving: per second, in the whole pool. first, prefill, alone: seconds of a request that meets
    nobody, to its first token, of it prefill, and in all.
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
    probability of so few that levels tell them. busy: share of the replicas that have any.
    """

    seen: float
    idle: float
    few: float
    busy: float


def found_by_arrivals(demand: RequestDemand, pool: Pool) -> Found:
    """What the arrivals of a pool find at the least loaded of its replicas.

    Prompts stand at λ·T of the busy replicas, T their prefill, and a pool sends fewer requests
    where one stands: of the arrivals that find a replica busy only as many meet its steps as they
    are as find prompts in proportion to these.
    """
    requests = requests_of(demand, pool)
    if requests.mean <= 0.0 or pool.mean - _IDLE_DEVIATIONS * math.sqrt(pool.variance) > _BUSY:
        return NEVER_IDLE
    averages = averages_of(pool.pool_count, requests)
    if averages.idle < _NEGLIGIBLE_IDLE:
        return NEVER_IDLE
    # Of those found some are prompts, as long as they take of a stay, and those who decode leave in
    # the steps until these are done.
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
        1.0 if averages.few > _ALL_FEW else averages.few,
    )


def averages_of(pool_count: int, requests: Requests) -> Averages:
    """Means over the number of requests in the pool."""
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
    """Requests at the replica of an arrival, and chance that it is idle, by those in the pool.

    A pool of c with M requests is in balance with ⌊M/c⌋ or one more at each replica, N of them with
    the lower number k. An arrival finds k, but where a replica with k has just lost one; these do
    so at the rate N·μ_k, and each is what the next arrival finds, at Λ = cλ. As departures are as
    frequent as arrivals, M falls below k·c before with the chance 2^−(M−kc), and there arrivals
    find k − 1 anyway. k requests need k·c·I of prefill and the steps of one, which they share:
    μ_k = k/(k·c·I + O·s).

    Pools are out of balance. Where all have two or more, a loss leaves one behind until the next
    arrival: with x requests more than two each and y replicas with one, y grows by 2·(c − x − 2y)
    and falls by 2c + x and by y, in units of what one request leaves by. 3x·E[y] + 5·E[y²] = 2c;
    with E[y²] as in half a normal law, π/2·E[y]², E[y] = (√(9x² + 20πc) − 3x)/(5π). A replica has
    no part in that alone: 1 − 1/c. While M is below, what was left at x = 0 goes with the others.
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
    """Requests from which on a pool is not told by its levels; a replica by itself has none.

    The number in a small pool swings widely, which an average over levels does not tell.
    """
    return _FEW * (pool_count - 1.0)


def law_of_number(mean: float, excess: float) -> tuple[float, float]:
    """Shape and success of a negative binomial law with this mean, and excess of variance."""
    success = min(1.0 / (1.0 + excess), _LARGEST_SUCCESS)
    return mean * success / (1.0 - success), success


def requests_of(demand: RequestDemand, pool: Pool) -> Requests:
    """The requests of a pool: its running sequences, and a Poisson number of prompts."""
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
        max(first + max(demand.output_mean_tokens - 1.0, 0.0) * step, _TINY_SECONDS),
    )
