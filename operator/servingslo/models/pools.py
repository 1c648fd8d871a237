"""Pools: how arrivals that are sent where the fewest run meet the steps of one replica.

Source: L. Takács, Introduction to the Theory of Queues (1962), the transient M/M/1 queue;
docs/designs/0002-models.md, "What was added".
"""

from typing import NamedTuple

from servingslo.models.holes import (
    Meeting,
    again_ratio,
    empty_ratio,
    meeting_in_steps,
    steps_of,
)
from servingslo.models.occupancy import Occupancy
from servingslo.models.paces import Pace
from servingslo.models.prompt_work import PromptWork, mean_steps
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
# Arrivals in a step, below which nobody meets another.
_NEGLIGIBLE_ARRIVALS = 1e-6


ALONE = Meeting(1.0, 1.0, 1.0, 1.0)


def even_arrivals(
    demand: RequestDemand, rate_per_second: float, cycle_seconds: float, pool_count: int
) -> float:
    """Share of a replica's arrivals that come evenly over a step, 1/c to 1; see `empty_ratio`.

    In steps that hold all prompts that wait. cycle_seconds: mean step.
    """
    lumps = _lumps(demand, rate_per_second, cycle_seconds, 0.0)
    even = 1.0
    for _ in range(_ITERATIONS):
        before = even
        even = empty_ratio(rate_per_second, _age_seconds(lumps, before), pool_count)
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


def meeting_at(
    demand: RequestDemand, prompts: PromptWork, law_of_running: Occupancy, pace: Pace
) -> Meeting:
    """How the arrivals of a replica meet its steps, as far as prompts take one step each.

    And how they meet its cycles of prefill, as far as they take more: 2 less their number of steps
    is the share that fits where none takes three.
    """
    count = law_of_running.pool_count
    if count == 1:
        return ALONE
    rate, mean = pace.rate_per_second, pace.base_ratio * pace.mean_step / (1.0 - pace.prefill_ratio)
    several = pace.first_ratio < 1.0
    share = max(2.0 - mean_steps(prompts, pace.room_tokens), 0.0) if several else 1.0
    if rate * mean < _NEGLIGIBLE_ARRIVALS or pace.prefill_ratio < _NEGLIGIBLE_ARRIVALS:
        share = 0.0
    if share <= 0.0:
        return _meeting_cycles(demand, law_of_running, pace, mean)
    steps = meeting_in_steps(steps_of(demand, pace, count))
    if share >= 1.0:
        return steps
    cycles = _meeting_cycles(demand, law_of_running, pace, mean)
    return Meeting(
        cycles.even_ratio + share * (steps.even_ratio - cycles.even_ratio),
        cycles.again_ratio + share * (steps.again_ratio - cycles.again_ratio),
        cycles.growing_ratio + share * (steps.growing_ratio - cycles.growing_ratio),
        cycles.filling_ratio + share * (steps.filling_ratio - cycles.filling_ratio),
    )


def _meeting_cycles(
    demand: RequestDemand, law_of_running: Occupancy, pace: Pace, mean: float
) -> Meeting:
    """How arrivals meet the cycles of prefill of a replica, from how they meet its steps.

    The share P(empty) comes evenly, see `holes.level_met`, at an exponential time with the age of
    the steps that are met; the rest fills holes, as many in every step.

    A cycle of several steps lets sequences go at the end of each, n/O of them as at other times,
    and others are sent to where they were: of the rest of the arrivals, those that do not come
    evenly, this is the share D̄/(s + c·room) of a full step, in all steps but the last. The prompts
    of the cycle, one and those that come during it, stand in the place of sequences that would
    leave. mean: seconds of a cycle.
    """
    count, rate = law_of_running.pool_count, pace.rate_per_second
    lumps = _lumps(demand, rate, mean, pace.further)
    age, even = _age_seconds(lumps, 1.0), 1.0
    for _ in range(_ITERATIONS):
        before, even = even, empty_ratio(rate, age, count)
        even += (1.0 - even) * _left_in_cycles(demand, law_of_running, pace, before)
        if abs(even - before) < _SETTLED:
            break
        age = _age_seconds(lumps, even)
    empty = empty_ratio(rate, age, count)
    return Meeting(even, again_ratio(empty, empty, count, (mean, age)), even, 1.0)


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
