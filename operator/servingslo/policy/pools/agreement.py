"""Whether prefill and decode can have counted the same requests.

A page that lost its numbers for a moment shows them all at once when it is back. One pool alone may
have served so many; two in a row that see the same requests contradict each other.
"""

import math

from servingslo.estimation.windows.scrapes import counters_age_seconds
from servingslo.policy.planner import Seen

# Counts of one stream in two windows differ by chance, and by requests on their way.
# Judgement: four standard deviations, and ten requests where few are counted; measured by windows
# of the pools' benchmark that were put off.
DEVIATIONS = 4.0
FEW_REQUESTS = 10.0


def is_explained(
    prefill: Seen, decode: Seen, first_per_second: float, last_per_second: float, seconds: float
) -> bool:
    """Whether what prefill counted beyond decode is still there, or was scraped later.

    first_per_second, last_per_second: arrivals at prefill and at decode. seconds: that they are of.
    """
    ages = [
        counters_age_seconds(engine)
        for one in (prefill, decode)
        for pod in one.context.observation.pods
        for engine in pod.engines
    ]
    skew_seconds = max(ages) - min(ages) if ages else seconds
    estimate = prefill.context.estimate
    held = estimate.waiting_requests + estimate.running_requests
    by_chance = DEVIATIONS * math.sqrt(first_per_second * seconds) + FEW_REQUESTS
    excess = (first_per_second - last_per_second) * seconds
    return excess <= held + first_per_second * skew_seconds + by_chance
