"""The rates and the steps that arrivals meet: one pace, or several where bursts or budgets bind.

Source: stationary law of what an arrival finds, R. W. Wolff, Poisson arrivals see time averages
(1982); points of a normal law by Gauss and Hermite; docs/designs/0002-models.md, "What was added".
"""

import math
from typing import NamedTuple

from servingslo.models.bursts import lasting_change, swing_of
from servingslo.models.occupancy import Occupancy
from servingslo.models.prompt_work import (
    RANGE_RATIO,
    PromptWork,
    fitting_ratio,
    mean_steps,
    paired_steps,
)
from servingslo.models.service_time import RequestDemand

# Share of the budget in use from which prompts are taken to queue for it.
LEAST_FULL_RATIO = 0.1
# A budget fuller than 1 less this is taken as this full, as in `room_queue`: laws stay finite.
# Measured: 0.01 and 0.04 move TTFT by up to a half where the budget is nearly full, and not at all
# in 95 of 100 loads.
_LEAST_SLACK = 0.02
# Deviations that the range of an inversion is wide. Measured: 11 move TTFT by 0.6 % at most in 95
# of 100 loads.
_RANGE_SPREADS = 9.0
# Against divisions by zero: far below any step.
_TINY_SECONDS = 1e-12
# The length of a cycle settles to three digits in these.
_CYCLE_ITERATIONS = 8
_SETTLED = 1e-5
# Parts of a step that move no percentile by more than 0.2 %.
_NEGLIGIBLE_BASE = 0.01
# Weights of the three points of a normal law, at −√3, 0 and √3 deviations.
_POINT_SHARES = (1.0 / 6.0, 2.0 / 3.0, 1.0 / 6.0)
# Halvings until a straight line finds a point within a thousandth of its range.
_REACH_STEPS = 6


class Pace(NamedTuple):
    """A rate of arrivals, and what follows from it.

    share: of the requests that arrive at this rate. shift: running sequences above the mean.
    spread: of the running sequences at this rate, as a share of that at all rates.
    mean_step: seconds of a step without prefill. room_tokens: of the budget, for prefill.
    further: seconds of further steps that a prompt causes. base_ratio, first_ratio: as in `Cycle`.
    empty_ratio: cycles without prompts. fitting_ratio: prompts that fit beside the rest of another.
    budget_ratio: share of the budget in use. prefill_ratio: λ·(c·I + further).
    queued: as met by a queue for the budget that is one deviation above its mean. alone: whether
    prompts queue for the budget of one replica, with the running sequences of this pace.
    """

    share: float
    rate_per_second: float
    shift: float
    spread: float
    mean_step: float
    room_tokens: float
    further: float
    base_ratio: float
    first_ratio: float
    empty_ratio: float
    fitting_ratio: float
    budget_ratio: float
    prefill_ratio: float
    queued: bool
    alone: bool


class Cycle(NamedTuple):
    """Steps of a cycle of prefill, from one in which nothing waits to the next.

    further: seconds of steps that each of its prompts adds. base_ratio: what a cycle takes without
    them on average, in steps; first_ratio: where it has prompts. empty_ratio: cycles without any.
    budget_ratio: share of the budget in use.
    """

    further: float
    base_ratio: float
    first_ratio: float
    empty_ratio: float
    budget_ratio: float


def paces_met(
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
) -> list[Pace]:
    """The rates that arrivals are met at, slowest first: one for Poisson, two for bursty arrivals.

    Requests come in proportion to the rate, and n follows it as far as `Bursts` says; what is left
    of its variance is that at one rate.
    """
    bursts, growth = law_of_running.bursts, demand.step_growth_seconds
    mean_step = demand.step_fixed_seconds + growth * law_of_running.mean
    ratio = rate_per_second * demand.prefill_mean_seconds
    swing = swing_of(bursts, ratio)
    if swing == 0.0:
        return _budget_paces(demand, prompts, law_of_running, rate_per_second, budget_tokens)
    followed = bursts.followed_ratio * law_of_running.mean
    left = max(1.0 - (swing * followed) ** 2 / max(law_of_running.variance, _TINY_SECONDS), 0.0)
    spread = math.sqrt(left)
    lumps = demand.prefill_per_token_seconds**2 * demand.uncached_second_moment_tokens2
    lumps *= rate_per_second
    paces = []
    for change in (-swing, swing):
        lasting = lasting_change(bursts, change, mean_step, ratio, lumps)
        shift = max(change * followed, _lowest_shift(demand, law_of_running, spread))
        pace = _pace(
            demand,
            prompts,
            law_of_running,
            rate_per_second * (1.0 + lasting),
            budget_tokens,
            shift,
        )
        paces.append(_part(pace, 0.5 * (1.0 + change), spread, (False, False)))
    return paces


