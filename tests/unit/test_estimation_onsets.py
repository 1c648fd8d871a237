"""The first window of a rise: when it may be a crowd's, and what earlier ones turned out to be."""

import json
from dataclasses import replace
from typing import Any

import pytest

from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.forecast import Forecast, ForecastState, forecast, observe
from servingslo.estimation.learned import learned, restore
from servingslo.estimation.onsets import OnsetState
from servingslo.estimation.rate_filters import RateWindow

WINDOW_SECONDS = 15.0
# What a crowd of 18 to 180/s within a minute shows ten seconds after it began, in 15 s windows:
# 2.7/s² · 10² s² / 2 / 15 s = 9/s more than usual on average, 27/s more at the end.
USUAL = 18.0
FIRST = 27.0
END = 45.0
IN_FLIGHT_SECONDS = 4.0
LEAD_SECONDS = 120.0


class Watched:
    """Demand as it is read, one window after another."""

    def __init__(self, usual_windows: int = 40) -> None:
        self.state, self.now = ForecastState(), 0.0
        self.calm(usual_windows)

    def see(self, rate: float, end: float | None = None, error_ratio: float = 0.02) -> Forecast:
        """A window with this mean; at its end so many arrive that Little's law has in flight."""
        self.now += WINDOW_SECONDS
        window = RateWindow(
            rate_per_second=rate,
            seconds=WINDOW_SECONDS,
            error_ratio=error_ratio,
            in_flight_requests=IN_FLIGHT_SECONDS * (rate if end is None else end),
        )
        self.state = observe(self.state, window, self.now)
        return forecast(self.state, self.now)

    def calm(self, windows: int) -> None:
        """So many windows of what is usual."""
        for _ in range(windows):
            self.see(USUAL)


def test_a_rise_that_ends_higher_than_a_line_would_may_be_a_crowd() -> None:
    """As likely as not, with the slope that it would have: a few times the first window."""
    watched = Watched()
    found = watched.see(FIRST, END)
    assert found.onset is not None
    assert found.onset.surge_probability == 0.5
    assert not found.onset.refuted
    # E = 135 requests more than usual in 3/4 of the window: 2·E / 11.25 s.
    assert found.onset.end_per_second == pytest.approx(USUAL + 24.0, rel=0.01)
    assert found.surge_probability == pytest.approx(0.5, abs=0.01)
    # The slope is 24/s in 11.25 s, which dies out over 45 s: 96·(1 − e^(−120/45)) = 89/s more. The
    # 0.75 quantile of a crowd or a step is the crowd's median, but for what is left of the others.
    crowd = max(found.filters, key=lambda f: f.trend)
    assert crowd.trend == pytest.approx(24.0 / 11.25, rel=0.01)
    assert found.quantile_per_second(LEAD_SECONDS, 0.75) == pytest.approx(42.0 + 89.0, rel=0.1)


def test_a_step_early_in_the_window_is_none() -> None:
    """As many more in flight as were counted more: the rate at the end is the mean."""
    found = Watched().see(FIRST, FIRST)
    assert found.onset is None
    assert found.surge_probability < 0.1


@pytest.mark.parametrize(
    ("usual", "rate"),
    [
        # 25 % more, 8 standard deviations.
        pytest.param(100.0, 125.0, id="less-than-a-surprise"),
        # 16 requests for 7.5, 3 standard deviations.
        pytest.param(0.5, 1.05, id="counting-noise"),
    ],
)
def test_less_than_that_is_none(usual: float, rate: float) -> None:
    """However many are in flight."""
    watched = Watched(0)
    for _ in range(40):
        watched.see(usual)
    assert watched.see(rate, 10.0 * usual).onset is None


def test_a_count_that_is_little_known_is_none() -> None:
    """Half as much again, known to 11 %: pods have just gone, and what they had is counted anew."""
    watched = Watched()
    assert watched.see(FIRST, END, error_ratio=0.112).onset is None


