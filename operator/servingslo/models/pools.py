"""Pools: how arrivals that are sent where the fewest run meet the steps of one replica.

Source: L. Takács, Introduction to the Theory of Queues (1962), the transient M/M/1 queue;
docs/designs/0002-models.md, "What was added".
"""

import math
from typing import NamedTuple

from servingslo.models.occupancy import Occupancy
from servingslo.models.paces import Pace
from servingslo.models.service_time import RequestDemand

# Loads of prefill from here on are taken as this one, so that cycles stay finite. Measured: 0.96
# and 0.99 change nothing up to a utilization of 0.95.
_LARGEST_RATIO = 0.98
_LEAST_SLACK = 0.02
# Against divisions by zero where prompts cost nothing, or nothing runs.
_TINY = 1e-12
# The length of a cycle that is met settles to three digits in these.
_ITERATIONS = 4
_SETTLED = 1e-4
# Two arrivals of a step: between rounds in strict order (0) and no order at all (1).
_ORDER = 0.5


class Meeting(NamedTuple):
    """How the arrivals of one replica meet its steps, see `meeting`.

    even_ratio: share that comes evenly over a step, 1/c to 1. again_ratio: others in the step of
    an arrival, as a share of those that independent arrivals would find.
    """

    even_ratio: float
    again_ratio: float


ALONE = Meeting(1.0, 1.0)


def meeting(
    rate_per_second: float, cycle_seconds: float, age_seconds: float, pool_count: int
) -> Meeting:
    """How arrivals meet the steps of one replica of a pool.

    Nobody leaves during a step, so a replica in a long one is sent requests only as long as none of
    the others has fewer. All arrivals less what leaves the others, cλ up and (c − 1)λ down, move
    the level of the pool, and each of its new maxima is shared by all c. The distance to the
    maximum is an M/M/1 queue with services cλ and load 1 − 1/c, empty when the step begins, and the
    replica is sent λ·P(empty): 1/c of its rate in the end, but it takes 4c/λ to come to that. At an
    exponential time with the age A of the step that is met, P(empty) = 1 − r, r the smaller root of
    cλ·r² − ((2c − 1)λ + 1/A)·r + (c − 1)λ = 0. The rest of the arrivals fill the holes that
    sequences left at the end of the step before.

    Who has just been sent a request stands above the level and has to wait until the others have
    theirs, any number of them from 0 to c − 1: by then the queue is empty again with the share
    g = (1 − η^c)/(c·(1 − η)), η = r·c/(c − 1), of the probability. That is for a level on which all
    stand in order; on one without order g is 1. The truth is taken in the middle.
    rate_per_second: of one replica. cycle_seconds: mean step. age_seconds: see `age_met`.
    Source: the transient M/M/1 queue at an exponential time, L. Takács, Introduction to the Theory
    of Queues (1962); maxima as idle services, L. Kleinrock, Queueing Systems I (1975).
    """
    if pool_count == 1:
        return ALONE
    even = _even_ratio(rate_per_second, age_seconds, pool_count)
    below = (1.0 - even) * pool_count / (pool_count - 1)
    again = (1.0 - below**pool_count) / (pool_count * (1.0 - below))
    # Only arrivals that come with the level are in its order; holes are filled as they are.
    level = 2.0 * age_seconds * even
    level /= level + cycle_seconds * (1.0 - even)
    return Meeting(even, 1.0 - _ORDER * (1.0 - again) * level**2)


def _even_ratio(rate_per_second: float, age_seconds: float, pool_count: int) -> float:
    """Share 1 − r of the arrivals that comes evenly, see `meeting`."""
    down = (pool_count - 1.0) / pool_count
    half = 0.5 * (1.0 + down + 1.0 / (pool_count * rate_per_second * age_seconds))
    return 1.0 - half + math.sqrt(half * half - down)


def even_arrivals(
    demand: RequestDemand, rate_per_second: float, cycle_seconds: float, pool_count: int
) -> float:
    """Share of a replica's arrivals that come evenly over a step, 1/c to 1; see `meeting`.

    In steps that hold all prompts that wait. cycle_seconds: mean step.
    """
    lumps = _lumps(demand, rate_per_second, cycle_seconds, 0.0)
    even = 1.0
    for _ in range(_ITERATIONS):
        before = even
        even = _even_ratio(rate_per_second, _age_seconds(lumps, before), pool_count)
        if abs(even - before) < _SETTLED:
            break
    return even


