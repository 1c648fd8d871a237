"""Unforeseen rises of demand, and how likely they come again.

A surge that is over before new capacity is ready must be met by existing capacity. So capacity for
the last peak is worth keeping as long as its return would cost more than holding it. The
probability of a return is learnt: one surge in two comes again until some have been observed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from servingslo.copying import replace
from servingslo.units import SECONDS_PER_HOUR

# Factor over the forecast of one lead earlier. With a quantile of demand a tenth above its mean,
# and a utilization of 0.85, a fleet saturates there. A factor of 1.5 missed surges of 1.6 times
# behind the allowance for counting noise.
SURGE_RATIO = 1.3
NOISE_DEVIATIONS = 4.0
SURGE_MEMORY_SECONDS = SECONDS_PER_HOUR
# Without observations, one return in two (Laplace's rule of succession).
PRIOR_RETURNS, PRIOR_SURGES = 1.0, 2.0
# A later rise is no return of the previous one: no one would have kept capacity for it.
# Judgement; measured by replica-hours held and requests kept by them, rows `flash` of the guard.
LONGEST_RETURN_SECONDS = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """A rise above the forecast: its first and last window, its end, and its highest rate.

    peak_per_second: the highest rate, less a standard deviation. expected_per_second: the forecast
    when it began. ended_seconds: when demand was back at that forecast, or had fallen from the peak
    by the factor that makes a rise; until then all movements, such as those of retries, are the
    same surge.
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
        """When it ended, or was last observed."""
        return self.last_seconds if self.ended_seconds is None else self.ended_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """Surges that may come again: their number in an hour, mean interval, and expected rate.

    over_seconds: since the last one ended, 0 while it lasts. probability: that it comes again.
    """

    count: int
    interval_seconds: float
    rate_per_second: float
    over_seconds: float
    probability: float


def note_window(
    surges: tuple[Surge, ...],
    rate_per_second: float,
    expected_per_second: float,
    noise: float,
    now_seconds: float,
    *,
    expected_since_seconds: float,
) -> tuple[Surge, ...]:
    """Return the surges of the last hour, with this window if it is a surge.

    expected_per_second: forecast for now, made one lead ago; expected_since_seconds: when it was
    made.
    noise: variance of the measured rate.
    """
    kept = recent(surges, now_seconds)
    last = kept[-1] if kept else None
    if last is not None and _has_ended(last, rate_per_second, expected_since_seconds):
        ended = now_seconds if last.ended_seconds is None else last.ended_seconds
        kept[-1] = replace(last, ended_seconds=ended)
        return tuple(kept)
    if rate_per_second <= SURGE_RATIO * expected_per_second + NOISE_DEVIATIONS * noise**0.5:
        return tuple(kept)
    # A lower bound of its rate: while requests are refused, the first-attempt rate is hardly known.
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
    """Return whether demand is back to where the surge began, or fell from its peak by a full rise.

    The second test needs a forecast made since the surge began. Until then all demand at its height
    exceeds the forecast, and one surge that wavers would be counted as many.
    """
    if rate_per_second <= SURGE_RATIO * surge.expected_per_second:
        return True
    foretold = expected_since_seconds >= surge.start_seconds
    return foretold and rate_per_second <= surge.peak_per_second / SURGE_RATIO


def recent(surges: Sequence[Surge], now_seconds: float) -> list[Surge]:
    """Return the surges of the last hour."""
    return [s for s in surges if now_seconds - s.until_seconds <= SURGE_MEMORY_SECONDS]


def recurrence(
    surges: Sequence[Surge], level_per_second: float, now_seconds: float
) -> Recurrence | None:
    """Return the surge that may come again at any time; None if there was none in the last hour.

    After two or more surges, the rate is the larger of two: the rate that two surges reached, and
    the present level plus the rise over the forecast that two surges reached (surges grow with
    demand). After a single one, its peak. Never more than twice the highest measured rate: neither
    part of the sum exceeds it. level_per_second: of demand before a possible present surge.
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
