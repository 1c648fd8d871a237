"""A season in history: found where days repeat, refused with a reason where they do not."""

import numpy as np
import pytest
from season_world import BIN_SECONDS, DAY, HOUR, MONDAY, SATURDAY, SUNDAY, history_of, office_rate

from servingslo.estimation.forecast.season_profile import RateHistory, find_season
from servingslo.reasons import Reason


def sine(seconds):
    """Every day alike, without a sharp change."""
    return 10.0 * (1.0 + 0.6 * np.sin(2.0 * np.pi * np.asarray(seconds) / DAY))


def evenings(seconds):
    """A game: evenings, and twice as much on rest days."""
    resting = np.isin(np.floor(np.asarray(seconds) / DAY) % 7, (SATURDAY, SUNDAY))
    return np.maximum(10.0 - 12.0 * np.cos(2.0 * np.pi * (seconds / DAY - 0.25)), 1.0) * np.where(
        resting, 2.0, 1.0
    )


def sundays(seconds):
    """Closed on Sundays."""
    resting = np.floor(np.asarray(seconds) / DAY) % 7 == SUNDAY
    return np.where(resting, 1.0, sine(seconds))


def wandering(seconds):
    """No two days alike: a random walk."""
    steps = np.random.default_rng(3).normal(0.0, 0.03, len(seconds))
    return 10.0 * np.exp(np.cumsum(steps))


def bursts(seconds):
    """Bursts at any time of day."""
    return np.where(np.random.default_rng(3).random(len(seconds)) < 0.3, 30.0, 5.0)


WEEKEND = (SATURDAY, SUNDAY)


@pytest.mark.parametrize(
    ("history", "rest_days"),
    [
        pytest.param(history_of(), WEEKEND, id="weekly"),
        pytest.param(history_of(missing=0.2), WEEKEND, id="a-fifth-is-missing"),
        pytest.param(history_of(odd_day=8), WEEKEND, id="one-odd-day"),
        pytest.param(history_of(odd_day=5, seed=2), WEEKEND, id="one-odd-rest-day"),
        pytest.param(
            history_of(lambda t: office_rate(t, later_hours=8.0)), WEEKEND, id="west-coast"
        ),
        pytest.param(history_of(lambda t: office_rate(t, later_hours=-9.0)), WEEKEND, id="tokyo"),
        pytest.param(history_of(evenings), WEEKEND, id="busier-on-rest-days"),
        pytest.param(history_of(sundays), (SUNDAY,), id="sundays-off"),
        pytest.param(
            history_of(lambda t: office_rate(np.asarray(t) + DAY)), (1, 2), id="friday-and-saturday"
        ),
        pytest.param(
            history_of(lambda t: office_rate(t, low=0.0, high=13.0)), WEEKEND, id="asleep-at-night"
        ),
        pytest.param(
            history_of(lambda t: office_rate(t, low=0.005, high=0.1)), WEEKEND, id="few-requests"
        ),
        pytest.param(history_of(sine), (), id="daily"),
        pytest.param(history_of(sine, days=3), (), id="daily-in-three-days"),
    ],
)
def test_a_season_is_found(history, rest_days):
    """Weekly and daily seasons, also through gaps, odd days, silent nights and other time zones."""
    finding = find_season(history)
    assert finding.reason is Reason.SEASON_FOUND
    assert finding.season.rest_days == rest_days
    assert 0.64 <= finding.strength_ratio <= 1.0


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        pytest.param(history_of(wandering), Reason.SEASON_NOT_FOUND, id="random-walk"),
        pytest.param(history_of(bursts), Reason.SEASON_NOT_FOUND, id="bursts"),
        pytest.param(
            history_of(lambda t: np.full(len(t), 10.0)), Reason.SEASON_NOT_FOUND, id="flat"
        ),
        pytest.param(
            history_of(lambda t: np.zeros(len(t))), Reason.SEASON_NOT_FOUND, id="no-traffic"
        ),
        pytest.param(history_of(sine, days=2), Reason.HISTORY_TOO_SHORT, id="two-days"),
        pytest.param(history_of(missing=1.0), Reason.HISTORY_TOO_SHORT, id="nothing-known"),
        pytest.param(
            RateHistory(start_seconds=MONDAY, bin_seconds=BIN_SECONDS, rates_per_second=()),
            Reason.HISTORY_TOO_SHORT,
            id="empty",
        ),
        pytest.param(
            RateHistory(start_seconds=MONDAY, bin_seconds=7.0, rates_per_second=(1.0,) * 200000),
            Reason.HISTORY_TOO_SHORT,
            id="bins-that-fit-no-day",
        ),
    ],
)
def test_no_season_is_found_where_there_is_none(history, reason):
    """The reason tells too little history from history without a season."""
    finding = find_season(history)
    assert finding.reason is reason
    assert finding.season is None


@pytest.mark.parametrize("hour", [3.0, 8.0, 9.5, 11.0, 15.0, 17.9, 22.0])
@pytest.mark.parametrize("day", [14, 19])
def test_the_profile_tells_the_rate_of_days_to_come(hour, day):
    """On a Monday and a Saturday of the third week, by time of day, within a tenth."""
    season = find_season(history_of(spread=0.02)).season
    at = MONDAY + day * DAY + hour * HOUR
    assert season.rate_per_second(at) == pytest.approx(float(office_rate(at)), rel=0.1)


def test_a_change_that_comes_at_another_minute_each_day_is_uncertain():
    """Offices open between nine and ten past; around nine the season is unsure, at eleven sure."""

    def unpunctual(seconds):
        days = np.floor(np.asarray(seconds) / DAY).astype(int)
        return office_rate(seconds, later_hours=(days * 7 % 5) / 24.0)

    season = find_season(history_of(unpunctual)).season
    nine = MONDAY + 14 * DAY + 9 * HOUR
    assert season.variance_per_second(nine) > 20 * season.variance_per_second(nine + 2 * HOUR)


def test_one_odd_day_leaves_the_profile_as_it_is():
    """A day at a tenth of the load moves no hour of the others' profile by a twentieth."""
    plain = find_season(history_of(spread=0.0)).season
    odd = find_season(history_of(spread=0.0, odd_day=9)).season
    for hour in range(24):
        at = MONDAY + 16 * DAY + hour * HOUR
        assert odd.rate_per_second(at) == pytest.approx(plain.rate_per_second(at), rel=0.05)


def weak(seconds):
    """A season of rest days that explains a little."""
    resting = np.isin(np.floor(np.asarray(seconds) / DAY) % 7, (SATURDAY, SUNDAY))
    return wandering(seconds) * np.where(resting, 0.8, 1.0)


@pytest.mark.parametrize(
    ("rate", "days", "stated", "rest_days"),
    [
        pytest.param(weak, 14, 7, True, id="weak-week"),
        pytest.param(weak, 14, 1, False, id="weak-day"),
        pytest.param(office_rate, 14, 1, False, id="a-day-though-it-is-a-week"),
        pytest.param(office_rate, 5, 7, False, id="a-week-of-which-five-days-are-known"),
    ],
)
def test_a_season_that_is_stated_need_not_explain_much(rate, days, stated, rest_days):
    """It is taken where history is long enough to see it; nothing else is looked for."""
    finding = find_season(history_of(rate, days=days), stated)
    assert finding.reason is Reason.SEASON_FOUND
    assert bool(finding.season.rest_days) is rest_days


def test_a_season_that_is_stated_still_needs_three_days():
    """Nothing can be told of a day from one."""
    finding = find_season(history_of(days=2), 1)
    assert finding.reason is Reason.HISTORY_TOO_SHORT