def test_a_rise_on_a_rise_is_the_same_one() -> None:
    """Demand that has just jumped is not settled: what it does next is no beginning."""
    watched = Watched()
    watched.see(FIRST, END)
    watched.see(FIRST)
    assert watched.see(2.2 * FIRST, 5.0 * FIRST).onset is None


def test_nothing_is_said_before_it_is_known_what_is_usual() -> None:
    """In the first five minutes."""
    assert Watched(usual_windows=15).see(FIRST, END).onset is None
    assert Watched(usual_windows=25).see(FIRST, END).onset is not None


def test_nothing_is_said_where_nothing_is_read_of_what_is_in_flight() -> None:
    """A count alone does not tell when in its window a rise began."""
    state = ForecastState()
    for number, rate in enumerate([*[USUAL] * 40, FIRST], start=1):
        window = RateWindow(rate_per_second=rate, seconds=WINDOW_SECONDS)
        state = observe(state, window, number * WINDOW_SECONDS)
    assert forecast(state, 41 * WINDOW_SECONDS).onset is None


def test_a_rise_that_does_not_go_on_is_refuted_once() -> None:
    """And the next one is taken for a crowd half as likely."""
    watched = Watched()
    watched.see(FIRST, END)
    after = watched.see(FIRST + 2.0)
    assert after.onset is not None
    assert after.onset.refuted
    assert after.quantile_per_second(LEAD_SECONDS, 0.9) < 1.5 * FIRST
    assert watched.see(FIRST + 2.0).onset is None
    assert watched.state.onset.surge_probability == 0.25


def test_a_rise_that_goes_on_below_a_crowd_is_neither() -> None:
    """Twice as far above what was usual: a step late in the window, or a slower crowd."""
    watched = Watched()
    watched.see(FIRST, END)
    assert watched.see(USUAL + 2.0 * (FIRST - USUAL)).onset is None
    assert (watched.state.onset.crowds, watched.state.onset.others) == (0, 1)


def test_a_crowd_makes_the_next_one_likelier() -> None:
    """It has gone beyond the end that it would have had as one."""
    watched = Watched()
    watched.see(FIRST, END)
    assert watched.see(65.0).onset is None
    assert (watched.state.onset.crowds, watched.state.onset.others) == (1, 0)
    assert watched.state.onset.surge_probability == 0.75


def test_bursts_that_recur_are_known_already() -> None:
    """Two within an hour: what they reach is kept, and no third is taken for a larger one."""
    watched = Watched()
    for _ in range(2):
        for _ in range(8):
            watched.see(2.0 * USUAL)
        watched.calm(30)
    assert forecast(watched.state, watched.now).recurrence is not None
    assert watched.see(FIRST, END).onset is None


@pytest.mark.parametrize(
    ("pause_seconds", "rate"),
    [
        pytest.param(900.0, FIRST, id="after-a-long-pause"),
        pytest.param(0.0, 1000.0 * USUAL, id="demand-of-another-size"),
    ],
)
def test_a_rise_is_no_news_once_demand_has_become_another(
    pause_seconds: float, rate: float
) -> None:
    """Nothing is known of what is usual then, and no outcome is counted."""
    watched = Watched()
    watched.see(FIRST, END)
    watched.now += pause_seconds
    assert watched.see(rate).onset is None
    assert watched.state.onset == OnsetState()


def test_what_rises_turned_out_to_be_survives_a_restart() -> None:
    """The two counts are stored; what is not two counts reads as none."""
    watched = Watched()
    known = replace(watched.state, onset=OnsetState(crowds=1, others=3))
    stored: dict[str, Any] = json.loads(json.dumps(learned(EstimatorState(forecast=known))))
    assert restore(stored).forecast.onset.surge_probability == 1.5 / 5.0
    for broken in (None, [], [1], [1, -2], [1.5, 2], ["1", 2], [True, 2], {"crowds": 1}):
        stored["forecast"]["rises"] = broken
        read = restore(stored).forecast
        assert read.onset == OnsetState()
        assert read.filters
