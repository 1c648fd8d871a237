"""Searches along a count or a rate, a few points at a time: models evaluate several for less."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

# Counts that are asked for at once where a search has to leave its hint: it is off by one mostly.
_REACHES = (1, 2)
# How often secants are tried before the range is parted evenly; they close in within 3.
_SECANT_ROUNDS = 6
_SECANT_PARTS = 2
# Parts this close, also as a share of them, are joined by a line: a power of the part is off it by
# a fifth of a part at most.
_CLOSE_PARTS = 8
_CLOSE_SHARE = 64
_CLOSE_WIDTH = _CLOSE_PARTS // 2 - 1


def least_holding(
    holding: Callable[[Sequence[int]], Collection[int]], low: int, high: int, start: int
) -> int | None:
    """The least count from low to high that holds, where all above it hold too; None past the end.

    holding: those of a few counts that hold. Gallops away from the start, then parts what is left:
    a start that is right costs two counts, asked for together.
    """
    # Neither end is asked for.
    failing, found, stride = low - 1, high + 1, 1
    trials = {min(max(count, low), high) for count in (start, start - 1)}
    while trials:
        held = set(holding(sorted(trials)))
        found = min({found} | held)
        failing = max({failing} | {count for count in trials - held if count < found})
        if found - failing <= 1:
            break
        if failing < low:
            trials = {max(found - stride * reach, low) for reach in _REACHES}
        elif found > high:
            trials = {min(failing + stride * reach, high) for reach in _REACHES}
        else:
            trials = _between(failing, found)
        stride *= 2 * _REACHES[-1]
    return found if found <= high else None


class Crossing(NamedTuple):
    """The last part that holds, and by how much the excess rises there as the part grows e-fold.

    steepness: None where no part was found to fail, or it is not known.
    """

    part: int
    steepness: float | None


def greatest_holding(
    excesses: Callable[[Sequence[int]], Mapping[int, float]], last: int, hint: Crossing | None
) -> Crossing:
    """The greatest part, 0 to last, whose excess is at most 0; the excess rises with the part.

    The last first, which mostly holds and ends the search, but where the hint knows of a crossing:
    there the hint; then a few parts at a time, on both sides of the root of the secant, and where
    that does not close in, parts that divide the range evenly. One point has no secant: the line of
    the hint's steepness through it is taken. Between two parts close by, of which one holds, it is
    where their line crosses zero.
    """
    known: dict[int, float] = {}
    near = last if hint is None or hint.steepness is None else min(max(hint.part, 1), last)
    steepness = None if hint is None else hint.steepness
    trials = {near}
    low, high, rounds = 0, last + 1, 0
    while high - low > (_close_parts(low) if low in known and high in known else 1):
        known |= excesses(sorted(trials - known.keys()))
        high = min((part for part, excess in known.items() if excess > 0.0), default=last + 1)
        low = max((part for part in known if part < high), default=0)
        root = _secant(known, steepness) if rounds < _SECANT_ROUNDS else None
        trials = _between(low, high) if root is None else _around(root, low, high)
        rounds += 1
    if low not in known or high not in known:
        return Crossing(low, None)
    rise = (known[high] - known[low]) / (high - low)
    part = min(math.floor(low - known[low] / rise), high - 1) if rise < math.inf else low
    return Crossing(part, rise * part if 0.0 < rise * part < math.inf else None)


def _close_parts(low: int) -> int:
    """How far apart two parts are that a line joins."""
    return max(min(_CLOSE_PARTS, low // _CLOSE_SHARE), 1)


def _secant(known: Mapping[int, float], steepness: float | None) -> int | None:
    """The last part that holds by the line through the two known that are next to the crossing.

    steepness: of the line through the first one, None where none is known.
    """
    parts = sorted(known, key=lambda part: abs(known[part]))[:_SECANT_PARTS]
    first, second = min(parts), max(parts)
    if first == second:
        return None if steepness is None else math.floor(first - first * known[first] / steepness)
    rise = known[second] - known[first]
    if not 0.0 < rise < math.inf:
        return None
    return math.floor(first - known[first] * (second - first) / rise)


def _between(low: int, high: int) -> set[int]:
    """Up to three numbers between these that part the range evenly."""
    return {low + (high - low) * part // 4 for part in (1, 2, 3)} - {low}


def _around(part: int, low: int, high: int) -> set[int]:
    """Two parts close by, the part between them, within the range."""
    return {
        min(max(part - _CLOSE_WIDTH, low + 1), high - 1),
        max(min(part + 1 + _CLOSE_WIDTH, high - 1), low + 1),
    }
