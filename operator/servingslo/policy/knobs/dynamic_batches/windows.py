"""Choose the window for the planned rate: how long the first request of a batch waits for others.

One window is judged at a tick. A window is worth a change if the time that it saves until the next
change may come exceeds the time that requests wait while their server loads the model again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from servingslo.models.engine.service_time import ServiceLaw
from servingslo.models.fleet.frontier import Limit
from servingslo.models.objectives import LatencyMetric
from servingslo.models.waits.dynamic_batches import (
    NEAREST_SATURATION,
    BatchTimes,
    saturation_per_second,
)
from servingslo.policy.knobs.decisions import BatcherLimits
from servingslo.policy.knobs.dynamic_batches.search import (
    EQUAL_RATE_RATIO,
    BatcherSearch,
    window_candidates,
)
from servingslo.policy.knobs.dynamic_batches.servers import with_limits
from servingslo.policy.replicas.sizing import SizingCase

# A load keeps requests waiting for so long on the rig; models of gigabytes take longer.
LOAD_SECONDS = 2.0
# Error of the law's p95 against a real server at most points (docs/lab/triton.md): a change must
# gain more.
LEAST_GAIN_RATIO = 1.1
# Traffic is light below this share of what a replica carries, so that what it carries at most does
# not count; and busy above the other. Between them nothing is moved for either reason.
LIGHT_RATIO, BUSY_RATIO = 0.4, 0.6
# Rates this close are the same: windows are judged over several ticks.
_SAME_RATE_RATIO = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSearch:
    """Mean latencies in seconds of one server at one rate, by limits that differ in the window.

    math.inf: an objective would be missed. candidates: those to judge.
    """

    current: BatcherLimits
    law: ServiceLaw
    instances: int
    rate_per_second: float
    objectives: tuple[Limit, ...]
    candidates: tuple[BatcherLimits, ...]
    seconds: Mapping[BatcherLimits, float] = field(default_factory=dict)

    def is_of(self, current: BatcherLimits, law: ServiceLaw, rate_per_second: float) -> bool:
        """Whether this search is still of the present limits, law and rate."""
        low, high = sorted((rate_per_second, self.rate_per_second))
        return high <= _SAME_RATE_RATIO * low and (current, law) == (self.current, self.law)

    @property
    def ended(self) -> bool:
        """Whether every window has been judged."""
        return all(one in self.seconds for one in self.candidates)

    def is_worth(self, best: BatcherLimits, within_seconds: float) -> bool:
        """Whether these limits save more until the next change than this change costs.

        While a model loads, each request that comes waits for half of the load, on average; as many
        requests per second gain by the window afterwards.
        """
        now = self.seconds.get(self.current, math.inf)
        then = self.seconds.get(best, math.inf)
        if math.isinf(then) or now < LEAST_GAIN_RATIO * then:
            return False
        return math.isinf(now) or (now - then) * within_seconds > LOAD_SECONDS**2 / 2.0


class Better(NamedTuple):
    """Limits with another window, and why they are better, in words."""

    limits: BatcherLimits
    why: str


def judge_window(
    windows: WindowSearch | None,
    search: BatcherSearch,
    case: SizingCase,
    planned_per_second: float | None,
) -> WindowSearch | None:
    """Judge one more window at the planned rate of a replica; None without requests."""
    if not planned_per_second:
        return None
    if windows is None or not windows.is_of(search.current, search.law, planned_per_second):
        windows = WindowSearch(
            current=search.current,
            law=search.law,
            instances=search.instances,
            rate_per_second=planned_per_second,
            objectives=tuple(map(case.limit, case.objectives)),
            candidates=window_candidates(search, case),
        )
    return try_next(windows)


def try_next(search: WindowSearch) -> WindowSearch:
    """Judge one more window, if any is left."""
    left = [one for one in search.candidates if one not in search.seconds]
    if not left:
        return search
    seconds = _mean_seconds(search, left[0])
    return replace(search, seconds={**search.seconds, left[0]: seconds})


def better_window(
    windows: WindowSearch | None, search: BatcherSearch, within_seconds: float
) -> Better | None:
    """The window that is worth a change if the next may come after so long; None without one.

    It carries as much as the one in force, or enough in light traffic.
    """
    if windows is None or not windows.ended:
        return None
    rate, current, seconds = windows.rate_per_second, search.current, windows.seconds
    least = EQUAL_RATE_RATIO * search.rates.get(current, 0.0)
    carried = {one: search.rates.get(one, 0.0) for one in windows.candidates}
    allowed = [
        one
        for one, most in carried.items()
        if one == current or most >= least or rate <= LIGHT_RATIO * most
    ]
    # Of equals the shortest window.
    best = min(allowed, key=lambda one: (seconds[one], one.max_queue_delay_microseconds))
    if best == current or not windows.is_worth(best, within_seconds):
        return None
    former = "a missed objective" if math.isinf(seconds[current]) else f"{seconds[current]:.3g} s"
    why = f"at {rate:.3g} requests/s of a replica one takes {seconds[best]:.3g} s instead of"
    return Better(best, f"{why} {former}")


def follows_load(search: BatcherSearch, planned_per_second: float | None) -> bool:
    """Whether the load says which window is best, rather than what a replica carries at most."""
    if search.best.max_batch_size != search.current.max_batch_size or planned_per_second is None:
        return False
    return planned_per_second < BUSY_RATIO * search.rates.get(search.current, 0.0)


def _mean_seconds(search: WindowSearch, limits: BatcherLimits) -> float:
    batcher, rate = with_limits(limits, search.instances), search.rate_per_second
    if rate >= NEAREST_SATURATION * saturation_per_second(search.law, batcher):
        return math.inf
    times = BatchTimes(search.law, batcher, rate)
    for one in search.objectives:
        of_wait = one.metric is LatencyMetric.QUEUE_TIME
        seconds = times.wait_seconds if of_wait else times.latency_seconds
        if times.quantile(seconds, one.percentile / 100.0) > one.most:
            return math.inf
    return float(times.weight @ times.latency_seconds)
