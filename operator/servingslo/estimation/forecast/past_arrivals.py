"""Arrival rates of the last day, bin by bin: what a reserve is chosen from.

What was not observed here is filled from what Prometheus remembers, in longer bins.
"""

import math
from array import array
from dataclasses import dataclass, field

from servingslo.copying import replace
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.units import SECONDS_PER_DAY

# Two of Prometheus' default scrapes: shorter bins hold the noise of counting, longer ones hide how
# steep a burst is. A day is 11.5 kB a workload.
BIN_SECONDS = 30.0
MOST_BINS = round(SECONDS_PER_DAY / BIN_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastArrivals:
    """Rates per second of the bins before `end`, NaN in unknown ones.

    rates_per_second: single precision; never changed in place. end: number since the epoch of the
    first bin that is not complete. requests, seconds: counted since the last complete bin.
    """

    rates_per_second: "array[float]" = field(default_factory=lambda: array("f"))
    end: int = 0
    requests: float = 0.0
    seconds: float = 0.0


def observe(
    past: PastArrivals, rate_per_second: float, seconds: float, now_seconds: float
) -> PastArrivals:
    """Return the past after a window of this many seconds that ended now."""
    end = math.floor(now_seconds / BIN_SECONDS)
    past = replace(
        past,
        end=past.end or math.floor((now_seconds - seconds) / BIN_SECONDS),
        requests=past.requests + rate_per_second * seconds,
        seconds=past.seconds + seconds,
    )
    bins = end - past.end
    if bins <= 0 or past.seconds <= 0.0:
        return past
    bins = min(bins, MOST_BINS)
    counted = min(bins, max(round(past.seconds / BIN_SECONDS), 1))
    rate = past.requests / past.seconds
    added = array("f", [math.nan] * (bins - counted) + [rate] * counted)
    return PastArrivals(rates_per_second=(past.rates_per_second + added)[-MOST_BINS:], end=end)


def with_history(past: PastArrivals, history: RateHistory, now_seconds: float) -> PastArrivals:
    """Return the past with bins that were not observed here taken from a history."""
    end = past.end or math.floor(now_seconds / BIN_SECONDS)
    own, found = past.rates_per_second, array("f")
    for number in range(end - MOST_BINS, end):
        place = number - end + len(own)
        rate = own[place] if place >= 0 else math.nan
        if math.isnan(rate):
            at = (number + 0.5) * BIN_SECONDS
            known = None if history.recent is None else history.recent.rate_at(at)
            known = history.rate_at(at) if known is None else known
            rate = math.nan if known is None else known
        found.append(rate)
    first = next((place for place, rate in enumerate(found) if not math.isnan(rate)), len(found))
    return replace(past, rates_per_second=found[first:], end=end)
