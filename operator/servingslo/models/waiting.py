"""Time to first token of requests that wait for a slot."""

import math

import numpy as np

from servingslo.models.first_token import PromptWork
from servingslo.models.occupancy import Occupancy
from servingslo.models.service_time import FloatArray, RequestDemand
from servingslo.models.transform import TabulatedLaw

# Shares of requests that wait below this are noise of the quadrature.
_NEGLIGIBLE_WAIT = 1e-5
# The table ends where all but this share of requests have their first token.
_WAIT_TAIL = 1e-5
_TAIL_POINTS = 64


def with_wait(
    started: TabulatedLaw,
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
) -> TabulatedLaw:
    """TTFT with the wait for a slot, for the share of requests that wait.

    Those wait an exponential time, then one step with the slots full that holds their prompt.
    """
    waiting = law_of_running.wait_probability
    if waiting < _NEGLIGIBLE_WAIT:
        return started
    step = demand.step_fixed_seconds + demand.step_growth_seconds * law_of_running.cap
    cycle = step / (1.0 - rate_per_second * demand.prefill_mean_seconds)
    room = max(budget_tokens - law_of_running.cap, 1.0)
    own = cycle + prompts.seconds + np.maximum(np.ceil(prompts.tokens / room) - 1.0, 0.0) * step
    wait_rate = law_of_running.wait_rate_per_second
    end = float(started.seconds[-1]) + max(math.log(waiting / _WAIT_TAIL), 1.0) / wait_rate
    tail: FloatArray = np.linspace(float(started.seconds[-1]), end, _TAIL_POINTS + 1)[1:]
    seconds = np.concatenate((started.seconds, tail))
    beyond = np.exp(-wait_rate * np.maximum(seconds[:, None] - own, 0.0)) @ prompts.weights
    body = np.concatenate((started.probability, np.ones(_TAIL_POINTS)))
    return TabulatedLaw(
        seconds=seconds, probability=(1.0 - waiting) * body + waiting * (1.0 - beyond)
    )
