"""The load that requests meet while they decode, at the mean rate or at one rate of bursts.

Source: variance of a mixture of two rates, D. R. Cox and P. A. W. Lewis, The Statistical Analysis
of Series of Events (1966), chapter 7.
"""

from typing import NamedTuple

from servingslo.models.engine.service_time import RequestDemand
from servingslo.models.numerics import TINY_VARIANCE
from servingslo.models.running.bursts import STEADY, Bursts, lasting_change


class GapLoad(NamedTuple):
    """The load that decoding requests meet: an arrival rate, and the law of running sequences.

    rate_per_second: of one replica. mean, variance: of the running sequences.
    pool_count, bursts: as in `Occupancy`. prefill_steps: mean number of steps that prefill a
    prompt.
    """

    rate_per_second: float
    mean: float
    variance: float
    pool_count: int
    bursts: Bursts
    prefill_steps: float


def at_changed_rate(demand: RequestDemand, load: GapLoad, change: float, swing: float) -> GapLoad:
    """Return the load of requests that meet one of the two rates λ(1 ± swing) all along."""
    bursts = load.bursts
    ratio = load.rate_per_second * demand.prefill_mean_seconds
    step = demand.step_fixed_seconds + demand.step_growth_seconds * load.mean
    followed = bursts.followed_ratio * load.mean
    left = max(1.0 - (swing * followed) ** 2 / max(load.variance, TINY_VARIANCE), 0.0)
    lasting = lasting_change(bursts, change, step, ratio)
    return GapLoad(
        rate_per_second=load.rate_per_second * (1.0 + lasting),
        mean=max(load.mean + change * followed, 0.0),
        variance=left * load.variance,
        pool_count=load.pool_count,
        bursts=STEADY,
        prefill_steps=load.prefill_steps,
    )


def own_step(demand: RequestDemand, load: GapLoad) -> float:
    """Return a step that includes the request itself: one more in the pool, spread evenly.

    The replica never has fewer sequences than this one.
    """
    running = max(load.mean + 1.0 / load.pool_count, 1.0)
    return demand.step_fixed_seconds + demand.step_growth_seconds * running
