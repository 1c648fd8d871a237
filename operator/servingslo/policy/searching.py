"""Searches along a count or a rate, a few points at a time: models evaluate several for less."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

# Counts that are asked for at once where a search has to leave its hint: it is off by one mostly.
_REACHES = (1, 2)
# How many parts are looked at by secants before the range is halved; they close in within 4.
_SECANT_ROUNDS = 6
# By how much the excess rises as the part grows e-fold, where nothing is known: 0.2 to 0.5 is what
# percentiles at their limits do on three cards (docs/designs/0002-models.md, "Speed").
_USUAL_STEEPNESS = 0.5
# Parts this close, also as a share of them, are joined by a line: a power of the part is off it by
# a fifth of a part at most.
_CLOSE_PARTS = 8
_CLOSE_SHARE = 64


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


def greatest_holding(excess: Callable[[int], float], last: int, hint: Crossing | None) -> Crossing:
    """The greatest part, 0 to last, whose excess is at most 0; the excess rises with the part.

    The last first, which mostly holds and ends the search, but where the hint knows of a crossing:
    there the hint; then, one at a time, the part where the line through the two nearest to the
    crossing meets zero, and where that does not close in, the middle of the range. One point has no
    line: that of the hint's steepness through it is taken. It ends where the line is
    through the part just looked at and crosses within it, or between two close by of which one
    holds.
    """
    known: dict[int, float] = {}
    part, steepness = last, _USUAL_STEEPNESS
    if hint is not None and hint.steepness is not None:
        part, steepness = min(max(hint.part, 1), last), hint.steepness
    low, high = 0, last + 1
    while True:
        known[part] = excess(part)
        low, high = (part, high) if known[part] <= 0.0 else (low, part)
        joined = low in known and high in known and high - low <= _close_parts(low)
        first, second = (low, high) if joined else _nearest(known)
        alone = first == second
        rise = steepness / part if alone else (known[second] - known[first]) / (second - first)
        straight = 0.0 < rise < math.inf
        if high - low <= 1:
            return Crossing(low, rise * low if joined and straight else None)
        root = second - known[second] / rise if straight else math.nan
        settled = part in (first, second) and abs(root - part) < 1.0
        if not alone and ((joined and straight) or settled):
            crossing = min(max(math.floor(root), low), high - 1)
            return Crossing(crossing, rise * crossing)
        if len(known) > _SECANT_ROUNDS or not (low <= root <= high or root > high > last):
            root = (low + high) / 2
        part = min(max(math.floor(min(root, high)), low + 1), high - 1)


def _close_parts(low: int) -> int:
    """How far apart two parts are that a line joins."""
    return max(min(_CLOSE_PARTS, low // _CLOSE_SHARE), 1)


def _nearest(known: Mapping[int, float]) -> tuple[int, int]:
    """The two parts known that are next to the crossing, the lower first; the only one twice."""
    nearest = sorted(known, key=lambda part: abs(known[part]))[:2]
    return min(nearest), max(nearest)


def _between(low: int, high: int) -> set[int]:
    """Up to three numbers between these that part the range evenly."""
    return {low + (high - low) * part // 4 for part in (1, 2, 3)} - {low}