class _Lumps(NamedTuple):
    """What steps that make the waits are computed from, see `age_met`.

    load: λ times the prefill of a prompt. variance, skew: cumulants of a step of which no prompt
    lets further ones in. mean: E[D].
    """

    load: float
    variance: float
    skew: float
    mean: float


def _age_seconds(lumps: _Lumps, even: float) -> float:
    """Half of E[D³]/E[D²]; even: share of the arrivals that each step makes of the next."""
    ratio, mean = even * lumps.load, lumps.mean
    square = ratio * ratio
    variance = lumps.variance / (1.0 - square)
    skew = lumps.skew / (1.0 - square * ratio)
    mean_square = mean * mean
    whole = skew + 3.0 * mean * variance + mean_square * mean
    return 0.5 * whole / (variance + mean_square)


def _lumps(
    demand: RequestDemand, rate_per_second: float, cycle_seconds: float, further: float
) -> _Lumps:
    work = demand.prefill_mean_seconds + further
    per_token = work / max(demand.uncached_mean_tokens, _TINY)
    variance = rate_per_second * cycle_seconds * per_token * per_token
    return _Lumps(
        min(rate_per_second * work, _LARGEST_RATIO),
        variance * demand.uncached_second_moment_tokens2,
        variance * per_token * demand.uncached_third_moment_tokens3,
        cycle_seconds,
    )


def age_met(
    demand: RequestDemand, rate_per_second: float, cycle_seconds: float, further: float, even: float
) -> float:
    """Half of the length of the steps that make the waits, E[D³]/(2·E[D²]), in seconds.

    cycle_seconds: E[D]. further: seconds that a prompt adds to its prefill. even: share of the
    arrivals of a replica that come evenly, of which each step makes the next.
    """
    return _age_seconds(_lumps(demand, rate_per_second, cycle_seconds, further), even)


def length_met(demand: RequestDemand, pace: Pace, even_ratio: float = 1.0) -> float:
    """Mean length of the cycle of prefill that an arrival meets, E[D²]/E[D], in seconds.

    even_ratio: share of the arrivals of a replica that come evenly, see `pools`.
    """
    per_token = demand.prefill_per_token_seconds
    per_token += pace.further / max(demand.uncached_mean_tokens, _TINY)
    cycle = pace.base_ratio * pace.mean_step / max(1.0 - pace.prefill_ratio, _LEAST_SLACK)
    lumps = pace.rate_per_second * per_token**2 * demand.uncached_second_moment_tokens2
    return cycle + lumps / max(1.0 - (even_ratio * pace.prefill_ratio) ** 2, _LEAST_SLACK)


def meeting_at(demand: RequestDemand, law_of_running: Occupancy, pace: Pace) -> Meeting:
    """How arrivals meet the cycles of prefill of a replica, from how they meet its steps.

    A cycle of several steps lets sequences go at the end of each, n/O of them as at other times,
    and others are sent to where they were: of the rest of the arrivals, those that do not come
    evenly, this is the share D̄/(s + c·room) of a full step, in all steps but the last. The prompts
    of the cycle, one and those that come during it, stand in the place of sequences that would
    leave.
    """
    count = law_of_running.pool_count
    if count == 1:
        return ALONE
    rate, mean = pace.rate_per_second, pace.base_ratio * pace.mean_step / (1.0 - pace.prefill_ratio)
    lumps = _lumps(demand, rate, mean, pace.further)
    age, even = _age_seconds(lumps, 1.0), 1.0
    several = pace.first_ratio < 1.0
    for _ in range(_ITERATIONS):
        before, even = even, _even_ratio(rate, age, count)
        if several:
            even += (1.0 - even) * _left_in_cycles(demand, law_of_running, pace, before)
        if abs(even - before) < _SETTLED:
            break
        age = _age_seconds(lumps, even)
    return Meeting(even, meeting(rate, mean, age, count).again_ratio)


def _left_in_cycles(
    demand: RequestDemand, law_of_running: Occupancy, pace: Pace, even_ratio: float
) -> float:
    """Share of those that do not come evenly who come where others left during a cycle."""
    rate = pace.rate_per_second
    cycle = length_met(demand, pace, even_ratio)
    full_step = pace.mean_step + demand.prefill_per_token_seconds * pace.room_tokens
    if cycle <= full_step:
        return 0.0
    step = pace.mean_step / (1.0 - min(rate * demand.prefill_mean_seconds, _LARGEST_RATIO))
    decoding = max(1.0 - (1.0 + rate * cycle) / max(law_of_running.mean, _TINY), 0.0)
    return (1.0 - full_step / cycle) * decoding * min(step / full_step, 1.0)
