"""Rises of demand that nothing foretold, and how likely they come again.

A surge that is over before capacity for it is ready is met by standing capacity or not at all. So
what one reached is worth keeping capacity for as long as its return would cost more than holding.
How likely a return is is learnt: one surge in two comes again until some have been seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

# Of what was expected one lead earlier: with a quantile of demand a tenth above its mean, at a
# utilization of 0.85, a fleet saturates there. 1.5 left surges of 1.6 times unseen behind what
# counting noise allows for.
SURGE_RATIO = 1.3
NOISE_DEVIATIONS = 4.0
MEMORY_SECONDS = 3600.0
# Of nothing seen, one return in two (Laplace's rule of succession).
PRIOR_RETURNS, PRIOR_SURGES = 1.0, 2.0
# A later rise is no return of the one before: nobody would have kept capacity for it.
LONGEST_RETURN_SECONDS = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """A rise beyond what was expected: its first and last window, its end, and its highest rate.

    peak_per_second: the highest rate, less a standard deviation. expected_per_second: when it
    began. ended_seconds: when demand was back there, or had fallen from the peak by as much as
    makes a rise; until then all that demand does is the same surge, such as what retries make of
    one.
    """

    start_seconds: float
    last_seconds: float
    peak_per_second: float
    expected_per_second: float
    ended_seconds: float | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.ended_seconds is not None

    @property
    def until_seconds(self) -> float:
        """When it ended, or was seen last."""
        return self.last_seconds if self.ended_seconds is None else self.ended_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """Surges that may come again: how many in an hour, their mean interval, and the rate to expect.

    over_seconds: since the last one ended, 0 while it lasts. probability: that it comes again.
    """

    count: int
    interval_seconds: float
    rate_per_second: float
    over_seconds: float
    probability: float


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
        ended = now_seconds if last.ended_seconds is None else last.ended_seconds
        kept[-1] = replace(last, ended_seconds=ended)
        return tuple(kept)
    if rate_per_second <= SURGE_RATIO * expected_per_second + NOISE_DEVIATIONS * noise**0.5:
        return tuple(kept)
    # What it surely reached: next to refusals the rate of first tries is hardly known.
    sure = max(rate_per_second - noise**0.5, 0.0)
    if last is not None and not last.over:
        peak = max(last.peak_per_second, sure)
        kept[-1] = replace(last, last_seconds=now_seconds, peak_per_second=peak)
    else:
        kept.append(
            Surge(
                start_seconds=now_seconds,
                last_seconds=now_seconds,
                peak_per_second=sure,
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
    return [s for s in surges if now_seconds - s.until_seconds <= MEMORY_SECONDS]


def recurrence(
    surges: Sequence[Surge], level_per_second: float, now_seconds: float
) -> Recurrence | None:
    """What may come again at any time; None where no surge came in the last hour.

    The rate that two reached, or what there is now with as much on top as two added to what was
    expected, whichever is more: surges grow with demand. Of a single one, what it reached. Never
    more than twice the highest rate that was measured: neither part of the sum is above it.
    level_per_second: of demand before what may be one of them.
    """
    lately = recent(surges, now_seconds)
    if not lately:
        return None
    last = lately[-1]
    rate = sorted(s.peak_per_second for s in lately)[-2:][0]
    if len(lately) > 1:
        base = level_per_second if last.over else last.expected_per_second
        added = sorted(s.peak_per_second - s.expected_per_second for s in lately)[-2]
        rate = max(rate, base + added)
    gaps = [after.start_seconds - before.until_seconds for before, after in pairwise(lately)]
    returned = sum(gap <= LONGEST_RETURN_SECONDS for gap in gaps)
    return Recurrence(
        count=len(lately),
        interval_seconds=(last.start_seconds - lately[0].start_seconds) / max(len(gaps), 1),
        rate_per_second=rate,
        over_seconds=max(now_seconds - last.until_seconds, 0.0) if last.over else 0.0,
        probability=(PRIOR_RETURNS + returned) / (PRIOR_SURGES + len(gaps)),
    )