def _budget_paces(
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
) -> list[Pace]:
    """One pace; six where prompts queue for the budget.

    The room in a step and its length depend on n, which changes more slowly than that queue does: a
    request meets the queue of its own n. Three points of a normal law (Gauss and Hermite) stand for
    n, with the share of its variance that lasts, 1/(1 + κτ): the queue relaxes in τ =
    λ·E[W²]/(1 − u)², n at κ = a/(s·R).

    The queue makes the rest: what it lets out is what n takes in, and of two such filters of the
    same arrivals, one after the other, the second has the correlation √(κτ/(1 + κτ)) with the
    first. A request that meets a queue one deviation above its mean therefore meets n above its own
    by √(1 − lasting) deviations; and half of that, on average, while the queue has grown, which
    counts as 1/(1 − u) of a wait where the n that is met counts as 1/u: 1 − u/2 in all. The second
    three paces are those of a queue one deviation above its mean. What is let out of full steps is
    no more than n_sat sequences take, (O − 1)·M/(I + O − 1) of them: the queue drives n up to that.
    """
    mean = _pace(demand, prompts, law_of_running, rate_per_second, budget_tokens, 0.0)
    if mean.budget_ratio < LEAST_FULL_RATIO:
        return [mean]
    load, queue = budget_queue(demand, mean)
    running = law_of_running.mean / rate_per_second * mean.mean_step / demand.step_fixed_seconds
    lasting = running / (running + queue)
    reach = math.sqrt(3.0 * lasting * law_of_running.variance)
    queued = (1.0 - 0.5 * load) * math.sqrt((1.0 - lasting) * law_of_running.variance)
    alone = law_of_running.pool_count == 1
    gaps = max(demand.output_mean_tokens - 1.0, 0.0)
    most = gaps * budget_tokens / (demand.uncached_mean_tokens + gaps) - law_of_running.mean
    paces = []
    for growth in (0.0, queued):
        changes = -reach, 0.0, reach
        if alone:
            changes = _lasting_changes(
                demand, law_of_running, (rate_per_second, budget_tokens), running, growth
            )
        for point in range(3):
            change = changes[point]
            driven = min(growth, max(most - change, 0.0)) if alone else growth
            shift = max(change + driven, _lowest_shift(demand, law_of_running, 0.0))
            pace = _pace(demand, prompts, law_of_running, rate_per_second, budget_tokens, shift)
            paces.append(_part(pace, _POINT_SHARES[point], 0.0, (growth > 0.0, alone)))
    return paces


def _part(pace: Pace, share: float, spread: float, queue: tuple[bool, bool]) -> Pace:
    """The pace as a share of the arrivals; queue: whether it is queued, and alone, see there."""
    queued, alone = queue
    return Pace(
        share=share,
        rate_per_second=pace.rate_per_second,
        shift=pace.shift,
        spread=spread,
        mean_step=pace.mean_step,
        room_tokens=pace.room_tokens,
        further=pace.further,
        base_ratio=pace.base_ratio,
        first_ratio=pace.first_ratio,
        empty_ratio=pace.empty_ratio,
        fitting_ratio=pace.fitting_ratio,
        budget_ratio=pace.budget_ratio,
        prefill_ratio=pace.prefill_ratio,
        queued=queued,
        alone=alone,
    )


