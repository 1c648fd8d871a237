"""Arrival-rate states: the one or two rates of arrivals, and the steps that arrivals meet.

Law: Poisson arrivals see time averages; bursty ones alternate between two rates, see `bursts`.
Source: R. W. Wolff, Poisson arrivals see time averages, Operations Research 30 (1982).
Assumes: running sequences follow the rate as a linear filter. If prompts queue for the token
budget, they are assumed to meet more running sequences than the average: a bound, not a law.
Fails: a token budget that is nearly used up: median first tokens up to five times too late.
Shown by: `make validate`, "token budget" and "bursty arrivals".
"""

import math
from typing import NamedTuple

from servingslo.models.engine.service_time import RequestDemand
from servingslo.models.numerics import LEAST_GROWTH_SECONDS, TINY_NUMBER, TINY_SECONDS
from servingslo.models.running.bursts import lasting_change, swing_of
from servingslo.models.running.occupancy import Occupancy
from servingslo.models.waits.prompt_work import RANGE_RATIO, PromptWork, mean_steps, paired_steps

# Share of the budget in use from which prompts are assumed to queue for it.
_LEAST_FULL_RATIO = 0.11
# Deviations above the mean of the running sequences that a prompt then meets. Measured by
# `make validate`, "token budget": with 1.5 TTFT p99 is up to 21 % early if the budget is nearly
# full.
_QUEUED_DEVIATIONS = 2.0
# A budget fuller than 1 less this is taken as this full: laws stay finite. Measured: 0.01 and 0.04
# move TTFT if the budget is nearly full, and not at all in 95 of 100 loads.
_LEAST_SLACK = 0.02
# Width of the range of an inversion, in deviations. Measured: 11 move TTFT by 0.6 % at most in 95
# of 100 loads.
_RANGE_SPREADS = 9.0


class ArrivalState(NamedTuple):
    """A rate of arrivals, and the properties that follow from it.

    share: of the requests that arrive at this rate. shift: running sequences above the mean.
    spread: of the running sequences at this rate, as a share of that at all rates.
    mean_step: seconds of a step without prefill. room_tokens: of the budget, for prefill.
    further: seconds of further steps that a prompt causes. prefill_ratio: λ·(c·I + further).
    """

    share: float
    rate_per_second: float
    shift: float
    spread: float
    mean_step: float
    room_tokens: float
    further: float
    prefill_ratio: float


def states_seen(
    demand: RequestDemand,
    prompts: PromptWork,
    running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
) -> list[ArrivalState]:
    """Return the rates that arrivals meet, slowest first: one for Poisson, two for bursty arrivals.

    Requests come in proportion to the rate, and n follows it by the share in `Bursts`. The rest of
    n's variance is that at one rate.
    """
    bursts = running.bursts
    mean_step = demand.step_fixed_seconds + demand.step_growth_seconds * running.mean
    ratio = rate_per_second * demand.prefill_mean_seconds
    swing = swing_of(bursts, ratio)
    if swing == 0.0:
        shift = 0.0
        if _budget_use(demand, running, rate_per_second, budget_tokens) >= _LEAST_FULL_RATIO:
            shift = _QUEUED_DEVIATIONS * math.sqrt(running.variance)
        load = rate_per_second, budget_tokens
        return [_state(demand, prompts, running, load, (1.0, shift, 1.0))]
    followed = bursts.followed_ratio * running.mean
    left = max(1.0 - (swing * followed) ** 2 / max(running.variance, TINY_NUMBER), 0.0)
    spread = math.sqrt(left)
    batch_work = demand.prefill_per_token_seconds**2 * demand.uncached_second_moment_tokens2
    states = []
    for change in (-swing, swing):
        lasting = lasting_change(bursts, change, mean_step, ratio, batch_work * rate_per_second)
        shift = max(change * followed, _lowest_shift(demand, running, spread))
        load = rate_per_second * (1.0 + lasting), budget_tokens
        part = 0.5 * (1.0 + change), shift, spread
        states.append(_state(demand, prompts, running, load, part))
    return states


def _budget_use(
    demand: RequestDemand, running: Occupancy, rate_per_second: float, budget_tokens: float
) -> float:
    """Return the share of the room in a step that the prompts of a mean step take."""
    step = demand.step_fixed_seconds + demand.step_growth_seconds * running.mean
    slack = max(1.0 - rate_per_second * demand.prefill_mean_seconds, _LEAST_SLACK)
    arriving = rate_per_second * step / slack * demand.uncached_mean_tokens
    return arriving / max(budget_tokens - running.mean, 1.0)


def _lowest_shift(demand: RequestDemand, running: Occupancy, spread: float) -> float:
    """Return the lowest shift of n at which no step is shorter than half of a."""
    lowest = (1.0 - spread) * running.mean + spread * running.lowest
    return -lowest - 0.5 * demand.step_fixed_seconds / max(
        demand.step_growth_seconds, LEAST_GROWTH_SECONDS
    )


def _state(
    demand: RequestDemand,
    prompts: PromptWork,
    running: Occupancy,
    load: tuple[float, float],
    part: tuple[float, float, float],
) -> ArrivalState:
    """Return one state; load: rate per second and token budget. part: share, shift and spread."""
    (rate, budget), (share, shift, spread) = load, part
    count = running.mean + shift
    step = demand.step_fixed_seconds + demand.step_growth_seconds * count
    room = max(budget - count, 1.0)
    work = demand.prefill_mean_seconds
    further = 0.0
    if work > 0.0:
        most = max((1.0 - _LEAST_SLACK) / rate - work, 0.0)
        further = min(further_steps(demand, prompts, room) * step, most)
    return ArrivalState(share, rate, shift, spread, step, room, further, rate * (work + further))


def further_steps(demand: RequestDemand, prompts: PromptWork, room_tokens: float) -> float:
    """Return the steps that a prompt adds to those that hold prompts anyway.

    By itself ⌈I/room⌉ − 1. Behind another of J tokens ⌈(I + J)/room⌉ − ⌈J/room⌉, but no more than
    I/room: if prompts fill the budget each adds that, so that the work diverges exactly at the
    stability frontier λ·Ī·(c + s/room) = 1.
    """
    behind = min(paired_steps(prompts, room_tokens), demand.uncached_mean_tokens / room_tokens)
    return max(mean_steps(prompts, room_tokens) - 1.0, behind)


def range_level(
    demand: RequestDemand, prompts: PromptWork, running: Occupancy, state: ArrivalState
) -> int:
    """Return the level of the shortest range that holds all but the last 0.01 % of the law."""
    cycle = state.mean_step / (1.0 - state.prefill_ratio)
    stretch = 1.0 + state.further / max(demand.prefill_mean_seconds, TINY_SECONDS)
    arrivals = state.rate_per_second * cycle / (1.0 - state.prefill_ratio**2)
    mean = 2.0 * cycle + prompts.mean_seconds * stretch
    square = prompts.second_moment_seconds2 * stretch**2
    spread_n = demand.step_growth_seconds**2 * running.variance
    variance = (1.0 + 3.0 * arrivals) * square - (prompts.mean_seconds * stretch) ** 2
    variance += 4.0 * spread_n + cycle**2
    reach = mean + max(_RANGE_SPREADS * math.sqrt(variance), prompts.longest_seconds * stretch)
    return math.ceil(math.log(reach) / math.log(RANGE_RATIO))
