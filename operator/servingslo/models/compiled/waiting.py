"""Time to first token with the wait for a slot, in loops; see `waiting`."""

import math

import numpy as np

from servingslo.models.compiled.inversion import POINTS
from servingslo.models.compiled.prompts import Prompts
from servingslo.models.compiled.shared import share
from servingslo.models.occupancy import Occupancy
from servingslo.models.service_time import FloatArray, RequestDemand
from servingslo.models.waiting import NEGLIGIBLE_WAIT, TAIL_POINTS, WAIT_TAIL

__all__ = ["LAW_POINTS", "NEGLIGIBLE_WAIT", "with_wait"]

# Most points of a law.
LAW_POINTS = POINTS + TAIL_POINTS


def with_wait(
    demand: RequestDemand,
    prompts: Prompts,
    running: Occupancy,
    load: tuple[float, float],
    law: FloatArray,
) -> int:
    """Let some requests of the law wait for a slot, in place; returns the number of points.

    load: rate per second and token budget.
    """
    rate, budget = load
    waiting, wait_rate = running.wait_probability, running.wait_rate_per_second
    step = demand.step_fixed_seconds + demand.step_growth_seconds * running.cap
    cycle = step / (1.0 - rate * demand.prefill_mean_seconds)
    room = max(budget - running.cap, 1.0)
    points = len(prompts.tokens)
    own = np.empty(points)
    for j in range(points):
        more = max(np.ceil(prompts.tokens[j] / room) - 1.0, 0.0)
        own[j] = cycle + prompts.seconds[j] + more * step
    seconds, probability = law[0], law[1]
    body_end = seconds[POINTS - 1]
    tail = max(math.log(waiting / WAIT_TAIL), 1.0) / wait_rate
    for point in range(TAIL_POINTS):
        seconds[POINTS + point] = body_end + tail * ((point + 1.0) / TAIL_POINTS)
        probability[POINTS + point] = 1.0
    # Own times that have passed decay together, as one sum at the last of them.
    reached, passed, later, last = 0, 0.0, 1.0, own[0]
    for point in range(LAW_POINTS):
        while reached < points and own[reached] <= seconds[point]:
            passed = (
                passed * math.exp(-wait_rate * (own[reached] - last)) + prompts.weights[reached]
            )
            later -= prompts.weights[reached]
            last = own[reached]
            reached += 1
        beyond = passed * math.exp(-wait_rate * max(seconds[point] - last, 0.0)) + later
        probability[point] = (1.0 - waiting) * probability[point] + waiting * (1.0 - beyond)
    return LAW_POINTS


share(with_wait)
