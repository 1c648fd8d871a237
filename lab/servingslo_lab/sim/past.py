"""The past of a trace in the operator's form: mean arrival rates of bins, for two weeks.

Past and trace use one clock, the planner's. On it, bins begin at multiples of their width.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.models.engine.service_time import FloatArray
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Observation
from servingslo.units import SECONDS_PER_DAY
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.production import Production

# The width in `adapters.prometheus.past_rates`, which is not imported here; a test compares them.
BIN_SECONDS = 300.0
RECENT_BIN_SECONDS = 60.0
HISTORY_DAYS = 14
_DIGITS = 4
_MOST_BINS = round(HISTORY_DAYS * SECONDS_PER_DAY / BIN_SECONDS)
_MOST_RECENT = round(SECONDS_PER_DAY / RECENT_BIN_SECONDS)

Rates = tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The known history at the beginning of a trace.

    begin_seconds: the planner's clock at second 0 of the trace. rates_per_second: of the bins up
    to the one in which the trace begins, None for unknown bins; empty without a history.
    recent_per_second: of the minutes of the last day before it.
    """

    begin_seconds: float = 0.0
    rates_per_second: Rates = ()
    recent_per_second: Rates = ()

    @property
    def duration_seconds(self) -> float:
        """Length of the history."""
        return len(self.rates_per_second) * BIN_SECONDS

    def history_at(self, arrival_seconds: FloatArray, now_seconds: float) -> RateHistory:
        """The history this long after the beginning, including arrivals up to then.

        arrival_seconds: of the trace, from its second 0.
        """
        begin = self.begin_seconds
        first, end = (math.floor(at / BIN_SECONDS) for at in (begin, begin + now_seconds))
        since: Rates = ()
        if end > first:
            since = _rates(begin + arrival_seconds, BIN_SECONDS, first, end)
            # The bin in which the trace begins is counted only from the trace's start.
            since = since if begin == first * BIN_SECONDS else (None, *since[1:])
        rates = (*self.rates_per_second, *since)[-_MOST_BINS:]
        minutes = math.floor(now_seconds / RECENT_BIN_SECONDS)
        lately = _rates(arrival_seconds, RECENT_BIN_SECONDS, 0, minutes)
        recent = (*self.recent_per_second, *lately)[-_MOST_RECENT:]
        return RateHistory(
            start_seconds=(end - len(rates)) * BIN_SECONDS,
            bin_seconds=BIN_SECONDS,
            rates_per_second=rates,
            recent=RateHistory(
                start_seconds=begin + (minutes - len(recent)) * RECENT_BIN_SECONDS,
                bin_seconds=RECENT_BIN_SECONDS,
                rates_per_second=recent,
            )
            if recent
            else None,
        )


def history_of_arrivals(
    arrival_seconds: FloatArray, since_seconds: float, until_seconds: float
) -> RateHistory:
    """The rates of the whole bins between both times; all on the planner's clock.

    Also those of the last day's minutes, up to the end.
    """
    first, end = math.ceil(since_seconds / BIN_SECONDS), math.floor(until_seconds / BIN_SECONDS)
    minutes = min(math.floor((until_seconds - since_seconds) / RECENT_BIN_SECONDS), _MOST_RECENT)
    start = until_seconds - minutes * RECENT_BIN_SECONDS
    return RateHistory(
        start_seconds=first * BIN_SECONDS,
        bin_seconds=BIN_SECONDS,
        rates_per_second=_rates(arrival_seconds, BIN_SECONDS, first, end),
        recent=RateHistory(
            start_seconds=start,
            bin_seconds=RECENT_BIN_SECONDS,
            rates_per_second=_rates(arrival_seconds - start, RECENT_BIN_SECONDS, 0, minutes),
        ),
    )


def past_of_history(history: RateHistory, *, begin_seconds: float, scale: float = 1.0) -> Past:
    """The past of a trace from a history; bins after the history's end are unknown.

    history: in bins of BIN_SECONDS. scale: factor of its rates, the same as for the trace.
    """
    end = math.floor(begin_seconds / BIN_SECONDS)
    first = round(history.start_seconds / BIN_SECONDS)
    known = history.rates_per_second[: max(end - first, 0)]
    rates: Rates = tuple(None if rate is None else _rounded(scale * rate) for rate in known)
    if rates:
        rates += (None,) * (end - first - len(rates))
    return Past(
        begin_seconds=begin_seconds,
        rates_per_second=rates[-_MOST_BINS:],
        recent_per_second=_recent(history.recent, begin_seconds, scale),
    )


def _recent(minutes: RateHistory | None, begin_seconds: float, scale: float) -> Rates:
    """The minutes of the last day before this time, the last of them less than one before it."""
    if minutes is None:
        return ()
    known = minutes.rates_per_second
    count = math.floor((begin_seconds - minutes.start_seconds) / RECENT_BIN_SECONDS)
    rates = [None if rate is None else _rounded(scale * rate) for rate in known[: max(count, 0)]]
    return (*rates, *(None,) * (count - len(rates)))[-_MOST_RECENT:]


def _rates(arrival_seconds: FloatArray, width_seconds: float, first: int, end: int) -> Rates:
    """Rates of the bins of this width from first to before end."""
    if end <= first:
        return ()
    bins = np.floor(arrival_seconds / width_seconds).astype(np.int64)
    inside = bins[(bins >= first) & (bins < end)] - first
    counts = np.bincount(inside, minlength=end - first)
    return tuple(_rounded(count / width_seconds) for count in counts.tolist())


def _rounded(rate: float) -> float:
    return float(f"{rate:.{_DIGITS}g}")


class Remembering:
    """The planner with a history: it gets the past at its first tick and then once a day."""

    def __init__(self, planner: Production, past: Past, arrival_seconds: FloatArray) -> None:
        self._planner, self._past, self._arrivals = planner, past, arrival_seconds
        self._due = 0.0

    @property
    def decisions(self) -> list[Decision]:
        """All decisions, at the times of the trace."""
        begin = self._past.begin_seconds
        return [replace(d, time_seconds=d.time_seconds - begin) for d in self._planner.decisions]

    def decide(self, observation: Observation) -> Wanted:
        """The planner's decision at this time of its clock."""
        now, history = observation.time_seconds, None
        if now >= self._due:
            history = self._past.history_at(self._arrivals, now)
            self._due = now + SECONDS_PER_DAY
        dated = replace(observation, time_seconds=self._past.begin_seconds + now, history=history)
        return self._planner.decide(dated)
