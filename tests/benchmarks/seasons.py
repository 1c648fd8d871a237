"""Pinball loss on a Monday after two weeks of history, with the season and without it.

From half past seven to noon at a lead of 120 s; today is as in history, another level of it, or
something that history does not know. Holt–Winters with a season (multiplicative, of a week, in bins
of 15 s as the last two Mondays had them, damped trend) is given the true rates of these Mondays,
which no operator has, and as the others the quantiles of its own last 60 errors.
"""

from collections.abc import Callable, Iterator

import numpy as np

from servingslo.estimation.forecast.demand import (
    Forecast,
    ForecastState,
    forecast,
    observe,
    with_history,
)
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.forecast.season_profile import RateHistory

WINDOW_SECONDS, BIN_SECONDS, DAY, HOUR = 15.0, 300.0, 86400.0, 3600.0
LEAD_SECONDS = 120.0
LEAD_WINDOWS = int(LEAD_SECONDS / WINDOW_SECONDS)
PROBABILITIES = (0.5, 0.75, 0.9, 0.95)
FIRST_WINDOW, ERROR_WINDOWS = 20, 60
# A Monday, 00:00 UTC, and what is forecast two weeks later.
MONDAY, DAYS = 19674 * DAY, 14
TODAY = MONDAY + DAYS * DAY
BEGIN, END = TODAY + 7.5 * HOUR, TODAY + 12.0 * HOUR
# Saturday and Sunday, days since a Thursday mod 7.
REST_DAYS = (2, 3)
HOURS = (0.0, 7.0, 8.95, 9.05, 12.0, 13.0, 17.0, 19.0, 24.0)
SHAPE = (0.0, 0.05, 0.2, 0.9, 1.0, 0.8, 1.0, 0.2, 0.0)
# Standard deviation of a day's log level.
DAY_DEVIATION = 0.1
Rates = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Course = Callable[[Rates], Rates]


def offices(seconds: Rates, low: float = 2.0, high: float = 20.0) -> Rates:
    """Office hours of working days; the rise takes six minutes around nine."""
    shape = np.interp(seconds % DAY / HOUR, HOURS, SHAPE)
    resting = np.isin(np.floor(seconds / DAY) % 7, REST_DAYS)
    rates: Rates = low + (high - low) * np.where(resting, 0.1 * shape, shape)
    return rates


def asleep(seconds: Rates) -> Rates:
    """The same with nobody at night."""
    return offices(seconds, low=0.0, high=13.0)


def waves(seconds: Rates) -> Rates:
    """A sine by day, a third of it on rest days: no hour in which much changes."""
    resting = np.isin(np.floor(seconds / DAY) % 7, REST_DAYS)
    wave = 1.0 - 0.8 * np.cos(2.0 * np.pi * seconds / DAY)
    rates: Rates = 15.0 * wave * np.where(resting, 0.33, 1.0)
    return rates


def _moved(hours: float) -> Course:
    return lambda seconds: offices(seconds - hours * HOUR)


# Name: (course of the history, course of today).
CASES: dict[str, tuple[Course, Course]] = {
    "offices": (offices, offices),
    "half as much again": (offices, lambda t: 1.5 * offices(t)),
    "asleep at night": (asleep, asleep),
    "smooth waves": (waves, waves),
    "crowd at ten": (
        offices,
        lambda t: (
            offices(t) * np.interp(t - TODAY - 10 * HOUR, [0, 60, 1800, 1860], [1.0, 4.0, 4.0, 1.0])
        ),
    ),
    "wrong: six minutes late": (offices, _moved(0.1)),
    "wrong: an hour early": (offices, _moved(-1.0)),
    "wrong: holiday": (offices, lambda t: offices(t + 5 * DAY)),
    "wrong: flat": (offices, lambda t: np.full(len(t), 10.0)),
}


