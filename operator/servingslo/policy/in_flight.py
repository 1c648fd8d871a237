"""What runs now, held against what should run at the rate that arrives.

Lengths and times of service are known of requests that have ended. Where requests become longer the
ones in flight tell it first: by Little's law there are more of them than the rate and the model of
now explain. A fleet is not made smaller against that evidence, however far its rate falls.
Source: J. D. C. Little, "A proof for the queuing formula L = λW", Operations Research 1961.
"""

import math
from operator import attrgetter

from servingslo.policy.context import TickContext
from servingslo.policy.demand import Demand
from servingslo.policy.sizing import SizingCase

# Standard deviations that the number in flight varies by in one window in a thousand.
SURE_DEVIATIONS = 3.0
# What lengths and the law may be out by at any moment without requests having become others.
LEAST_RATIO = 1.25
# Requests three times as long at the same rate; beyond, it is a backlog that has not been seen yet.
LARGEST_RATIO = 3.0


def implied_arrival_rate_per_second(
    context: TickContext, case: SizingCase, demand: Demand
) -> float:
    """The arrival rate at which as many would run as surely run now, requests per second.

    Engines whose requests wait are left out: they serve what came before. 0 where about as many run
    as should, no model is trusted, nothing arrives, or the present count is beyond saturation.
    """
    rate = demand.rate_per_second
    fleet = case.fleet(len(context.serving))
    running = [
        engine.running
        for pod in context.serving
        for engine in pod.engines
        if engine.running is not None and not engine.waiting
    ]
    if not context.trusted or rate <= 0.0 or not running:
        return 0.0

    def expected(name: str) -> float:
        return case.frontier.reading(attrgetter(name), rate, fleet)

    if rate >= case.saturation_per_second * len(context.serving):
        return 0.0
    sure = sum(running) / len(running) - SURE_DEVIATIONS * math.sqrt(expected("running_variance"))
    if sure <= LEAST_RATIO * expected("running_floor"):
        return 0.0
    ratio = sure / expected("running_mean")
    return rate * min(ratio, LARGEST_RATIO) if ratio > LEAST_RATIO else 0.0
