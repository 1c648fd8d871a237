"""Where a percentile meets its limit: a search along the utilization of an engine."""

import math
from typing import NamedTuple

# No fleet runs at less: what fails there fails on an idle fleet.
LEAST_UTILIZATION = 1e-3
# Below this a replica is all but idle: by M/M/1 a wait is a tenth of a service time.
IDLE_UTILIZATION = 0.1
# Where nothing is known searches begin at the knee of every queueing law, with the steepness that
# percentiles have at their limits: 0.2 to 0.5 on three cards.
FIRST_UTILIZATION = 0.7
USUAL_STEEPNESS = 0.5
# How close the crossing is known, as a share of the rate.
CLOSE_RATIO = 2e-4
# A percentile that rises faster jumps, as by one more step of prefill: its slope tells nothing of
# where, and only two looks on both sides do. Next to saturation 3 was seen.
STEEPEST = 5.0
# Lines that are followed before the range is halved, and how often it is: to 2e-4 of any range.
LINES = 8
MOST_ROUNDS = 24


class Crossing(NamedTuple):
    """The greatest utilization at which a percentile is within its limit; 0 where none is.

    steepness: the rise of its logarithm over that of the rate there; None where not known.
    """

    utilization: float
    steepness: float | None


class CrossingSearch:
    """A search for a crossing, one look at a time.

    utilization: where it looks next. ended: the crossing, once it is known. hopeless: it fails
    wherever it was looked at, down to an all but idle fleet.
    """

    __slots__ = ("_high", "_known", "_low", "_rounds", "_steepness", "_top", "ended", "utilization")

    def __init__(
        self, greatest_utilization: float, near: Crossing | None = None, looser: float = 0.0
    ) -> None:
        """near: of a load much alike. looser: logarithm of this limit over that one."""
        self._top = math.log(greatest_utilization)
        self._steepness = USUAL_STEEPNESS
        self._known: list[tuple[float, float]] = []
        self._low, self._high = math.log(LEAST_UTILIZATION), self._top
        self._rounds = 0
        self.ended: Crossing | None = None
        start = math.log(FIRST_UTILIZATION)
        if near is not None and near.utilization > 0.0:
            self._steepness = near.steepness or USUAL_STEEPNESS
            start = math.log(near.utilization) + looser / self._steepness
        elif near is not None:
            start = math.log(IDLE_UTILIZATION)
        self._look(start)

    @property
    def hopeless(self) -> bool:
        """Whether it fails wherever it was looked at, and an idle fleet is looked at next."""
        return all(excess > 0.0 for _, excess in self._known) and (
            self._at <= math.log(IDLE_UTILIZATION)
        )

    @property
    def _at(self) -> float:
        return math.log(self.utilization)

    def _look(self, at: float) -> None:
        self.utilization = math.exp(min(max(at, self._low), self._high))

    def told(self, ratio: float) -> None:
        """What the percentile is where it was looked at, over its limit."""
        at, excess = self._at, math.log(ratio) if ratio > 0.0 else -math.inf
        self._rounds += 1
        self._known.append((at, excess))
        if excess <= 0.0:
            self._low = max(self._low, at)
        else:
            self._high = min(self._high, at)
        if excess <= 0.0 and at >= self._top - CLOSE_RATIO:
            self.ended = Crossing(math.exp(self._top), None)
        elif excess > 0.0 and at <= math.log(LEAST_UTILIZATION) + CLOSE_RATIO:
            self.ended = Crossing(0.0, None)
        elif self._high - self._low <= CLOSE_RATIO or self._rounds >= MOST_ROUNDS:
            self.ended = Crossing(math.exp(self._low), self._steepness)
        else:
            self._next(at, excess)

    def _next(self, at: float, excess: float) -> None:
        """Follow the line through the two looks next to the limit, or halve the range."""
        others = [one for one in self._known if one[0] != at and math.isfinite(one[1])]
        if others and math.isfinite(excess):
            other, beside = min(others, key=lambda one: abs(one[1]))
            slope = (beside - excess) / (other - at)
            if 0.0 < slope <= STEEPEST:
                self._steepness = slope
        root = at - excess / self._steepness if math.isfinite(excess) else math.nan
        if abs(root - at) <= CLOSE_RATIO:
            self.ended = Crossing(math.exp(min(root, at)), self._steepness)
            return
        failed = self._high < self._top
        if excess == -math.inf and not failed:
            root = self._top
        elif self._rounds > LINES or not root >= self._low or (failed and root >= self._high):
            root = 0.5 * (self._low + self._high)
        self._look(root)
