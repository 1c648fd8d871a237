"""Laws over requests as weighted points, compiled; see `output_laws`."""

import math
from typing import Any, NamedTuple

import numpy as np

from servingslo.models import output_laws
from servingslo.models.compiled.shared import share
from servingslo.models.compiled.tokens import DEVIATION, MEAN, SKEWNESS

# A search for a percentile counts points in as many classes, and sorts those of one class when no
# more than this many are left; or after as many rounds, where many points are the same number.
_CLASSES = 128
_WIDTH = _CLASSES - 1e-6
_TINY_MASS = 1e-300
TINY_VARIANCE = 1e-24
_SORTED_COUNT = 24
_LARGEST_ROUNDS = 4


def spread(moments: Any, shares: Any, points: Any, weights: Any) -> None:
    """`output_laws.spread_points` of one law, by row, with the weights of its lengths."""
    count = len(output_laws.BASE)
    for row in range(moments.shape[1]):
        deviation = moments[DEVIATION, row]
        sixth = moments[SKEWNESS, row] * (1.0 / 6.0) + output_laws.SMALL_SIXTH
        third = deviation / sixth * (1.0 / 3.0)
        root = np.cbrt(third)
        constant = ((output_laws.SHIFTS[row] - sixth) * sixth + 1.0) * root
        least = 0.0 if sixth > 0.0 else -math.inf
        for column in range(count):
            base = max(root * sixth * output_laws.BASE[column] + constant, least)
            points[row, column] = base * base * base + (moments[MEAN, row] - third)
            weights[row, column] = shares[row] * output_laws.DEVIATE_WEIGHTS[row, column]


def put_off(points: Any, weights: Any, most_seconds: float) -> None:
    """`output_laws._put_off` of one law."""
    if points.max() <= most_seconds:
        return
    excess = 0.0
    below = 0.0
    for place in range(len(points)):
        room = most_seconds - points[place]
        below += max(room, 0.0) * weights[place]
        excess += max(-room, 0.0) * weights[place]
    kept = max(1.0 - excess / max(below, output_laws.TINY_SECONDS), 0.0)
    for place in range(len(points)):
        points[place] = most_seconds - max(most_seconds - points[place], 0.0) * kept


def cumulants(table: Any) -> tuple[float, float, float]:
    """`TabulatedLaw.cumulants` of a row of seconds and one of probabilities."""
    count = table.shape[1]
    mean = square = cube = 0.0
    for place in range(1, count):
        mass = table[1, place] - table[1, place - 1]
        mean += mass * 0.5 * (table[0, place] + table[0, place - 1])
    for place in range(1, count):
        mass = table[1, place] - table[1, place - 1]
        off = 0.5 * (table[0, place] + table[0, place - 1]) - mean
        square += mass * off * off
        cube += mass * off * off * off
    return mean, square, cube


def add_first(moments: Any, gaps: Any, mean: float, variance: float, third: float) -> None:
    """Moments of all gaps and the first token together, in place of those of a gap."""
    for row in range(len(gaps)):
        decode = gaps[row] * moments[DEVIATION, row]
        square = decode * decode
        cubed = moments[SKEWNESS, row] * square * decode + third
        square += variance
        deviation = math.sqrt(square)
        moments[MEAN, row] = gaps[row] * moments[MEAN, row] + mean
        moments[DEVIATION, row] = deviation
        moments[SKEWNESS, row] = cubed / (max(deviation, 1e-12) * square + 1e-36)


class _Neighbour(NamedTuple):
    """A point next to those that are searched, and its weight."""

    seconds: float
    weight: float


class _Left(NamedTuple):
    """What is left to search: the first size points, the mass before them, and who is next."""

    size: int
    before: float
    lower: _Neighbour
    upper: _Neighbour


