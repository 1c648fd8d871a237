"""Occupancy levels of a pool: how many requests an arrival finds at its least loaded replica.

Law: balance of flows between levels of join-the-shortest-queue; the number of requests in a pool is
negative binomial.
Source: P. H. Brill, Level Crossing Methods in Stochastic Models (2008), chapter 1.
Assumes: the number in the pool is that of its law of running sequences, and its prompts.
Fails: pools in which arrivals find idle replicas: TPOT p95 of long prompts with outputs of a few
tokens up to a quarter late.
Shown by: `make validate`, "long prompts, outputs of a few tokens".
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from servingslo.models.service_time import RequestDemand

# Pools are not idle this many deviations below their mean. A Poisson law is close to this.
# Measured: 9 deviations move no percentile by more than 0.02 %.
_IDLE_DEVIATIONS = 6.0
# Below three requests for each replica arrivals may find an idle one.
_IDLE_LEVEL = 3.0
# No replica is idle where the chance of so few is below e to the minus this, a tenth of the share
# that is negligible. Of 1,785 loads (three cards, three kinds of lengths, 2 to 24 replicas) those
# that find idle replicas, the mean settled, have 8.7 at most.
_IDLE_EXPONENT = 11.5
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
_TINY_SEEN = 1e-9


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
    wait for its prefill; scatter: variance of the number that find a request, less its mean, as a
    share of its mean square. early: share of a stay that is before the first token. few:
    probability that the pool holds so few requests that levels tell them, see `most_few`.
    """

    free: float
    delayed: float
    scatter: float
    early: float
    few: float


# Of a pool that always has requests at every replica.
NEVER_IDLE = Found(0.0, 0.0, 0.0, 0.0, 0.0)


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


