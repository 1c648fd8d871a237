"""Find the utilization at which a percentile meets its limit."""

import math
from typing import NamedTuple

# No fleet runs at less: a limit missed here is missed by an idle fleet.
LEAST_UTILIZATION = 1e-3
# Below this a replica is almost idle: by M/M/1 a wait is a tenth of a service time.
IDLE_UTILIZATION = 0.1
# Without a known crossing, searches begin at the knee of every queueing law, with the steepness
# that percentiles have at their limits: 0.2 to 0.5 on three cards.
FIRST_UTILIZATION = 0.7
USUAL_STEEPNESS = 0.4
# Accuracy of the crossing, as a share of the rate, and accuracy if the percentile jumps.
CLOSE_RATIO = 2e-4
CLOSE_TO_JUMP_RATIO = 2e-3
# A percentile that rises faster jumps, for example by one more step of prefill. Its slope then does
# not show the position; only evaluations on both sides do. Next to saturation 3 was measured.
STEEPEST = 5.0
# Lines that are followed before the range is halved, and most evaluations: to 2e-4 of any range.
LINES = 8
MOST_ROUNDS = 24


class Crossing(NamedTuple):
    """The greatest utilization at which a percentile is within its limit; 0 if there is none.

    steepness: the rise of the percentile's logarithm over that of u/(1 − u) there, in which waits
    are almost straight lines; None if unknown.
    """

    utilization: float
    steepness: float | None


def _place(utilization: float) -> float:
    return math.log(utilization / (1.0 - utilization))


class CrossingSearch:
    """A search for a crossing, one evaluation at a time.

    utilization: where to evaluate next. ended: the crossing, once it is known. hopeless: every
    evaluation missed the limit, down to an almost idle fleet.
    """

    __slots__ = ("_at", "_failed", "_high", "_known", "_low", "_steepness", "_top", "ended")

    def __init__(
        self, greatest_utilization: float, near: Crossing | None = None, looser: float = 0.0
    ) -> None:
        """near: the crossing of a similar load. looser: logarithm of this limit over that one."""
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
        """Where to evaluate next."""
        return 1.0 / (1.0 + math.exp(-self._at))

    @property
    def hopeless(self) -> bool:
        """Whether every evaluation missed the limit, and an idle fleet is next."""
        return all(excess > 0.0 for _, excess in self._known) and (
            self._at <= _place(IDLE_UTILIZATION)
        )

    def add_value(self, ratio: float) -> None:
        """Add the evaluated percentile, over its limit."""
        at, excess = self._at, math.log(ratio) if ratio > 0.0 else -math.inf
        if math.isnan(ratio):  # What is no number is no limit kept.
            excess = math.inf
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
        """Return the relative difference of rates this far apart, near the next evaluation."""
        return distance * (1.0 - self.utilization)

    def _end(self, at: float, steepness: float | None) -> None:
        self.ended = Crossing(1.0 / (1.0 + math.exp(-at)), steepness)

    def _end_held(self) -> None:
        """End at the greatest evaluated utilization that kept the limit."""
        if all(excess > 0.0 for _, excess in self._known):
            self.ended = Crossing(0.0, None)
        else:
            self._end(self._low, self._steepness)

    def _next(self, at: float, excess: float, left: float) -> None:
        """Follow the line through the two evaluations next to the limit, or halve the range."""
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
