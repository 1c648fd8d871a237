"""Time to first token, with the wait for a slot.

Law: M/M/c: a request that finds all slots taken waits an exponential time, then its own prefill.
Source: A. K. Erlang (1917); the wait is that of `occupancy`.
Assumes: the wait and what follows are independent; a step in which all slots are taken.
Fails: a binding KV cache: TTFT p95 up to 26 % early.
Shown by: `make validate`, "KV-bound".
"""

import math
from collections.abc import Sequence

import numpy as np

from servingslo.models.engine.service_time import FloatArray, RequestDemand
from servingslo.models.running.occupancy import Occupancy
from servingslo.models.transform import TabulatedLaw
from servingslo.models.waits.first_token import first_token_laws
from servingslo.models.waits.prompt_work import PromptWork

# Smaller shares of waiting requests are noise of the quadrature.
NEGLIGIBLE_WAIT = 1e-5
# The table ends when all but this share of requests have their first token.
WAIT_TAIL = 1e-5
# Measured: 256 points move no percentile by more than 0.2 %.
TAIL_POINTS = 64


def time_to_first_token_laws(
    demand: RequestDemand,
    prompts: PromptWork,
    laws_of_running: Sequence[Occupancy],
    rates_per_second: Sequence[float],
    budget_tokens: float,
) -> list[TabulatedLaw]:
    """Return laws of the time to first token in seconds, with the wait for a slot, by load.

    The wait for room in the budget is in the law of requests that wait for no slot.
    """
    started = first_token_laws(demand, prompts, laws_of_running, rates_per_second, budget_tokens)
    return [
        law
        if 1.0 - running.below_cap < NEGLIGIBLE_WAIT
        else _with_wait(demand, prompts, running, rate, budget_tokens, law)
        for law, running, rate in zip(started, laws_of_running, rates_per_second, strict=True)
    ]


def _with_wait(
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
    started: TabulatedLaw,
) -> TabulatedLaw:
    """Return the joint law of requests that do not wait for a slot, and of those that do.

    Those that wait do so for an exponential time, then one step with the slots full that holds
    their prompt.
    """
    waiting = law_of_running.wait_probability
    step = demand.step_fixed_seconds + demand.step_growth_seconds * law_of_running.cap
    cycle = step / (1.0 - rate_per_second * demand.prefill_mean_seconds)
    room = max(budget_tokens - law_of_running.cap, 1.0)
    own = cycle + prompts.seconds + np.maximum(np.ceil(prompts.tokens / room) - 1.0, 0.0) * step
    wait_rate = law_of_running.wait_rate_per_second
    end = float(started.seconds[-1]) + max(math.log(waiting / WAIT_TAIL), 1.0) / wait_rate
    tail: FloatArray = np.linspace(float(started.seconds[-1]), end, TAIL_POINTS + 1)[1:]
    seconds = np.concatenate((started.seconds, tail))
    beyond = _beyond(seconds, own, prompts.weights, wait_rate)
    body = np.concatenate((started.probability, np.ones(TAIL_POINTS)))
    return TabulatedLaw(
        seconds=seconds, probability=(1.0 - waiting) * body + waiting * (1.0 - beyond)
    )


def _beyond(seconds: FloatArray, own: FloatArray, weights: FloatArray, rate: float) -> FloatArray:
    """Return P(W + own > t) for an exponential wait W and increasing own times with these weights.

    The terms whose own time has passed decay together. They are kept as one sum at the last of
    them, which needs one exponential per time instead of one per pair.
    """
    decays = np.exp(-rate * (own[1:] - own[:-1])).tolist()
    masses = weights.tolist()
    passed, later = [0.0, masses[0]], [1.0 - masses[0]]
    for decay, mass in zip(decays, masses[1:], strict=True):
        passed.append(passed[-1] * decay + mass)
        later.append(later[-1] - mass)
    reached = own.searchsorted(seconds, side="right")
    since = seconds - np.concatenate((own[:1], own))[reached]
    beyond: FloatArray = np.exp(-rate * np.maximum(since, 0.0))
    beyond *= np.array(passed)[reached]
    beyond += np.array([1.0, *later])[reached]
    return beyond
