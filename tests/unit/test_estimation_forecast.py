"""The forecast at the lead time: scored against last value and Holt–Winters, fast in a surge."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.forecast.demand import (
    LONGEST_SILENCE_SECONDS,
    Forecast,
    ForecastState,
    forecast,
    observe,
)
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.stored_estimator import learned, restore
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
WINDOW_SECONDS = 15.0
LEAD_SECONDS = 90.0
LEAD_WINDOWS = 6
PROBABILITIES = (0.5, 0.9, 0.95, 0.975)
MIDDLES = (np.arange(240) + 0.5) * WINDOW_SECONDS


def _forecasts(rates: np.ndarray) -> list[Forecast]:
    state, found = ForecastState(), []
    for number, rate in enumerate(rates):
        window = RateWindow(rate_per_second=float(rate), seconds=WINDOW_SECONDS)
        state = observe(state, window, number * WINDOW_SECONDS)
        found.append(forecast(state, number * WINDOW_SECONDS))
    return found


def _pinball(probability: float, outcome: float, predicted: float) -> float:
    error = outcome - predicted
    return max(probability * error, (probability - 1.0) * error)


def _last_value(rates: np.ndarray) -> list[float]:
    return [float(rate) for rate in rates]


def _holt_winters(rates: np.ndarray) -> list[float]:
    """Additive damped trend, no season; α 0.5, β 0.1, φ 0.95."""
    level, trend, found = float(rates[0]), 0.0, [float(rates[0])]
    steps = sum(0.95**k for k in range(1, LEAD_WINDOWS + 1))
    for rate in rates[1:]:
        new = 0.5 * float(rate) + 0.5 * (level + 0.95 * trend)
        trend = 0.1 * (new - level) + 0.9 * 0.95 * trend
        level = new
        found.append(max(level + trend * steps, 0.0))
    return found


def _losses(rates: np.ndarray, truth: np.ndarray) -> tuple[float, float, float]:
    """Mean pinball loss of ours, last value and Holt–Winters.

    The two get the quantiles of their own errors over the last hour's quarter, as ours may learn
    from its errors.
    """
    ours = _forecasts(rates)
    predicted = [_last_value(rates), _holt_winters(rates)]
    sums = [0.0, 0.0, 0.0]
    for now in range(20, len(rates) - LEAD_WINDOWS, 3):
        outcome = float(truth[now + LEAD_WINDOWS])
        for probability in PROBABILITIES:
            quantile = ours[now].quantile_per_second(LEAD_SECONDS, probability)
            sums[0] += _pinball(probability, outcome, quantile)
            for place, points in enumerate(predicted, start=1):
                errors = [
                    rates[k + LEAD_WINDOWS] - points[k]
                    for k in range(max(0, now - 60), now - LEAD_WINDOWS + 1)
                ]
                shift = float(np.quantile(errors, probability))
                sums[place] += _pinball(probability, outcome, max(points[now] + shift, 0.0))
    return sums[0], sums[1], sums[2]


def _poisson(truth: np.ndarray, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).poisson(truth * WINDOW_SECONDS) / WINDOW_SECONDS


@pytest.mark.parametrize(
    "truth",
    [
        pytest.param(np.full(240, 60.0), id="steady"),
        pytest.param(
            np.interp(MIDDLES, [0, 600, 1800, 2100, 2700, 3600], [20, 20, 180, 180, 20, 20]),
            id="ramp",
        ),
        pytest.param(
            np.interp(MIDDLES, [0, 1200, 1260, 2100, 2160, 3600], [18, 18, 180, 180, 18, 18]),
            id="crowd",
        ),
    ],
)
def test_forecast_beats_last_value_and_holt_winters(truth: np.ndarray) -> None:
    """Pinball loss at 90 s, on generated demand whose true rate is known."""
    ours, last, holt = _losses(_poisson(truth), truth)
    assert ours < last
    assert ours < holt


def test_forecast_beats_last_value_and_holt_winters_on_the_azure_trace() -> None:
    """The trace as it is; its true rate is its mean over 75 s around the outcome."""
    trace = read_trace(TRACE)
    counts = np.histogram(trace.arrival_seconds, bins=240, range=(0.0, 3600.0))[0]
    truth = np.convolve(np.pad(counts, 2, mode="edge"), np.ones(5) / 5, "valid") / WINDOW_SECONDS
    ours, last, holt = _losses(counts / WINDOW_SECONDS, truth)
    assert ours < last
    assert ours < holt


def test_surge_is_seen_within_two_scrapes() -> None:
    """Ten times the demand within a minute: the p90 at the lead covers it by the second scrape."""
    truth = np.interp(MIDDLES, [0, 1200, 1260, 3600], [18, 18, 180, 180])
    found = _forecasts(_poisson(truth))
    before = found[79].quantile_per_second(LEAD_SECONDS, 0.9)
    first = found[80].quantile_per_second(LEAD_SECONDS, 0.9)
    second = found[81].quantile_per_second(LEAD_SECONDS, 0.9)
    assert before < 22.0
    assert first > 1.1 * float(truth[80])
    assert second > 140.0
    assert found[81].surge_probability > 0.5


@pytest.mark.parametrize(
    ("rise_seconds", "factor"),
    [
        pytest.param(1.0, 2.0, id="twice-at-once"),
        pytest.param(1.0, 4.0, id="four-times-at-once"),
        pytest.param(60.0, 4.0, id="four-times-in-a-minute"),
    ],
)
def test_a_step_is_not_carried_on_when_it_is_over(rise_seconds: float, factor: float) -> None:
    """The slope of a rise ends with it: the new rate is expected, and soon the p90 is near it."""
    low, high = 10.0, 10.0 * factor
    truth = np.interp(MIDDLES, [0, 1200, 1200 + rise_seconds, 3600], [low, low, high, high])
    risen = int((1200 + rise_seconds) / WINDOW_SECONDS)
    for seed in (1, 2, 3):
        found = _forecasts(_poisson(truth, seed))
        highest = max(f.mean_per_second(120.0) for f in found[80 : risen + 8])
        p90 = [f.quantile_per_second(120.0, 0.9) for f in found[80 : risen + 20]]
        assert highest < 1.25 * high
        assert max(p90) < 1.75 * high
        assert max(p90[-14:]) < 1.35 * high
        assert min(p90[-14:]) > 0.9 * high


@pytest.mark.parametrize("tick_seconds", [5.0, 15.0])
@pytest.mark.parametrize("idle_rate", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("new_rate", [2.0, 13.0, 60.0])
def test_a_fleet_that_wakes_is_planned_at_the_new_rate_within_two_scrapes(
    tick_seconds: float, idle_rate: float, new_rate: float
) -> None:
    """Idle for ten minutes, then a step: no share of nearly nothing bounds what comes."""
    random = np.random.default_rng(4)
    idle = int(600.0 / tick_seconds)
    rates = [idle_rate] * idle + [new_rate] * 8
    state, planned = ForecastState(), []
    for number, rate in enumerate(rates):
        counted = float(random.poisson(rate * tick_seconds)) / tick_seconds
        window = RateWindow(rate_per_second=counted, seconds=tick_seconds)
        state = observe(state, window, number * tick_seconds)
        known = forecast(state, number * tick_seconds)
        planned.append(known.quantile_per_second(120.0, 0.75))
    assert planned[idle - 1] < 0.5
    assert min(planned[idle + 1 :]) > 0.85 * new_rate
    assert max(planned) < 2.5 * new_rate


def _watched(truth: list[tuple[float, float]], window_seconds: float, seed: int) -> Forecast:
    """The forecast after these (seconds, rate) of Poisson arrivals, seen in windows so long."""
    random, state, now = np.random.default_rng(seed), ForecastState(), 0.0
    for seconds, rate in truth:
        for _ in range(round(seconds / window_seconds)):
            now += window_seconds
            counted = float(random.poisson(rate * window_seconds)) / window_seconds
            window = RateWindow(rate_per_second=counted, seconds=window_seconds)
            state = observe(state, window, now)
    return forecast(state, now)


@pytest.mark.parametrize("scrape_seconds", [15, 30])
def test_a_sure_rise_goes_on_for_the_lead(scrape_seconds: int) -> None:
    """A rise is carried on once four windows show it, and no longer when one does not."""
    state, risen = ForecastState(), []
    for now in range(scrape_seconds, 780, scrape_seconds):
        rate = 10.0 + 0.5 * min(max(now - 600, 0), 120)
        window = RateWindow(rate_per_second=rate, seconds=float(scrape_seconds))
        state = observe(state, window, float(now))
        risen.append((now, forecast(state, float(now)).risen_per_second(LEAD_SECONDS)))
    before = [rate for now, rate in risen if now <= 600]
    rising = [rate for now, rate in risen if 600 + 3 * scrape_seconds <= now <= 720]
    over = [rate for now, rate in risen if now >= 720 + scrape_seconds]
    assert not any(before)
    assert min(rising) > 50.0
    assert not any(over)


def test_a_sure_rise_is_carried_over_the_age_of_the_last_window_once() -> None:
    """A minute without a new scrape: what is expected now has that minute in it."""
    state = ForecastState()
    for now in range(15, 721, 15):
        rate = 10.0 + 0.5 * max(now - 600, 0)
        state = observe(state, RateWindow(rate_per_second=rate, seconds=15.0), float(now))
    due = 10.0 + 0.5 * (180.0 + LEAD_SECONDS)
    assert 0.8 * due < forecast(state, 780.0).risen_per_second(LEAD_SECONDS) < due


def test_noise_is_no_rise() -> None:
    """At a constant rate nothing is carried on, but one window in a thousand."""
    found = _forecasts(_poisson(np.full(240, 20.0)))
    assert sum(one.rise_per_second2 > 0.0 for one in found) <= 1


def test_what_came_before_a_long_pause_judges_nothing_after_it() -> None:
    """A window that was not judged yet is forgotten with the predictions."""
    state = ForecastState()
    for now_seconds, rate in ((5.0, 7.0), (10.0, 70.0), (1000.0, 7.0)):
        state = observe(state, RateWindow(rate_per_second=rate, seconds=5.0), now_seconds)
    assert state.errors.interval is None


@pytest.mark.parametrize("window_seconds", [2.0, 5.0, 15.0])
def test_forecasts_are_judged_at_every_lead_however_often_demand_is_scraped(
    window_seconds: float,
) -> None:
    """A ramp that turns is missed four minutes ahead, and the spread says so."""
    ramps = [(30.0, 10.0 + 8.0 * k) for k in range(20)] + [(600.0, 20.0)]
    found = _watched(ramps, window_seconds, seed=1)
    assert found.spread_ratios[-1] != 1.0


def test_one_lonely_batch_of_requests_is_forgotten_when_nothing_follows() -> None:
    """Twenty requests at once after ten idle minutes: two scrapes later little is expected."""
    rates = np.zeros(50)
    rates[40] = 20.0 / WINDOW_SECONDS
    found = _forecasts(rates)
    assert found[40].mean_per_second(LEAD_SECONDS) > 1.0
    assert found[42].quantile_per_second(LEAD_SECONDS, 0.75) < 0.3


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_crowd_that_is_gone_is_not_expected_back(seed: int) -> None:
    """18/s, ten times that for 14 minutes, 18/s again: believed at the sixth scrape."""
    rise = np.linspace(18.0, 180.0, 5)
    truth = np.concatenate(
        (np.full(60, 18.0), rise, np.full(56, 180.0), rise[::-1], np.full(5, 18.0))
    )
    last = _forecasts(_poisson(truth, seed))[-1]
    assert last.quantile_per_second(LEAD_SECONDS, 0.75) < 2.0 * 18.0


def test_uncertainty_grows_with_the_lead_and_with_age() -> None:
    """Far ahead, and long after the last window, less is known."""
    state = ForecastState()
    for number, rate in enumerate(_poisson(np.full(40, 30.0))):
        window = RateWindow(rate_per_second=float(rate), seconds=WINDOW_SECONDS)
        state = observe(state, window, number * WINDOW_SECONDS)
    now = 39 * WINDOW_SECONDS
    fresh, aged = forecast(state, now), forecast(state, now + 570.0)
    near = fresh.quantile_per_second(30.0, 0.95)
    far = fresh.quantile_per_second(600.0, 0.95)
    assert near < far
    assert aged.quantile_per_second(30.0, 0.95) > near


def test_nothing_is_known_of_demand_after_a_long_pause() -> None:
    """A ramp before an hour without metrics is no reason to order; the next window begins anew."""
    state = ForecastState()
    for now in range(15, 616, 15):
        rate = 5.0 + 0.02 * now
        state = observe(state, RateWindow(rate_per_second=rate, seconds=15.0), float(now))
    assert forecast(state, 615.0 + LONGEST_SILENCE_SECONDS).known
    assert not forecast(state, 616.0 + LONGEST_SILENCE_SECONDS).known
    again = observe(state, RateWindow(rate_per_second=6.0, seconds=15.0), 4_215.0)
    assert forecast(again, 4_215.0).quantile_per_second(LEAD_SECONDS, 0.9) < 9.0


def test_a_slope_carries_on_where_it_did_before_and_not_where_demand_swings():
    """A ramp's slope foretells the next minutes, that of a swing their opposite."""
    seconds = np.arange(160) * WINDOW_SECONDS
    ramp = 40.0 + 0.05 * seconds
    swing = 60.0 + 12.0 * np.sin(2.0 * np.pi * seconds / 480.0)
    random = np.random.default_rng(2)
    gains = [
        _forecasts(random.poisson(level * WINDOW_SECONDS) / WINDOW_SECONDS)[-1].trend_damping
        for level in (ramp, swing)
    ]
    assert gains[0] > 0.8
    assert gains[1] < 0.2


def test_what_a_slope_carries_near_is_not_taken_back():
    """At half a minute and at a minute and a half the forecast is the same without evidence."""
    seconds = np.arange(160) * WINDOW_SECONDS
    swing = 60.0 + 12.0 * np.sin(2.0 * np.pi * seconds / 480.0)
    found = _forecasts(swing)[-1]
    plain = replace(found, trend_damping=1.0)
    for lead in (0.0, 30.0, 90.0):
        assert found.mean_per_second(lead) == plain.mean_per_second(lead)
    assert found.mean_per_second(240.0) != plain.mean_per_second(240.0)


def test_what_an_older_release_learned_is_still_read() -> None:
    """A status of before holds what rises turned out to be, and surges."""
    state = ForecastState()
    for tick in range(8):
        state = observe(state, RateWindow(rate_per_second=9.0, seconds=15.0), 15.0 * tick)
    stored = learned(EstimatorState(forecast=state))
    before = {
        **stored,
        "forecast": {**stored["forecast"], "rises": [3, 1], "bursts": [[20, 50, 40.0, 9.0, 1]]},
    }
    assert restore(before) == restore(stored)
