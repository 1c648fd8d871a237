"""Searches along a count or a rate, a few points at a time: models evaluate several for less."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

# Counts that are asked for at once where a search has to leave its hint: it is off by one mostly.
_REACHES = (1, 2)
# How often secants are tried before the range is parted evenly; they close in within 3.
_SECANT_ROUNDS = 6
_SECANT_PARTS = 2


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


def greatest_holding(
    excesses: Callable[[Sequence[int]], Mapping[int, float]], last: int, hint: int | None
) -> int:
    """The greatest part, 0 to last, whose excess is at most 0; the excess rises with the part.

    The last first, which mostly holds and ends the search; then a few parts at a time: the hint,
    those around the root of the secant, and where that does not close in, parts that divide the
    range evenly.
    """
    known = dict(excesses((last,)))
    if known[last] <= 0.0:
        return last
    trials = _between(0, last) if hint is None else {min(max(hint, 1), last)}
    low, high, rounds = 0, last + 1, 0
    while high - low > 1:
        known |= excesses(sorted(trials - known.keys()))
        high = min((part for part, excess in known.items() if excess > 0.0), default=last + 1)
        low = max((part for part in known if part < high), default=0)
        root = _secant(known) if rounds < _SECANT_ROUNDS else None
        trials = _between(low, high) if root is None else _around(root, rounds, low, high)
        rounds += 1
    return low


def _secant(known: Mapping[int, float]) -> int | None:
    """The last part that holds by the line through the two known that are next to the crossing."""
    parts = sorted(known, key=lambda part: abs(known[part]))[:_SECANT_PARTS]
    first, second = min(parts), max(parts)
    rise = known[second] - known[first]
    if not 0.0 < rise < math.inf:
        return None
    return math.floor(first - known[first] * (second - first) / rise)


def _between(low: int, high: int) -> set[int]:
    """Up to three numbers between these that part the range evenly."""
    return {low + (high - low) * part // 4 for part in (1, 2, 3)} - {low}


def _around(part: int, width: int, low: int, high: int) -> set[int]:
    """The part and the next one, set apart by the width on both sides, within the range."""
    return {
        min(max(part - width, low + 1), high - 1),
        max(min(part + 1 + width, high - 1), low + 1),
    }