def quantile(
    points: Any, weights: Any, least_seconds: float, most_seconds: float, wanted: float
) -> Any:
    """`AtomLaw.quantile` of unsorted points, which count as lying between least and most.

    Points are counted in classes of equal width in place of sorting all of them, and those of the
    class that holds the percentile again, until few are left.
    """
    seconds, mass = points.copy(), weights.copy()
    left = _Left(len(points), 0.0, _Neighbour(-math.inf, 0.0), _Neighbour(math.inf, 0.0))
    for _ in range(_LARGEST_ROUNDS):
        first, last = _ends(seconds, left.size)
        if left.size <= _SORTED_COUNT or not last > first:
            break
        left = _narrowed(seconds, mass, left, first, last, wanted)
    count, before = left.size, left.before
    _sort(seconds, mass, count)
    place = 0
    while place < count - 1 and before + mass[place] <= wanted:
        before += mass[place]
        place += 1
    middle = before + 0.5 * mass[place]
    if wanted < middle:
        other = left.lower if place == 0 else _Neighbour(seconds[place - 1], mass[place - 1])
    else:
        after = place + 1
        other = left.upper if after == count else _Neighbour(seconds[after], mass[after])
    here = min(max(seconds[place], least_seconds), most_seconds)
    if math.isinf(other.seconds):
        return here
    there = min(max(other.seconds, least_seconds), most_seconds)
    distance = 0.5 * (mass[place] + other.weight)
    return here + (there - here) * abs(wanted - middle) / max(distance, _TINY_MASS)


def _ends(seconds: Any, count: int) -> tuple[float, float]:
    """The least and the largest of the first few points."""
    first = last = seconds[0]
    for place in range(1, count):
        first, last = min(first, seconds[place]), max(last, seconds[place])
    return first, last


def _narrowed(
    seconds: Any, mass: Any, left: _Left, first: float, last: float, wanted: float
) -> _Left:
    """Keep the points of the class that holds the percentile, in their order."""
    scale = _WIDTH / (last - first)
    classes = np.zeros(_CLASSES)
    for place in range(left.size):
        classes[int((seconds[place] - first) * scale)] += mass[place]
    chosen, before = 0, left.before
    while chosen < _CLASSES - 1 and before + classes[chosen] <= wanted:
        before += classes[chosen]
        chosen += 1
    lower, upper, count = left.lower, left.upper, 0
    for place in range(left.size):
        point = seconds[place]
        found = int((point - first) * scale)
        if found == chosen:
            seconds[count], mass[count] = point, mass[place]
            count += 1
        elif found < chosen and point >= lower.seconds:
            lower = _Neighbour(point, mass[place])
        elif found > chosen and point < upper.seconds:
            upper = _Neighbour(point, mass[place])
    return _Left(count, before, lower, upper)


def _sort(seconds: Any, mass: Any, count: int) -> None:
    """Sort the first few points with their weights; equal ones stay in their order."""
    for place in range(1, count):
        point, weight = seconds[place], mass[place]
        into = place
        while into > 0 and seconds[into - 1] > point:
            seconds[into], mass[into] = seconds[into - 1], mass[into - 1]
            into -= 1
        seconds[into], mass[into] = point, weight


def share_within(
    points: Any, weights: Any, least_seconds: float, most_seconds: float, seconds: float
) -> Any:
    """`AtomLaw.share_within` of unsorted points, which count as lying between least and most."""
    lower, upper = _Neighbour(-math.inf, 0.0), _Neighbour(math.inf, 0.0)
    before = 0.0
    for place in range(len(points)):
        point = min(max(points[place], least_seconds), most_seconds)
        if point <= seconds:
            before += weights[place]
            if point >= lower.seconds:
                lower = _Neighbour(point, weights[place])
        elif point < upper.seconds:
            upper = _Neighbour(point, weights[place])
    if math.isinf(upper.seconds):
        return 1.0
    if math.isinf(lower.seconds):
        return 0.0
    part = (seconds - lower.seconds) / max(upper.seconds - lower.seconds, output_laws.TINY_SECONDS)
    return before - 0.5 * lower.weight + part * 0.5 * (lower.weight + upper.weight)


share(cumulants, add_first, spread, put_off, quantile, share_within, _ends, _narrowed, _sort)