# Of a pool that is not worked out.
_NOBODY = Requests(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Averages(NamedTuple):
    """Means over the number of requests in a pool.

    seen, seen_square: requests at the replica of an arrival, and their mean square. idle: share
    that finds an idle one. few: probability of so few that levels tell them. busy: share of the
    replicas that have any.
    """

    seen: float
    seen_square: float
    idle: float
    few: float
    busy: float


class Stay(NamedTuple):
    """How long a request stays, in seconds: alone, behind prompts, and while others prefill."""

    alone: float
    behind: float
    delayed: float


def never_idle(mean: float, variance: float) -> bool:
    """Whether no replica with this law of running sequences is ever idle, prompts aside."""
    return mean - _IDLE_DEVIATIONS * math.sqrt(variance) > 2.0


def found_by_arrivals(demand: RequestDemand, pools: Sequence[Pool]) -> list[Found]:
    """What the arrivals of a pool find at the least loaded of its replicas, by pool.

    The number M of requests is negative binomial, with the mean and the variance of the running
    sequences and of a Poisson number of prompts.
    """
    return [_found(demand, pool, requests_of(demand, pool)) for pool in pools]


def _found(demand: RequestDemand, pool: Pool, requests: Requests) -> Found:
    if requests.mean <= 0.0:
        return NEVER_IDLE
    return found_on_average(demand, pool, requests, averages_of(pool, requests))


def averages_of(pool: Pool, requests: Requests) -> Averages:
    """Means over the number of requests in the pool."""
    number = np.arange(float(largest_number(pool.pool_count, requests)))
    seen, idle = found_at(number, float(pool.pool_count), requests)
    empty = np.maximum(1.0 - number / pool.pool_count, 0.0)
    few = number < most_few(pool.pool_count)
    shape, success = law_of_number(requests.mean, requests.excess)
    logs = gammaln(number + shape) - gammaln(number + 1.0) + number * math.log1p(-success)
    shares = np.exp(logs - logs.max())
    table = np.stack([seen, seen * seen, idle, few, 1.0 - empty])
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


def stay_of(demand: RequestDemand, pool: Pool, requests: Requests, mean: float, met: float) -> Stay:
    """How long a request stays that finds so many at its replica, and that as many find there.

    mean: of the requests in the pool. Of those found some are prompts, as long as they take of a
    stay, and those who decode leave in the steps until these are done.
    """
    prompts = met * min(requests.first * requests.arriving / mean, 1.0)
    gaps = max(demand.output_mean_tokens - 1.0, 1.0)
    leaving = (1.0 + prompts * pool.prefill_steps) / gaps
    delayed = met * max(1.0 - leaving, 0.0)
    return Stay(requests.alone, prompts * requests.first, delayed * requests.prefill)


def found_on_average(
    demand: RequestDemand, pool: Pool, requests: Requests, averages: Averages
) -> Found:
    """What arrivals find, from means over the number of requests.

    Prompts stand at λ·T of the busy replicas, T their prefill, and a pool sends fewer requests
    where one stands: of the arrivals that find a replica busy only as many meet its steps as they
    are as find prompts in proportion to these.
    """
    if averages.idle < _NEGLIGIBLE_IDLE:
        return NEVER_IDLE
    stay = stay_of(demand, pool, requests, requests.mean, averages.seen)
    finding = 1.0 - averages.idle
    avoided = 0.0
    if pool.pool_count > 1 and requests.first > 0.0:
        prompts = stay.behind / requests.first * averages.busy
        standing = pool.rate_per_second * requests.first
        avoided = averages.few * max(finding - prompts / standing, 0.0)
    before = requests.first + stay.behind
    return Found(
        averages.idle + avoided,
        stay.delayed / max(requests.prefill, _TINY_SECONDS),
        scatter_of(demand, requests, averages),
        before / (stay.alone + stay.behind + stay.delayed),
        1.0 if averages.few > _ALL_FEW else averages.few,
    )


def scatter_of(demand: RequestDemand, requests: Requests, averages: Averages) -> float:
    """Variance of the number of arrivals that find a request, less its mean, over its mean square.

    The number of requests in the pool says how many come to a replica during a stay, and keeps its
    deviation for as long as its variance is larger than its mean: in stays. At one replica of a
    pool in which that number stays they come as others leave, see `gap_prefill`: C + (1 − C)·(1 −
    e^(−y))/y as disperse as Poisson, y = 6/(1 + C) over a stay. Never less than Poisson: who comes
    to a replica that is idle most of the time is independent.
    """
    departures = demand.output_dispersion
    over = 6.0 / (1.0 + departures)
    regular = departures + (1.0 - departures) * -math.expm1(-over) / over
    stays = 1.0 / (1.0 + requests.excess)
    kept = 2.0 * (stays + math.expm1(-stays)) / stays**2
    met = max(averages.seen, _TINY_SEEN)
    spread = max(averages.seen_square - met * met, 0.0) / met * kept
    return max(spread + regular - 1.0, 0.0) / met


def most_few(pool_count: int) -> float:
    """Requests from which on a pool is not told by its levels; a replica by itself has none.

    The number in a small pool swings widely, which an average over levels does not tell.
    """
    return _FEW * (pool_count - 1.0)


def law_of_number(mean: float, excess: float) -> tuple[float, float]:
    """Shape and success of a negative binomial law with this mean, and excess of variance."""
    success = min(1.0 / (1.0 + excess), _LARGEST_SUCCESS)
    return mean * success / (1.0 - success), success


def rareness_of_fewer(number: float, mean: float, excess: float) -> float:
    """Exponent e that bounds the chance P(M ≤ number) ≤ exp(−e) of the number of requests.

    Source: H. Chernoff, Annals of Mathematical Statistics 23 (1952), for the negative binomial law.
    """
    if number >= mean:
        return 0.0
    shape, _ = law_of_number(mean, excess)
    together = number + shape
    return number * math.log(number / mean) - together * math.log(together / (mean + shape))


def largest_number(pool_count: int, requests: Requests) -> int:
    """Requests of a pool that are counted one by one."""
    spread = math.sqrt(requests.mean * (1.0 + requests.excess))
    return math.ceil(max(requests.mean + _IDLE_DEVIATIONS * spread, 3.0 * pool_count)) + 1


def requests_of(demand: RequestDemand, pool: Pool) -> Requests:
    """The requests of a pool by the law of its running sequences; no mean where none is idle."""
    count, step = pool.pool_count, pool.mean_step
    prefill = demand.prefill_mean_seconds
    first = prefill + pool.prefill_steps * step
    prompts = count * pool.rate_per_second * (first + 0.5 * step)
    mean = count * pool.mean + prompts
    variance = count**2 * pool.variance + prompts
    if mean <= 0.0:
        return _NOBODY
    excess = max(variance / mean - 1.0, 0.0)
    if rareness_of_fewer(_IDLE_LEVEL * count, mean, excess) > _IDLE_EXPONENT:
        return _NOBODY
    decoding = max(demand.output_mean_tokens - 1.0, 0.0) * step
    return Requests(
        mean,
        excess,
        count * pool.rate_per_second,
        first,
        prefill,
        max(first + decoding, _TINY_SECONDS),
    )
