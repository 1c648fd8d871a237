"""Arrivals of the last day in bins."""

from servingslo.estimation.forecast.past_arrivals import (
    BIN_SECONDS,
    MOST_BINS,
    UNKNOWN,
    PastArrivals,
    observe,
    with_history,
)
from servingslo.estimation.forecast.season_profile import RateHistory

BEGIN = 1_700_000_010.0  # a multiple of the bin


def after(windows, begin=BEGIN, past=None):
    """The past after (rate, seconds) windows one after another."""
    past, now = past or PastArrivals(), begin
    for rate, seconds in windows:
        now += seconds
        past = observe(past, rate, seconds, now)
    return past, now


def test_bins_hold_the_mean_of_their_windows():
    """Two windows of 15 s make one bin."""
    past, _ = after([(4.0, 15.0), (8.0, 15.0), (2.0, 15.0), (2.0, 15.0)])
    assert list(past.rates_per_second)[-2:] == [6.0, 2.0]


def test_a_long_window_fills_all_of_its_bins_and_a_gap_is_unknown():
    """A scrape a minute fills two bins; ten minutes without one are not the last rate."""
    past, now = after([(3.0, 60.0)] * 3)
    assert list(past.rates_per_second) == [3.0] * 6
    past = observe(past, 5.0, 15.0, now + 600.0)
    unknown = sum(rate == UNKNOWN for rate in past.rates_per_second)
    assert unknown == 600.0 / BIN_SECONDS - 1
    assert past.rates_per_second[-1] == 5.0


def test_a_day_is_kept():
    """Older bins are forgotten."""
    past, _ = after([(1.0, 30.0)] * (MOST_BINS + 50))
    assert len(past.rates_per_second) == MOST_BINS


def test_history_fills_what_was_not_observed():
    """Own bins stand; before them the finer history is used, else the coarse one."""
    own, now = after([(9.0, 30.0)] * 4)
    hour = 3600.0
    fine = RateHistory(
        start_seconds=BEGIN - hour, bin_seconds=60.0, rates_per_second=(2.0,) * 59 + (7.0,)
    )
    coarse = RateHistory(
        start_seconds=BEGIN - 2 * hour,
        bin_seconds=300.0,
        rates_per_second=(1.0,) * 24,
        recent=fine,
    )
    rates = list(with_history(own, coarse, now).rates_per_second)
    bins = len(own.rates_per_second)
    assert rates[-bins:] == [9.0] * bins
    before = rates[:-bins]
    assert (before[-1], before[-10], before[0]) == (7.0, 2.0, 1.0)


def test_nothing_is_known_without_history_and_requests():
    """An empty history adds no bins."""
    nothing = RateHistory(start_seconds=0.0, bin_seconds=300.0, rates_per_second=())
    assert not with_history(PastArrivals(), nothing, BEGIN).packed