def _lasting_changes(
    demand: RequestDemand,
    law_of_running: Occupancy,
    load: tuple[float, float],
    relaxing_seconds: float,
    growth: float,
) -> tuple[float, float, float]:
    """Three points of n, less its mean, each as far as it outlasts the queue at that point.

    The memory of a queue goes with 1/(1 − u)²: near saturation n falls back from its higher values
    sooner than the queue comes to what is usual there. The mean of the points stays that of n.
    load: rate per second and token budget. relaxing_seconds: 1/κ. growth: on top of the points.
    """
    rate, budget = load
    mean, variance = law_of_running.mean + growth, 3.0 * law_of_running.variance
    square, tokens = rate * demand.uncached_second_moment_tokens2, demand.uncached_mean_tokens
    ends = []
    for sign in (-1.0, 1.0):
        # Bisection, then a straight line: above is what lies beyond the point, below short of it.
        low, high, below, above = 0.0, math.sqrt(variance), -variance, variance
        for _ in range(_REACH_STEPS):
            reach = 0.5 * (low + high)
            running = max(mean + sign * reach, 0.0)
            step = demand.step_fixed_seconds + demand.step_growth_seconds * running
            per_token = demand.prefill_per_token_seconds + step / max(budget - running, 1.0)
            slack = max(1.0 - rate * tokens * per_token, _LEAST_SLACK)
            queue = square * (per_token / slack) ** 2
            beyond = reach * reach - variance * relaxing_seconds / (relaxing_seconds + queue)
            if beyond < 0.0:
                low, below = reach, beyond
            else:
                high, above = reach, beyond
        ends.append(sign * (low - (high - low) * below / max(above - below, _TINY_SECONDS)))
    shift = -(ends[0] + ends[1]) * _POINT_SHARES[0]
    return ends[0] + shift, shift, ends[1] + shift


def _lowest_shift(demand: RequestDemand, law_of_running: Occupancy, spread: float) -> float:
    """How far below the mean n may lie so that no step of its law is shorter than half of a."""
    lowest = (1.0 - spread) * law_of_running.mean + spread * law_of_running.lowest
    return -lowest - 0.5 * demand.step_fixed_seconds / max(demand.step_growth_seconds, 1e-9)


def _pace(
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
    shift: float,
) -> Pace:
    running = law_of_running.mean + shift
    mean_step = demand.step_fixed_seconds + demand.step_growth_seconds * running
    room = max(float(round(budget_tokens - running)), 1.0)
    cycle = cycle_of_prefill(demand, prompts, rate_per_second, mean_step, room)
    return Pace(
        share=1.0,
        rate_per_second=rate_per_second,
        shift=shift,
        spread=1.0,
        mean_step=mean_step,
        room_tokens=room,
        further=cycle.further,
        base_ratio=cycle.base_ratio,
        first_ratio=cycle.first_ratio,
        empty_ratio=cycle.empty_ratio,
        fitting_ratio=fitting_ratio(prompts, room),
        budget_ratio=cycle.budget_ratio,
        prefill_ratio=rate_per_second * (demand.prefill_mean_seconds + cycle.further),
        queued=False,
        alone=False,
    )


