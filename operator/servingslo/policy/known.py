"""What is known of a mix already: percentiles that were evaluated at earlier ticks.

Percentiles rise with load, so that what held at a higher rate holds at this one, and what failed at
a lower rate fails. Most ticks ask about rates between those of the ticks before, and an evaluation
costs more than the rest of a plan.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from servingslo.models.objectives import Routing

# By how much a percentile may fall where the load rises, by the inversion and where the swing of
# bursts becomes too small to count: nothing is concluded from one closer to its limit.
# Source: 0.036 is the largest in a scan of mixes with bursts and long prompts.
NOISE_RATIO = 0.04
# A percentile between two known ones this close is within as much of both, but for that noise.
CLOSE_RATIO = 0.02
# Points kept of each percentile: as many as a mix lasts at scrapes 15 s apart, and some.
MOST_POINTS = 24


Point = tuple[float, float]
# A percentile of a fleet: of which objective (its key), how many engines, and the routing.
Asked = tuple[str, int, Routing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Percentiles of one mix: pairs of a fleet rate, per second, and seconds, by rate."""

    points: Mapping[Asked, tuple[Point, ...]] = field(default_factory=dict)


class Recall:
    """What was known before a tick, and what it adds."""

    __slots__ = ("_points", "changed")

    def __init__(self, known: Known) -> None:
        self._points = dict(known.points)
        self.changed = False

    @property
    def known(self) -> Known:
        """All of it, for the next tick."""
        return Known(points=dict(self._points))

    def add(self, asked: Asked, rate_per_second: float, seconds: float) -> None:
        """Remember a percentile that was evaluated; of too many, those far from this rate go."""
        if not math.isfinite(seconds) or rate_per_second <= 0.0:
            return
        points = self._points.get(asked, ())
        at = bisect_left(points, (rate_per_second,))
        if at < len(points) and points[at][0] == rate_per_second:
            return
        points = (*points[:at], (rate_per_second, seconds), *points[at:])
        if len(points) > MOST_POINTS:
            nearer_end = rate_per_second - points[0][0] > points[-1][0] - rate_per_second
            points = points[1:] if nearer_end else points[:-1]
        self._points[asked] = points
        self.changed = True

    def within(self, asked: Asked, rate_per_second: float, limit_seconds: float) -> bool | None:
        """Whether the percentile is at most this limit; None where that does not follow."""
        below, above = self._beside(asked, rate_per_second)
        holds = above is not None and above[1] * (1.0 + NOISE_RATIO) <= limit_seconds
        fails = below is not None and below[1] > limit_seconds * (1.0 + NOISE_RATIO)
        return None if holds == fails else holds

    def seconds(self, asked: Asked, rate_per_second: float) -> float | None:
        """The percentile, on a line between known ones that are close by; None without these."""
        below, above = self._beside(asked, rate_per_second)
        if below is None or above is None or abs(above[1] - below[1]) > CLOSE_RATIO * below[1]:
            return None
        span = above[0] - below[0]
        share = (rate_per_second - below[0]) / span if span > 0.0 else 0.0
        return below[1] + share * (above[1] - below[1])

    def _beside(self, asked: Asked, rate_per_second: float) -> tuple[Point | None, Point | None]:
        """The known ones next to this rate, from below and from above; both for the same rate."""
        points = self._points.get(asked, ())
        at = bisect_left(points, (rate_per_second,))
        above = points[at] if at < len(points) else None
        if above is not None and above[0] == rate_per_second:
            return above, above
        return points[at - 1] if at else None, above
