"""The bound of each class's lane: the fleet's bound less what higher classes have in flight."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median

from servingslo.policy.classes.inputs import ClassTargets

# Each lane keeps one request in flight, so that its latency and its demand stay visible.
LEAST_LANE = 1
# Readings of what a class has in flight: five minutes of ticks for its usual level, and the last
# few, which show a surge. A median is not moved by one burst, and each write costs a burst.
# Judgement; measured by refusals of the higher class and by the job's time (benchmark of classes).
HELD_READINGS = 20
SURGE_READINGS = 5


def lane_bounds(
    classes: Sequence[ClassTargets], held: Mapping[str, int], *, whole: int, filled: int
) -> dict[str, int]:
    """The bound in flight of each class, over all proxies.

    held: what each class has in flight. whole: the fleet's bound. filled: the mean in flight at the
    greatest rate within the objectives, to which sheddable classes fill up: what is beyond it makes
    requests late. Classes of one priority share: each has what the others leave, at least an equal
    part.
    """
    lanes: dict[str, int] = {}
    above = 0
    ranked = sorted(classes, key=lambda one: -one.priority)
    for _, equals in groupby(ranked, key=lambda one: one.priority):
        group = tuple(equals)
        bound = whole if group[0].orders else min(filled, whole)
        left = max(bound - above, LEAST_LANE)
        together = sum(held.get(one.name, 0) for one in group)
        for one in group:
            others = together - held.get(one.name, 0)
            lanes[one.name] = max(left - others, math.ceil(left / len(group)))
        above += together
    return lanes


def held_of(readings: Sequence[float]) -> int:
    """What a class has in flight: its usual level, or that of the last readings if it is higher."""
    return math.ceil(max(median(readings), median(readings[-SURGE_READINGS:])))