def cycle_of_prefill(
    demand: RequestDemand,
    prompts: PromptWork,
    rate_per_second: float,
    mean_step: float,
    room_tokens: float,
) -> Cycle:
    """Steps of s that prompts take in a cycle of prefill.

    One prompt alone takes ⌈I/room⌉ steps. The next of J tokens adds ⌈(I + J)/room⌉ − ⌈I/room⌉, on
    average over both lengths; where they fill the budget each adds J/room, so that the work
    diverges exactly at the stability frontier λ·Ī·(c + s/room) = 1. A cycle with prompts is
    therefore taken as first + N·further steps, with further that of the next prompt and first what
    makes N = 1 exact; one without prompts takes one step. Prompts begin a cycle behind one without
    them as they come in a step, 1 − e^(−λs), and end a row of cycles as none comes in one of them.
    """
    work = demand.prefill_mean_seconds
    if work <= 0.0 or rate_per_second <= 0.0:
        return Cycle(0.0, 1.0, 1.0, 1.0, 0.0)
    even = demand.uncached_mean_tokens / room_tokens
    alone = mean_steps(prompts, room_tokens) - 1.0
    paired = paired_steps(prompts, room_tokens) if 2.0 * prompts.tokens[-1] > room_tokens else 0.0
    most = max((1.0 - _LEAST_SLACK) / rate_per_second - work, 0.0)
    come = -math.expm1(-rate_per_second * mean_step)
    further, base, first, empty = min(alone * mean_step, most), 1.0, 1.0, 1.0
    for _ in range(_CYCLE_ITERATIONS):
        before = further, base
        cycle = base * mean_step / (1.0 - rate_per_second * (work + further))
        full = rate_per_second * cycle * even
        steps = paired + (even - paired) * full if full < 1.0 else even
        further = min(mean_step * steps, most)
        # Mean of the cycles with prompts, from that of all.
        busy = (cycle - empty * mean_step) / (1.0 - empty) if empty < 1.0 else cycle + work
        busy = max(busy, mean_step)
        empty = 1.0 / (1.0 + come * (1.0 + rate_per_second * busy))
        first = 1.0 - (steps - alone) if steps - alone < 1.0 else 0.0
        base = empty + (1.0 - empty) * first
        if abs(further - before[0]) < _SETTLED * mean_step and abs(base - before[1]) < _SETTLED:
            break
    if alone <= 0.0 and base > 1.0 - _NEGLIGIBLE_BASE:
        # Few prompts need a step more, and only behind others: half of them behind the request.
        further, base, first, empty = 0.5 * further, 1.0, 1.0, 1.0
    # A step lasts s/(1 − λ·c·I), however prompts are cut.
    count = rate_per_second * mean_step / max(1.0 - rate_per_second * work, _LEAST_SLACK)
    return Cycle(further, base, first, empty, min(count * even, 1.0))


def budget_queue(demand: RequestDemand, pace: Pace) -> tuple[float, float]:
    """Load of the budget, u = λ·E[W] with W = I·(c + s/room), and how long its queue remembers.

    The memory is that of a reflected Brownian motion, λ·E[W²]/(1 − u)².
    """
    per_token = demand.prefill_per_token_seconds + pace.mean_step / pace.room_tokens
    load = pace.rate_per_second * demand.uncached_mean_tokens * per_token
    load = min(load, 1.0 - _LEAST_SLACK)
    square = demand.uncached_second_moment_tokens2 * per_token**2
    return load, pace.rate_per_second * square / (1.0 - load) ** 2


def range_level(
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    pace: Pace,
) -> int:
    """Level of the shortest range that holds all but the last 0.01 % of the law."""
    cycle = pace.mean_step / (1.0 - pace.prefill_ratio)
    stretch = 1.0 + pace.further / max(demand.prefill_mean_seconds, _TINY_SECONDS)
    arrivals = pace.rate_per_second * cycle / (1.0 - pace.prefill_ratio**2)
    mean = 2.0 * cycle + prompts.mean_seconds * stretch
    square = prompts.second_moment_seconds2 * stretch**2
    spread_n = demand.step_growth_seconds**2 * law_of_running.variance
    variance = (
        square
        - (prompts.mean_seconds * stretch) ** 2
        + 3.0 * arrivals * square
        + 4.0 * spread_n
        + cycle**2
    )
    if pace.alone:
        variance = max(variance, _queue_variance(demand, pace))
    reach = mean + max(_RANGE_SPREADS * math.sqrt(variance), prompts.longest_seconds * stretch)
    return math.ceil(math.log(reach) / math.log(RANGE_RATIO))


def _queue_variance(demand: RequestDemand, pace: Pace) -> float:
    """Variance of the wait in an M/G/1 queue for the budget, in seconds squared."""
    load, memory = budget_queue(demand, pace)
    per_token = demand.prefill_per_token_seconds + pace.mean_step / pace.room_tokens
    third = pace.rate_per_second * demand.uncached_third_moment_tokens3 * per_token**3
    return (0.5 * memory * (1.0 - load)) ** 2 + third / (3.0 * (1.0 - load))
