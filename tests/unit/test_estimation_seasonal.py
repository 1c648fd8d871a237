"""The forecast with a season: better where the season is right, no worse for long where it is not.

Two weeks of history end on a Sunday; what is forecast is the Monday after.
"""

import numpy as np
import pytest
from season_world import DAY, HOUR, MONDAY, history_of, office_rate

from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.forecast.demand import (
    ForecastState,
    forecast,
    observe,
    with_history,
)
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.stored_estimator import learned, restore

WINDOW = 15.0
LEAD = 120.0
PROBABILITIES = (0.5, 0.75, 0.9, 0.95)
TODAY = MONDAY + 14 * DAY
HISTORY = history_of()


def asleep(seconds, later_hours=0.0):
    """Nobody at night."""
    return office_rate(seconds, low=0.0, high=13.0, later_hours=later_hours)


def played(rate, hours, history=None, seed=5):
    """(time, forecast) after each window of today between these hours, and the state at the end."""
    random = np.random.default_rng(seed)
    state = ForecastState() if history is None else with_history(ForecastState(), history)
    begin, end = (TODAY + hour * HOUR for hour in hours)
    found = []
    for now in np.arange(begin, end, WINDOW) + WINDOW:
        counted = random.poisson(float(rate(now - 0.5 * WINDOW)) * WINDOW)
        window = RateWindow(rate_per_second=counted / WINDOW, seconds=WINDOW)
        state = observe(state, window, float(now))
        found.append((float(now), forecast(state, float(now))))
    return found, state


def loss(rate, found):
    """Mean pinball loss at the lead, the first minutes left out."""
    total = []
    for now, known in found[20:]:
        truth = float(rate(now + LEAD))
        for p in PROBABILITIES:
            error = truth - known.quantile_per_second(LEAD, p)
            total.append(max(p * error, (p - 1.0) * error))
    return float(np.mean(total))


@pytest.mark.parametrize(
    "rate",
    [
        pytest.param(office_rate, id="as-in-history"),
        pytest.param(lambda t: 1.5 * office_rate(t), id="half-as-much-again"),
        pytest.param(lambda t: 0.5 * office_rate(t), id="half-of-it"),
    ],
)
def test_a_season_makes_the_morning_easier_to_forecast(rate):
    """From eight to ten the loss is halved, whatever today's level."""
    plain, _ = played(rate, (8.0, 10.0))
    seasonal, _ = played(rate, (8.0, 10.0), HISTORY)
    assert loss(rate, seasonal) < 0.5 * loss(rate, plain)


def test_a_fleet_that_sleeps_is_awaited():
    """Nothing arrives at night; shortly before nine the season says what will, and is believed."""
    at = dict(played(asleep, (5.0, 9.0), history_of(asleep))[0])
    assert at[TODAY + 6.0 * HOUR].quantile_per_second(LEAD, 0.9) < 1.0
    plain = dict(played(asleep, (8.0, 9.0))[0])
    opening = TODAY + 8.975 * HOUR
    expected, truth = at[opening].mean_per_second(LEAD), float(asleep(opening + LEAD))
    assert expected == pytest.approx(truth, rel=0.2)
    assert plain[opening].mean_per_second(LEAD) < 0.7 * truth


@pytest.mark.parametrize(
    "rate",
    [
        pytest.param(lambda t: office_rate(t, later_hours=-3.0), id="three-hours-late"),
        pytest.param(lambda t: office_rate(t, later_hours=1.0), id="an-hour-early"),
        pytest.param(lambda _: np.full((), 10.0), id="flat"),
        pytest.param(lambda t: office_rate(np.asarray(t) + 5 * DAY), id="holiday"),
    ],
)
def test_a_season_that_misleads_costs_little(rate):
    """From seven to one with the season of another pattern the loss rises by a quarter at most."""
    plain, _ = played(rate, (7.0, 13.0))
    seasonal, _ = played(rate, (7.0, 13.0), HISTORY)
    assert loss(rate, seasonal) < 1.25 * loss(rate, plain)


def test_a_season_that_is_wrong_now_loses_its_say_within_minutes():
    """Nobody comes at nine: a quarter of an hour later the season has next to no say."""
    found, _ = played(lambda t: office_rate(np.asarray(t) + 5 * DAY), (7.0, 9.5), HISTORY)
    known = dict(found)
    assert known[TODAY + 8.5 * HOUR].season_weight(LEAD) > 0.5
    late = [f.season_weight(LEAD) for now, f in found if now > TODAY + 9.25 * HOUR]
    assert max(late) < 0.3
    assert np.mean(late) < 0.05


def test_a_crowd_is_met_as_if_there_were_no_season():
    """Four times the usual load within a minute: from the second window on both plan alike."""

    def crowd(seconds):
        after = np.asarray(seconds) - (TODAY + 14 * HOUR)
        return office_rate(seconds) * np.interp(after, [0.0, 60.0], [1.0, 4.0])

    hours = (13.0, 14.1)
    plain, seasonal = played(crowd, hours)[0], played(crowd, hours, HISTORY)[0]
    for (now, without), (_, known) in zip(plain, seasonal, strict=True):
        if now > TODAY + 14 * HOUR + 2 * WINDOW:
            assert known.quantile_per_second(LEAD, 0.75) == pytest.approx(
                without.quantile_per_second(LEAD, 0.75), rel=0.05
            )


def test_where_today_lies_survives_a_restart_and_the_season_comes_with_the_next_history():
    """The status keeps five numbers of it; history is asked for again."""
    _, state = played(lambda t: 1.5 * office_rate(t), (7.5, 10.5), HISTORY)
    stored = learned(EstimatorState(forecast=state))
    again = restore(stored).forecast
    assert again.season.season is None
    assert again.season.offset == pytest.approx(np.log(1.5), abs=0.1)
    again = with_history(again, HISTORY)
    now = TODAY + 10.5 * HOUR
    assert forecast(again, now).mean_per_second(LEAD) == pytest.approx(
        forecast(state, now).mean_per_second(LEAD), rel=0.02
    )
