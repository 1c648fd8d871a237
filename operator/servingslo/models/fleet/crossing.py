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
USUAL_STEEPNESS = 0.4
# How close the crossing is known, as a share of the rate, and where the percentile jumps.
CLOSE_RATIO = 2e-4
CLOSE_TO_JUMP_RATIO = 2e-3
# A percentile that rises faster jumps, as by one more step of prefill: its slope tells nothing of
# where, and only two looks on both sides do. Next to saturation 3 was seen.
STEEPEST = 5.0
# Lines that are followed before the range is halved, and how often it is: to 2e-4 of any range.
LINES = 8
MOST_ROUNDS = 24


class Crossing(NamedTuple):
    """The greatest utilization at which a percentile is within its limit; 0 where none is.

    steepness: the rise of its logarithm over that of u/(1 − u) there, in which waits are all but
    lines; None where not known.
    """

    utilization: float
    steepness: float | None


def _place(utilization: float) -> float:
    return math.log(utilization / (1.0 - utilization))


class CrossingSearch:
    """A search for a crossing, one look at a time.

    utilization: where it looks next. ended: the crossing, once it is known. hopeless: it fails
    wherever it was looked at, down to an all but idle fleet.
    """

    __slots__ = ("_at", "_failed", "_high", "_known", "_low", "_steepness", "_top", "ended")

    def __init__(
        self, greatest_utilization: float, near: Crossing | None = None, looser: float = 0.0
    ) -> None:
        """near: of a load much alike. looser: logarithm of this limit over that one."""
        self._top = _place(greatest_utilization)
        self._steepness = USUAL_STEEPNESS
        self._known: list[tuple[float, float]] = []
        self._low, self._high = _place(LEAST_UTILIZATION), self._top
        self._failed = False
        self.ended: Crossing | None = None
        start = _place(FIRST_UTILIZATION)
        if near is not None and near.utilization > 0.0:
            self._steepness = near.steepness or USUAL_STEEPNESS
            start = _place(near.utilization) + looser / self._steepness
        elif near is not None:
            start = _place(IDLE_UTILIZATION)
        self._at = min(max(start, self._low), self._high)

    @property
    def utilization(self) -> float:
        """Where it looks next."""
        return 1.0 / (1.0 + math.exp(-self._at))

    @property
    def hopeless(self) -> bool:
        """Whether it fails wherever it was looked at, and an idle fleet is looked at next."""
        return all(excess > 0.0 for _, excess in self._known) and (
            self._at <= _place(IDLE_UTILIZATION)
        )

    def told(self, ratio: float) -> None:
        """What the percentile is where it was looked at, over its limit."""
        at, excess = self._at, math.log(ratio) if ratio > 0.0 else -math.inf
        self._known.append((at, excess))
        if excess <= 0.0:
            self._low = max(self._low, at)
        else:
            self._high, self._failed = min(self._high, at), True
        left = self._rate_ratio(self._high - self._low)
        if excess <= 0.0 and self._rate_ratio(self._top - at) <= CLOSE_RATIO:
            self._end(self._top, None)
        elif left <= CLOSE_RATIO or len(self._known) >= MOST_ROUNDS:
            self._end_held()
        else:
            self._next(at, excess, left)

    def _rate_ratio(self, distance: float) -> float:
        """Of rates this far apart, near where it looks."""
        return distance * (1.0 - self.utilization)

    def _end(self, at: float, steepness: float | None) -> None:
        self.ended = Crossing(1.0 / (1.0 + math.exp(-at)), steepness)

    def _end_held(self) -> None:
        """End at the greatest place that kept the limit."""
        if all(excess > 0.0 for _, excess in self._known):
            self.ended = Crossing(0.0, None)
        else:
            self._end(self._low, self._steepness)

    def _next(self, at: float, excess: float, left: float) -> None:
        """Follow the line through the two looks next to the limit, or halve the range."""
        others = [one for one in self._known if one[0] != at and math.isfinite(one[1])]
        jumps = False
        if others and math.isfinite(excess):
            other, beside = min(others, key=lambda one: abs(one[1]))
            slope = (beside - excess) / (other - at)
            jumps = not 0.0 < slope <= STEEPEST
            if not jumps:
                self._steepness = slope
        root = at - excess / self._steepness if math.isfinite(excess) else math.nan
        if self._rate_ratio(abs(root - at)) <= CLOSE_RATIO:
            self._end(min(root, at), self._steepness)
        elif jumps and left <= CLOSE_TO_JUMP_RATIO:
            self._end_held()
        elif not self._failed and (excess == -math.inf or root >= self._top):
            self._at = self._top
        elif jumps or len(self._known) > LINES or not self._low <= root < self._high:
            self._at = 0.5 * (self._low + self._high)
        else:
            self._at = root