def season_rows(seeds: int) -> Iterator[tuple[str, list[str]]]:
    """The rows of the table, its head first."""
    yield "today", ["with season", "without", "last value", "H-W with season"]
    yield "---", ["---"] * 4
    for name, (past, present) in CASES.items():
        found = [_losses(past, present, seed) for seed in range(1, seeds + 1)]
        yield name, [f"{value:.3g}" for value in np.mean(found, axis=0)]


def _losses(past: Course, present: Course, seed: int) -> list[float]:
    random = np.random.default_rng(seed)
    times = np.arange(BEGIN, END, WINDOW_SECONDS) + WINDOW_SECONDS
    counted = random.poisson(present(times - 0.5 * WINDOW_SECONDS) * WINDOW_SECONDS)
    measured = counted / WINDOW_SECONDS
    truth = present(times + LEAD_SECONDS)
    season = [past(times - week * 7 * DAY) for week in (1, 2)]
    return [
        _ours(measured, times, truth, _history(past, random)),
        _ours(measured, times, truth, None),
        _by_errors(measured, measured, truth),
        _by_errors(measured, _holt_winters(measured, np.mean(season, axis=0)), truth),
    ]


def _history(past: Course, random: np.random.Generator) -> RateHistory:
    bins = round(DAY / BIN_SECONDS)
    middles = MONDAY + (np.arange(DAYS * bins) + 0.5) * BIN_SECONDS
    levels = np.repeat(np.exp(random.normal(0.0, DAY_DEVIATION, DAYS)), bins)
    counted = random.poisson(past(middles) * levels * BIN_SECONDS) / BIN_SECONDS
    return RateHistory(
        start_seconds=MONDAY, bin_seconds=BIN_SECONDS, rates_per_second=tuple(counted.tolist())
    )


def _ours(measured: Rates, times: Rates, truth: Rates, history: RateHistory | None) -> float:
    state = ForecastState() if history is None else with_history(ForecastState(), history)
    made: list[Forecast] = []
    for rate, now in zip(measured, times, strict=True):
        window = RateWindow(rate_per_second=float(rate), seconds=WINDOW_SECONDS)
        state = observe(state, window, float(now))
        made.append(forecast(state, float(now)))
    return float(np.mean([
        _pinball(p, float(truth[k]), made[k].quantile_per_second(LEAD_SECONDS, p))
        for k in range(FIRST_WINDOW, len(made))
        for p in PROBABILITIES
    ]))  # fmt: skip


def _by_errors(measured: Rates, points: Rates, truth: Rates) -> float:
    """The loss of point forecasts with the quantiles of their own errors."""
    total = []
    for now in range(FIRST_WINDOW, len(points)):
        first = max(0, now - ERROR_WINDOWS)
        errors = measured[first + LEAD_WINDOWS : now + 1] - points[first : now + 1 - LEAD_WINDOWS]
        for p in PROBABILITIES:
            shift = float(np.quantile(errors, p)) if len(errors) else 0.0
            total.append(_pinball(p, float(truth[now]), max(float(points[now]) + shift, 0.0)))
    return float(np.mean(total))


def _holt_winters(rates: Rates, season: Rates) -> Rates:
    """Damped trend and a given season, multiplicative; α 0.5, β 0.1, φ 0.95."""
    season = np.maximum(season, 0.01)
    level, trend, found = float(rates[0] / season[0]), 0.0, []
    steps = sum(0.95**k for k in range(1, LEAD_WINDOWS + 1))
    for place, rate in enumerate(rates):
        new = 0.5 * float(rate / season[place]) + 0.5 * (level + 0.95 * trend)
        trend = 0.1 * (new - level) + 0.9 * 0.95 * trend
        level = new
        then = season[min(place + LEAD_WINDOWS, len(season) - 1)]
        found.append(max((level + trend * steps) * float(then), 0.0))
    return np.array(found)


def _pinball(probability: float, outcome: float, predicted: float) -> float:
    error = outcome - predicted
    return max(probability * error, (probability - 1.0) * error)
