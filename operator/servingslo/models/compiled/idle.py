"""Share of the arrivals of a pool that find a replica idle, compiled; see `pools.idle_met`."""

import math

from servingslo.models.compiled.shared import share
from servingslo.models.pools import Shared, found_idle, in_system, never_idle
from servingslo.models.service_time import RequestDemand

# Terms below this part of their sum add nothing to it.
_NEGLIGIBLE_TERM = 1e-17
# Gamma functions of numbers below this keep eleven digits.
_LARGEST_TOLD = 1e4


def fewer_than(count: int, shape: float, success: float) -> float:
    """P(M < count) of a negative binomial M.

    Terms are found from the next one, downwards and upwards from the largest, whose own probability
    gamma functions tell; not with a large shape, which takes their digits: but then a law has no
    long tail, and all terms are summed.
    """
    failure = 1.0 - success
    largest = math.floor(max(shape - 1.0, 0.0) * failure / success)
    told = largest + shape < _LARGEST_TOLD
    below = 1.0 if largest < count else 0.0
    total, term, number = 1.0, 1.0, float(largest)
    while number > 0.0 and term > _NEGLIGIBLE_TERM * total:
        term *= number / ((number - 1.0 + shape) * failure)
        number -= 1.0
        total += term
        if number < count:
            below += term
    term, number = 1.0, float(largest)
    while term > _NEGLIGIBLE_TERM * total and (number + 1.0 < count or not told):
        term *= (number + shape) * failure / (number + 1.0)
        number += 1.0
        total += term
        if number < count:
            below += term
    if not told:
        return below / total
    log_largest = math.lgamma(largest + shape) - math.lgamma(shape) - math.lgamma(largest + 1.0)
    log_largest += shape * math.log(success) + largest * math.log1p(-success)
    return min(below * math.exp(log_largest), 1.0)


def idle_share(demand: RequestDemand, pool: Shared) -> float:
    """`pools.idle_met` of one pool."""
    if never_idle(pool.mean, pool.variance):
        return 0.0
    mean, shape, success = in_system(demand, pool)
    if mean <= 0.0:
        return 0.0
    count = pool.pool_count
    return found_idle(
        count,
        mean,
        fewer_than(count, shape, success),
        fewer_than(max(count - 1, 1), shape + 1.0, success),
        fewer_than(2 * count, shape, success),
        fewer_than(2 * count - 1, shape + 1.0, success),
    )


share(found_idle, in_system, never_idle, fewer_than, idle_share)
