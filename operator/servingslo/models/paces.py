"""The rates and the steps that arrivals meet: one pace, or several where bursts or budgets bind."""

import math
from typing import NamedTuple

from servingslo.models.occupancy import Occupancy
from servingslo.models.prompt_work import PromptWork
from servingslo.models.service_time import RequestDemand

# Share of the budget in use from which prompts are taken to queue for it.
LEAST_FULL_RATIO = 0.1
_LEAST_SLACK = 0.02
_TINY_SECONDS = 1e-12


class Pace(NamedTuple):
    """A rate of arrivals, and what follows from it.

    share: of the requests that arrive at this rate. shift: running sequences above the mean.
    spread: of the running sequences at this rate, as a share of that at all rates.
    mean_step: seconds of a step without prefill. room_tokens: of the budget, for prefill.
    further: seconds of further steps that a prompt causes. budget_ratio: share of the budget that
    prompts take on average. prefill_ratio: λ·(c·I + further).
    """

    share: float
    rate_per_second: float
    shift: float
    spread: float
    mean_step: float
    room_tokens: float
    further: float
    budget_ratio: float
    prefill_ratio: float


def paces_met(
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
) -> tuple[Pace, ...]:
    """The rates that arrivals are met at, slowest first: one for Poisson, two for bursty arrivals.

    Requests come in proportion to the rate, and n follows it as far as `Bursts` says; what is left
    of its variance is that at one rate.
    """
    bursts, growth = law_of_running.bursts, demand.step_growth_seconds
    mean_step = demand.step_fixed_seconds + growth * law_of_running.mean
    ratio = rate_per_second * demand.prefill_mean_seconds
    swing = bursts.swing(ratio) if bursts is not None else 0.0
    if bursts is None or swing == 0.0:
        return _budget_paces(demand, prompts, law_of_running, rate_per_second, budget_tokens)
    followed = bursts.followed_ratio * law_of_running.mean
    left = max(1.0 - (swing * followed) ** 2 / max(law_of_running.variance, _TINY_SECONDS), 0.0)
    spread = math.sqrt(left)
    paces = []
    for change in (-swing, swing):
        lasting = bursts.lasting_change(change, mean_step, ratio)
        pace = _pace(
            demand,
            prompts,
            law_of_running,
            rate_per_second * (1.0 + lasting),
            budget_tokens,
            shift=max(change * followed, _lowest_shift(demand, law_of_running, spread)),
        )
        paces.append(pace._replace(share=0.5 * (1.0 + change), spread=spread))
    return tuple(paces)


def _budget_paces(
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
) -> tuple[Pace, ...]:
    """One pace; three where prompts queue for the budget.

    The room in a step and its length depend on n, which changes more slowly than that queue does: a
    request meets the queue of its own n. Three points of a normal law (Gauss and Hermite) stand for
    n, with the share of its variance that lasts: the queue relaxes in λ·E[W²]/(1 − u)², n in s·R/a.
    """
    mean = _pace(demand, prompts, law_of_running, rate_per_second, budget_tokens)
    if mean.budget_ratio < LEAST_FULL_RATIO:
        return (mean,)
    _, queue = budget_queue(demand, mean)
    running = law_of_running.mean / rate_per_second * mean.mean_step / demand.step_fixed_seconds
    lasting = running / (running + queue)
    reach = math.sqrt(3.0 * lasting * law_of_running.variance)
    spread = math.sqrt(1.0 - lasting)
    paces = []
    for change, share in ((-reach, 1.0 / 6.0), (0.0, 2.0 / 3.0), (reach, 1.0 / 6.0)):
        shift = max(change, _lowest_shift(demand, law_of_running, spread))
        pace = _pace(demand, prompts, law_of_running, rate_per_second, budget_tokens, shift)
        paces.append(pace._replace(share=share, spread=spread))
    return tuple(paces)


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
    shift: float = 0.0,
) -> Pace:
    running = law_of_running.mean + shift
    mean_step = demand.step_fixed_seconds + demand.step_growth_seconds * running
    room = max(float(round(budget_tokens - running)), 1.0)
    further, full = further_seconds(demand, prompts, rate_per_second, mean_step, room)
    return Pace(
        share=1.0,
        rate_per_second=rate_per_second,
        shift=shift,
        spread=1.0,
        mean_step=mean_step,
        room_tokens=room,
        further=further,
        budget_ratio=full,
        prefill_ratio=rate_per_second * (demand.prefill_mean_seconds + further),
    )


def further_seconds(
    demand: RequestDemand,
    prompts: PromptWork,
    rate_per_second: float,
    mean_step: float,
    room_tokens: float,
) -> tuple[float, float]:
    """Seconds of further steps that each prompt of others causes, and the share of budget in use.

    A prompt of J tokens in front of one of I tokens adds ⌈(I + J)/room⌉ − ⌈I/room⌉ steps of s, on
    average over both lengths, and those of a prompt are taken in proportion to its length. Half of
    the prompts of a step stand behind the request, and cost it these steps only as far as the
    budget is full. Where several come in a step, those beyond the
    first find the backlog at any point of a room and add J/room, so that the work diverges exactly
    at the stability frontier λ·Ī·(c + s/room) = 1.
    """
    work = demand.prefill_mean_seconds
    if work <= 0.0 or rate_per_second <= 0.0:
        return 0.0, 0.0
    even = demand.uncached_mean_tokens / room_tokens
    paired = prompts.paired_steps(room_tokens) if 2.0 * prompts.tokens[-1] > room_tokens else 0.0
    most = max((1.0 - _LEAST_SLACK) / rate_per_second - work, 0.0)
    # A step lasts s/(1 − λ·c·I), however prompts are cut.
    count = rate_per_second * mean_step / max(1.0 - rate_per_second * work, _LEAST_SLACK)
    beyond = max(count - 1.0, 0.0) / count
    full = min(count * even, 1.0)
    steps = (1.0 - beyond) * paired + beyond * full * even
    return min((0.5 + 0.5 * full) * steps * mean_step, most), full


def budget_queue(demand: RequestDemand, pace: Pace) -> tuple[float, float]:
    """Load of the budget, u = λ·E[W] with W = I·(c + s/room), and how long its queue remembers.

    The memory is that of a reflected Brownian motion, λ·E[W²]/(1 − u)².
    """
    per_token = demand.prefill_per_token_seconds + pace.mean_step / pace.room_tokens
    load = pace.rate_per_second * demand.uncached_mean_tokens * per_token
    load = min(load, 1.0 - _LEAST_SLACK)
    square = demand.uncached_second_moment_tokens2 * per_token**2
    return load, pace.rate_per_second * square / (1.0 - load) ** 2
