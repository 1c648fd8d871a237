"""What arrivals of a pool find at their replica, compiled; see `levels.found_by_arrivals`."""

import math
from typing import Any

from servingslo.models import few_requests, levels
from servingslo.models.compiled.shared import share, share_modules
from servingslo.models.levels import (
    MORE,
    NEVER_IDLE,
    Averages,
    Found,
    Requests,
    Shared,
    clustered,
    found_at,
    found_on_average,
    largest_number,
    law_of_number,
    most_few,
    next_mean,
    requests_of,
)
from servingslo.models.service_time import RequestDemand

# Terms below this part of their sum add nothing to it.
_NEGLIGIBLE_TERM = 1e-17


def found_by_arrivals(demand: RequestDemand, pool: Shared) -> Found:
    """`levels.found_by_arrivals` of one pool."""
    requests = requests_of(demand, pool)
    if requests.mean <= 0.0:
        return NEVER_IDLE
    mean = next_mean(
        demand, pool, requests, requests.mean, averages_at(pool, requests, requests.mean)
    )
    averages = averages_at(pool, requests, mean), averages_at(pool, requests, MORE * mean)
    requests = clustered(demand, pool, requests, mean, averages)
    return found_on_average(demand, pool, requests, averages_at(pool, requests, requests.mean))


def averages_at(pool: Shared, requests: Requests, mean: float) -> Averages:
    """Means over the number of requests, whose law is told from term to term."""
    shape, success = law_of_number(mean, requests.excess)
    failure, last = 1.0 - success, largest_number(pool.pool_count, requests) - 1.0
    largest = min(math.floor(max(shape - 1.0, 0.0) * failure / success), last)
    sums: Any = _added(pool, requests, largest, 1.0, (0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    term, number = 1.0, largest
    while number > 0.0 and term > _NEGLIGIBLE_TERM:
        term *= number / ((number - 1.0 + shape) * failure)
        number -= 1.0
        sums = _added(pool, requests, number, term, sums)
    term, number = 1.0, largest
    while number < last and term > _NEGLIGIBLE_TERM:
        term *= (number + shape) * failure / (number + 1.0)
        number += 1.0
        sums = _added(pool, requests, number, term, sums)
    total, met, square, idle, few, empty = sums
    return Averages(met / total, square / total, idle / total, few / total, 1.0 - empty / total)


def _added(pool: Shared, requests: Requests, number: float, term: float, sums: Any) -> Any:
    count = float(pool.pool_count)
    met, idle = found_at(number, count, requests)
    few = 1.0 if number < most_few(pool.pool_count) else 0.0
    empty = max(1.0 - number / count, 0.0)
    return (
        sums[0] + term,
        sums[1] + term * met,
        sums[2] + term * met * met,
        sums[3] + term * idle,
        sums[4] + term * few,
        sums[5] + term * empty,
    )


share_modules(few_requests, levels)
share(averages_at, found_by_arrivals, _added)
