"""Arrival rates of the last day, bin by bin: what a reserve is chosen from.

What was not observed here is filled from what Prometheus remembers, in longer bins.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.copying import replace
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.units import SECONDS_PER_DAY

# Two of Prometheus' default scrapes: shorter bins hold the noise of counting, longer ones hide how
# steep a burst is. A day is 23 kB a workload.
BIN_SECONDS = 30.0
MOST_BINS = round(SECONDS_PER_DAY / BIN_SECONDS)
_BIN_DIGITS = 8
UNKNOWN = -1.0
"""The rate of an unknown bin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastArrivals:
    """Rates per second of the bins before `end`, UNKNOWN in others.

    packed: in single precision, as hexadecimal digits, so that a state can be stored and compared.
    end: number since the epoch of the first bin that is not complete. requests, seconds: counted
    since the last complete bin.
    """

    packed: str = ""
    end: int = 0
    requests: float = 0.0
    seconds: float = 0.0

    @property
    def rates_per_second(self) -> "array[float]":
        """The rates, of consecutive bins."""
        return array("f", bytes.fromhex(self.packed))


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
    added = _packed([UNKNOWN] * (bins - counted) + [rate] * counted)
    return PastArrivals(packed=(past.packed + added)[-MOST_BINS * _BIN_DIGITS :], end=end)


def with_history(past: PastArrivals, history: RateHistory, now_seconds: float) -> PastArrivals:
    """Return the past with bins that were not observed here taken from a history."""
    end = past.end or math.floor(now_seconds / BIN_SECONDS)
    own, found = past.rates_per_second, list[float]()
    for number in range(end - MOST_BINS, end):
        place = number - end + len(own)
        rate = own[place] if place >= 0 else UNKNOWN
        if rate < 0.0:
            at = (number + 0.5) * BIN_SECONDS
            known = None if history.recent is None else history.recent.rate_at(at)
            known = history.rate_at(at) if known is None else known
            rate = UNKNOWN if known is None else known
        found.append(rate)
    first = next((place for place, rate in enumerate(found) if rate >= 0.0), len(found))
    return replace(past, packed=_packed(found[first:]), end=end)


def _packed(rates: Sequence[float]) -> str:
    return array("f", rates).tobytes().hex()
