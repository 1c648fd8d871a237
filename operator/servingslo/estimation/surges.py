"""Rises of demand that nothing foretold, and the rate they keep coming back to.

A surge that is over before capacity for it is ready is met by standing capacity or not at all. One
says nothing of another. Two within an hour do: a cold start of a minute and a half at twice the
rate, once in half an hour, is a tenth of all requests, many times the error budget of any objective
worth stating, so what both reached is kept for as long as an hour holds two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

# Of what was expected one lead earlier: with a quantile of demand a tenth above its mean, at a
# utilization of 0.85, a fleet saturates there. 1.5 left surges of 1.6 times unseen behind what
# counting noise allows for.
SURGE_RATIO = 1.3
NOISE_DEVIATIONS = 4.0
MEMORY_SECONDS = 3600.0
# Rises within it that recur.
RECURRING_COUNT = 2
# Counting noise that a rate may show without having risen: one window in forty shows more.
EXCEEDANCE_NOISE_DEVIATIONS = 2.0
# Half the memory: before, calm may be chance.
LEAST_SEEN_SECONDS = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """A rise beyond what was expected: its first and last window, and its highest rate.

    expected_per_second: when it began. over: demand was back there since, or has fallen from the
    peak by as much as makes a rise; until then all that demand does is the same surge, such as what
    retries make of one.
    """

    start_seconds: float
    last_seconds: float
    peak_per_second: float
    expected_per_second: float
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceedance:
    """By how much of it a rate was beyond what was expected one lead before, and when."""

    time_seconds: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """Rises that recur: how many in an hour, their mean interval, and a rate reached twice.

    furthest_per_second: the most that counting noise may make of that rate; what is measured beyond
    it has gone further.
    """

    count: int
    interval_seconds: float
    rate_per_second: float
    furthest_per_second: float


def noted(
    surges: tuple[Surge, ...],
    rate_per_second: float,
    expected_per_second: float,
    noise: float,
    now_seconds: float,
    *,
    expected_since_seconds: float,
) -> tuple[Surge, ...]:
    """The surges of the last hour with this window's, where it is one.

    expected_per_second: one lead ago for now; expected_since_seconds: that moment. noise: variance
    of the measured rate.
    """
    kept = recent(surges, now_seconds)
    last = kept[-1] if kept else None
    if last is not None and _has_ended(last, rate_per_second, expected_since_seconds):
        kept[-1] = replace(last, over=True)
        return tuple(kept)
    if rate_per_second <= SURGE_RATIO * expected_per_second + NOISE_DEVIATIONS * noise**0.5:
        return tuple(kept)
    if last is not None and not last.over:
        peak = max(last.peak_per_second, rate_per_second)
        kept[-1] = replace(last, last_seconds=now_seconds, peak_per_second=peak)
    else:
        kept.append(
            Surge(
                start_seconds=now_seconds,
                last_seconds=now_seconds,
                peak_per_second=rate_per_second,
                expected_per_second=expected_per_second,
            )
        )
    return tuple(kept)


def _has_ended(surge: Surge, rate_per_second: float, expected_since_seconds: float) -> bool:
    """Whether demand is back where the surge began, or has fallen from its peak by a whole rise.

    The latter only once something was expected since it began: until then all that it does at its
    height is beyond what was expected, and a surge that wavers would be many.
    """
    if rate_per_second <= SURGE_RATIO * surge.expected_per_second:
        return True
    foretold = expected_since_seconds >= surge.start_seconds
    return foretold and rate_per_second <= surge.peak_per_second / SURGE_RATIO


def recent(surges: Sequence[Surge], now_seconds: float) -> list[Surge]:
    """Those of the last hour."""
    return [s for s in surges if now_seconds - s.last_seconds <= MEMORY_SECONDS]


def recurrence(
    surges: Sequence[Surge], level_per_second: float, noise: float, now_seconds: float
) -> Recurrence | None:
    """What must be expected to come again at any time; None where fewer than two came of late.

    The rate that two reached, or what there is now with as much on top as two added to what was
    expected, whichever is more: surges grow with demand. Never more than twice the highest rate
    that was measured: neither part of the sum is above it. level_per_second: of demand before what
    may be one of them. noise: variance of the measured rate.
    """
    lately = recent(surges, now_seconds)
    if len(lately) < RECURRING_COUNT:
        return None
    last = lately[-1]
    base = level_per_second if last.over else last.expected_per_second
    added = sorted(s.peak_per_second - s.expected_per_second for s in lately)[-2]
    rate = max(base + added, sorted(s.peak_per_second for s in lately)[-2])
    return Recurrence(
        count=len(lately),
        interval_seconds=(lately[-1].start_seconds - lately[0].start_seconds) / (len(lately) - 1),
        rate_per_second=rate,
        furthest_per_second=rate + EXCEEDANCE_NOISE_DEVIATIONS * noise**0.5,
    )


def exceeded(
    exceedances: tuple[Exceedance, ...],
    rate_per_second: float,
    expected_per_second: float,
    noise: float,
    now_seconds: float,
) -> tuple[Exceedance, ...]:
    """The exceedances of the last hour with this window's, without those that a later one exceeds.

    expected_per_second: one lead ago for now. noise: variance of the measured rate.
    """
    sure = rate_per_second - EXCEEDANCE_NOISE_DEVIATIONS * noise**0.5
    ratio = max(sure / expected_per_second - 1.0, 0.0) if expected_per_second > 0 else math.inf
    kept = (e for e in exceedances if now_seconds - e.time_seconds <= MEMORY_SECONDS)
    larger = tuple(e for e in kept if e.ratio > ratio)
    return (*larger, Exceedance(time_seconds=now_seconds, ratio=ratio))


def largest_exceedance_ratio(
    exceedances: Sequence[Exceedance], seen_seconds: float, now_seconds: float
) -> float | None:
    """The largest of the last hour; None where demand was seen for less than half of it."""
    if seen_seconds < LEAST_SEEN_SECONDS:
        return None
    recent = (e.ratio for e in exceedances if now_seconds - e.time_seconds <= MEMORY_SECONDS)
    return max(recent, default=None)
