"""Share of the arrivals of a pool that find a replica idle, compiled; see `pools.idle_met`."""

import math

from servingslo.models.compiled.shared import share
from servingslo.models.pools import Shared, found_idle, in_system, never_idle
from servingslo.models.service_time import RequestDemand

# Terms below this part of their sum add nothing to it.
_NEGLIGIBLE_TERM = 1e-17


def fewer_than(count: int, shape: float, success: float) -> float:
    """P(M < count) of a negative binomial M, for count of at least 1.

    Terms from the last to the first: each is found from the one above it.
    """
    last = count - 1.0
    log_term = math.lgamma(last + shape) - math.lgamma(shape) - math.lgamma(last + 1.0)
    log_term += shape * math.log(success) + last * math.log1p(-success)
    term = 1.0
    total = 1.0
    while last > 0.0:
        ratio = last / ((last - 1.0 + shape) * (1.0 - success))
        term *= ratio
        total += term
        if ratio < 1.0 and term < _NEGLIGIBLE_TERM * total:
            break
        last -= 1.0
    # Far above the mean the terms grow downwards beyond any number.
    return min(math.exp(log_term + math.log(total)), 1.0)


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
