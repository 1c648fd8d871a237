"""Crossings that were found before a limit or a mix moved a little, and what they still show.

As a share of saturation, a crossing hardly depends on the mix: it moves as a limit does that moves
by the same ratio. After a move of its limit it lies within a third of the way that its steepness
predicts, on four simulated runs, except where a percentile jumps.
"""

import math
from typing import NamedTuple

from servingslo.models.fleet.crossing import CLOSE_TO_JUMP_RATIO, USUAL_STEEPNESS, Crossing

# Doubt about the way along a steepness, as a share of it.
WAY_DOUBT = 0.5
# Farther moves of limits (as logarithms) or of mixes are evaluated: jumps of percentiles may lie
# between, and the way along a steepness is no longer straight.
FARTHEST = 0.06
# Percentiles of one metric and fleet that are kept: slow pods move them at every tick.
_MOST_PERCENTILES = 4
# What a row is of, apart from its fleet's size: a metric and how requests are routed.
Kind = tuple[object, object]


class Band(NamedTuple):
    """Rates between which a crossing lies. middle: the likeliest."""

    low: float
    middle: float
    high: float

    def scaled(self, factor: float, most: float) -> "Band":
        """Return the band in another unit, cut at the most that any rate is."""
        return Band(*(min(factor * end, most) for end in self))


class KeptCrossing(NamedTuple):
    """A crossing with its limit. moved_ratio: how far the mix has moved since it was found."""

    most: float
    found: Crossing
    moved_ratio: float


class KeptCrossings:
    """The newest crossing of each metric, fleet and percentile; the numbers are shares of 1."""

    __slots__ = ("_by_kind",)

    def __init__(self) -> None:
        self._by_kind: dict[Kind, dict[int, dict[float, KeptCrossing]]] = {}

    def add(
        self, kind: Kind, engines: int, percentile: float, most: float, found: Crossing
    ) -> None:
        """Keep a crossing in place of the last one of its percentile."""
        kept = self._by_kind.setdefault(kind, {}).setdefault(engines, {})
        kept.pop(percentile, None)
        kept[percentile] = KeptCrossing(most, found, 0.0)
        if len(kept) > _MOST_PERCENTILES:
            del kept[next(iter(kept))]

    def moved(self, moved_ratio: float) -> "KeptCrossings":
        """Return what is kept after the mix has moved by this ratio.

        Where that is too far, a crossing only starts the next search, and is then forgotten.
        """
        after = KeptCrossings()
        for kind, fleets in self._by_kind.items():
            for engines, kept in fleets.items():
                left = {
                    percentile: one._replace(moved_ratio=one.moved_ratio + moved_ratio)
                    for percentile, one in kept.items()
                    if one.moved_ratio <= FARTHEST
                }
                if left:
                    after._by_kind.setdefault(kind, {})[engines] = left
        return after

    def nearest(
        self, kind: Kind, engines: int, percentile: float, most: float
    ) -> KeptCrossing | None:
        """Return the crossing of the fleet nearest in size, then of the nearest limit."""
        near = [
            (abs(size - engines), abs(math.log((100.0 - other) / (100.0 - percentile))), one)
            for size, kept in self._by_kind.get(kind, {}).items()
            for other, one in kept.items()
            if one.most > 0.0
        ]
        if not near:
            return None
        return min(near, key=lambda found: (*found[:2], abs(found[2].most - most)))[-1]

    def band(self, kind: Kind, engines: int, percentile: float, most: float) -> Band | None:
        """Return the utilizations between which the crossing lies; None if nothing bounds it.

        A band of zero says that no fleet carried anything.
        """
        kept = self._by_kind.get(kind, {}).get(engines)
        if not kept or most <= 0.0:
            return None
        beyond = 100.0 - percentile
        tail, one = min(
            (abs(math.log((100.0 - other) / beyond)), one) for other, one in kept.items()
        )
        if one.most <= 0.0:
            return None
        looser = math.log(most / one.most)
        if one.moved_ratio > FARTHEST or abs(looser) + tail > FARTHEST:
            return None
        utilization, steepness = one.found
        if utilization <= 0.0:
            return Band(0.0, 0.0, 0.0)
        # The logarithm of the rate moves by this much for that of the limit. A mix moves rates and
        # percentiles. Of a tail at most as heavy as an exponential one beyond its 37 %, a
        # percentile moves by less than 1 − p does.
        per_limit = (1.0 - utilization) / (steepness or USUAL_STEEPNESS)
        way = per_limit * looser
        doubt = (
            per_limit * (WAY_DOUBT * abs(looser) + tail + one.moved_ratio)
            + one.moved_ratio
            + CLOSE_TO_JUMP_RATIO
        )
        middle = utilization * math.exp(way)
        return Band(middle * math.exp(-doubt), middle, middle * math.exp(doubt))
