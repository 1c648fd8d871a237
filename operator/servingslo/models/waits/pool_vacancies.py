"""Vacancies of a pool: how evenly requests reach a replica under least-loaded routing.

Law: the transient M/M/1 queue. No request leaves a replica during a step. So a replica in a long
step receives requests only as the level of the others rises to its own; the rest come at once where
sequences left.
Source: L. Takács, Introduction to the Theory of Queues (1962), chapter 1.
Assumes: departures of the other replicas come evenly.
Fails: steps that are mostly prefill: first tokens of short outputs up to 7 % early and 14 % late.
Shown by: `make validate`, "least-loaded routing" and "short outputs".
"""

import math

from servingslo.models.engine.service_time import RequestDemand
from servingslo.models.numerics import LARGEST_LOAD, TINY_TOKENS

# Rounds in which the share settles to four digits.
_SHARE_ITERATIONS = 4
# Arrivals in a step, below which no request meets another.
_NEGLIGIBLE_ARRIVALS = 1e-6


def even_arrivals(
    demand: RequestDemand,
    rate_per_second: float,
    step_seconds: float,
    pool_count: int,
    further_seconds: float = 0.0,
) -> float:
    """Return the share of a replica's arrivals that come evenly over a step, 1/c to 1; 1 if single.

    step_seconds: mean step, E[D]. further_seconds: addition of a prompt to its prefill. The age of
    a step that causes waits is half of E[D³]/E[D²]; only the evenly spread arrivals of that time
    feed the next step: a fixed point.
    """
    if pool_count == 1:
        return 1.0
    work = demand.prefill_mean_seconds + further_seconds
    load = min(rate_per_second * work, LARGEST_LOAD)
    if rate_per_second * step_seconds < _NEGLIGIBLE_ARRIVALS or load < _NEGLIGIBLE_ARRIVALS:
        return 1.0
    per_token = work / max(demand.uncached_mean_tokens, TINY_TOKENS)
    arriving = rate_per_second * step_seconds * per_token**2
    even = 1.0
    for _ in range(_SHARE_ITERATIONS):
        ratio = even * load
        variance = arriving * demand.uncached_second_moment_tokens2 / (1.0 - ratio**2)
        skew = arriving * per_token * demand.uncached_third_moment_tokens3 / (1.0 - ratio**3)
        whole = skew + 3.0 * step_seconds * variance + step_seconds**3
        age = 0.5 * whole / (variance + step_seconds**2)
        even = empty_ratio(rate_per_second, age, pool_count)
    return even


def empty_ratio(rate_per_second: float, seconds: float, pool_count: int) -> float:
    """Return the chance that the pool's level is at a new maximum, its distance to the last one 0.

    All arrivals less the departures of the others, cλ up and (c − 1)λ down, move the level, and
    each of its new maxima is shared by all c. The distance is an M/M/1 queue, empty when the step
    begins. It is observed after an exponential time with this mean: 1 less the smaller root r of
    c·r² − (2c − 1 + θ)·r + c − 1 = 0, θ = 1/(λ·seconds).
    """
    total = 2.0 * pool_count - 1.0 + 1.0 / (rate_per_second * seconds)
    distance = math.sqrt(total**2 - 4.0 * pool_count * (pool_count - 1.0))
    return 1.0 - (total - distance) / (2.0 * pool_count)
