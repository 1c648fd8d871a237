"""Score each forecast when its time comes, and learn from its errors.

The outcome of a forecast shows four things: how wrong predicted spreads are, how far trends carry,
how likely demand returns to its usual mean, and whether a season holds. Trends are damped by the
regression of realized on predicted rises, with a prior at one. Workloads differ: a ramp continues,
but if demand swings around a level, a trend predicts its opposite.
Source: R. J. Hyndman and G. Athanasopoulos, "Forecasting: Principles and Practice", damped trend
methods, where the damping is estimated from the series.
"""

import math
from dataclasses import dataclass

from servingslo.copying import replace
from servingslo.estimation.forecast import season_offset
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.records import record

# Cold starts of the evaluation protocol, 30 and 240 s, and one in between.
HORIZONS_SECONDS = (30.0, 90.0, 240.0)
# The horizon at which trend damping is learnt; up to the previous one trends carry fully.
TREND_HORIZON = 2
# Forecasts that wait at once: 16 at the longest horizon and 15 s, and the same number in reserve.
DUE_PER_HORIZON = 32
# Outcomes that the realized error is averaged over, ten minutes of 15 s windows. Measured with
# `python -m tests.benchmarks.forecast`: 20 and 80 change the loss over all demands by 1 % at most.
SCORE_MEMORY = 40.0
# Bounds of the correction of the filters' predicted spread. Measured there: 0.7 to 1.5 loses 2 %
# more in surges of two minutes, no correction 6 to 10 %.
SPREAD_BOUNDS = (0.5, 2.5)
# Three deviations: a larger error counts no more than this. Measured there: two deviations lose 4 %
# more in surges of two minutes.
LARGEST_SQUARED_ERROR = 9.0
# Evidence for returning to the usual mean: its prior log odds, its memory in windows, its bounds
# and the most that one window may add.
RETURN_PRIOR_LOG_ODDS = -2.0
RETURN_EVIDENCE_MEMORY = 40.0
RETURN_LOG_ODDS_BOUND = 3.0
RETURN_EVIDENCE_BOUND = 2.0
# Evidence that a window must exceed to count for returning: steady demand fits both alike.
RETURN_LEAST_EVIDENCE = 0.1
# Windows (20 minutes of 15 s), and the squared rises, in predicted variances, of the trends' prior.
TREND_MEMORY_WINDOWS = 80.0
TREND_PRIOR_SQUARES = 4.0
# A surge has its own slope: if it is likelier than this, the other slopes show nothing.
SURGE_SLOPE_PROBABILITY = 0.3
# The most that one outcome counts: squared rises, and deviations between outcome and level.
LARGEST_SQUARE = 4.0
LARGEST_DEVIATIONS = 3.0
# Forecasts are scored by windows of at least this length. Windows between scrapes 15 s apart,
# Prometheus' default, are long enough, although they jitter. A window of 5 s swings by the root of
# three as much and comes three times as often. The filters use every window.
LEAST_INTERVAL_SECONDS = 12.0


@record(frozen=True, slots=True, kw_only=True)
class DueForecast:
    """What each opinion predicted earlier for the time when it is due.

    level_per_second, surge_probability: when it was made. carried_per_second: the rise that trends
    predicted, except a surge's.
    """

    due_seconds: float
    level_per_second: float
    mean_per_second: float
    variance: float
    usual_mean_per_second: float
    usual_variance: float
    season_mean_per_second: float | None = None
    season_variance: float = 0.0
    carried_per_second: float = 0.0
    surge_probability: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendEvidence:
    """Sums over past forecasts of carried x carried and carried x realized rise, over variance."""

    squares: float = 0.0
    products: float = 0.0

    @property
    def damping(self) -> float:
        """The factor for predicted rises, 0 to 1; 1 without evidence."""
        found = (TREND_PRIOR_SQUARES + self.products) / (TREND_PRIOR_SQUARES + self.squares)
        return min(max(found, 0.0), 1.0)


@record(frozen=True, slots=True, kw_only=True)
class ErrorLog:
    """What realized errors have taught, by horizon, and the forecasts that wait.

    squared_errors: moving average of squared error over predicted variance. return_log_odds:
    evidence that demand returns to its usual mean. interval: recent windows that are together still
    too short to score, None without any.
    """

    due: tuple[tuple[DueForecast, ...], ...] = ((),) * len(HORIZONS_SECONDS)
    squared_errors: tuple[float, ...] = (1.0,) * len(HORIZONS_SECONDS)
    return_log_odds: tuple[float, ...] = (RETURN_PRIOR_LOG_ODDS,) * len(HORIZONS_SECONDS)
    trend: TrendEvidence = TrendEvidence()
    interval: RateWindow | None = None

    @property
    def spread_ratios(self) -> tuple[float, ...]:
        """The factors for predicted deviations."""
        return tuple(map(_spread_ratio, self.squared_errors))


EMPTY_LOG = ErrorLog()


def at_horizon(lead_seconds: float, values: tuple[float, ...]) -> float:
    """Return the value at a lead, linear between the horizons and constant outside."""
    leads = HORIZONS_SECONDS
    if lead_seconds <= leads[0]:
        return values[0]
    for i in range(1, len(leads)):
        if lead_seconds <= leads[i]:
            share = (lead_seconds - leads[i - 1]) / (leads[i] - leads[i - 1])
            return values[i - 1] + share * (values[i] - values[i - 1])
    return values[-1]


def damping_at(lead_seconds: float, furthest: float) -> float:
    """Share that trends carry at this lead: all near, `furthest` at the longest horizon."""
    return at_horizon(lead_seconds, (1.0,) * TREND_HORIZON + (furthest,))


def with_window(
    begun: RateWindow | None, window: RateWindow, gap_seconds: float
) -> tuple[RateWindow, bool]:
    """Add a window to the interval begun, and return whether it is long enough.

    gap_seconds: since the previous window. Engines that are scraped at different moments give
    overlapping windows, so a window counts for at most the time that has passed. An interval begun
    before a gap in the windows is dropped.
    """
    seconds = min(window.seconds, gap_seconds)
    if begun is None or gap_seconds > LEAST_INTERVAL_SECONDS:
        long_enough = seconds >= LEAST_INTERVAL_SECONDS
        return (window if long_enough else replace(window, seconds=seconds)), long_enough
    together = begun.seconds + seconds
    share = seconds / together
    joined = replace(
        window,
        rate_per_second=begun.rate_per_second
        + share * (window.rate_per_second - begun.rate_per_second),
        error_ratio=begun.error_ratio + share * (window.error_ratio - begun.error_ratio),
        seconds=together,
    )
    return joined, together >= LEAST_INTERVAL_SECONDS


def score_due(
    log: ErrorLog,
    season_log_odds: tuple[float, ...],
    *,
    rate: float,
    noise: float,
    now_seconds: float,
    begun_seconds: float | None,
) -> tuple[ErrorLog, tuple[float, ...]]:
    """Return the log and the season's odds after the outcome of the forecasts that are due.

    noise: variance of the measured rate. begun_seconds: when demand became new. Earlier forecasts
    were of other demand: they show only the rise, not the quality of present forecasts.
    """
    waiting, errors, odds, seasons = [], [], [], []
    for index, horizon in enumerate(HORIZONS_SECONDS):
        queue = log.due[index]
        due = [one for one in queue if one.due_seconds <= now_seconds]
        waiting.append(queue[len(due) :])
        error, log_odds = log.squared_errors[index], log.return_log_odds[index]
        season_odds = season_log_odds[index]
        if due:
            newest, made_seconds = due[-1], due[-1].due_seconds - horizon
            if begun_seconds is None or made_seconds >= begun_seconds:
                season_odds = _season_judged(newest, rate, noise, season_odds)
                error, log_odds = _judge(newest, rate, noise, error, log_odds)
                if index == TREND_HORIZON and newest.surge_probability <= SURGE_SLOPE_PROBABILITY:
                    log = replace(log, trend=_trend_after(log.trend, newest, rate, noise))
        errors.append(error)
        odds.append(log_odds)
        seasons.append(season_odds)
    log = replace(
        log, due=tuple(waiting), squared_errors=tuple(errors), return_log_odds=tuple(odds)
    )
    return log, tuple(seasons)


def with_forecasts(log: ErrorLog, made: tuple[DueForecast, ...]) -> ErrorLog:
    """Return the log with one more forecast at each horizon."""
    due = zip(log.due, made, strict=True)
    return replace(log, due=tuple((*queue, one)[-DUE_PER_HORIZON:] for queue, one in due))


def _season_judged(one: DueForecast, rate: float, noise: float, log_odds: float) -> float:
    """Return the log odds of the season, after the outcome of a forecast."""
    if one.season_mean_per_second is None:
        return log_odds
    return season_offset.weigh_evidence(
        log_odds,
        season_error=(rate - one.season_mean_per_second) ** 2,
        plain_error=(rate - one.mean_per_second) ** 2,
        variance=one.variance + one.season_variance + noise,
    )


def _judge(
    one: DueForecast, rate: float, noise: float, squared_error: float, log_odds: float
) -> tuple[float, float]:
    """Return squared error and log odds of returning, after a forecast's outcome."""
    variance = one.variance * _spread_ratio(squared_error) ** 2 + noise
    error = (rate - one.mean_per_second) ** 2
    squared = min(error / (one.variance + noise), LARGEST_SQUARED_ERROR)
    usual_variance = one.usual_variance + noise
    usual_error = (rate - one.usual_mean_per_second) ** 2
    unlikely = error / variance + math.log(variance)
    evidence = 0.5 * (unlikely - usual_error / usual_variance - math.log(usual_variance))
    evidence = min(max(evidence, -RETURN_EVIDENCE_BOUND), RETURN_EVIDENCE_BOUND)
    kept = RETURN_PRIOR_LOG_ODDS + (log_odds - RETURN_PRIOR_LOG_ODDS) * (
        1.0 - 1.0 / RETURN_EVIDENCE_MEMORY
    )
    bound = RETURN_LOG_ODDS_BOUND
    return (
        squared_error + (squared - squared_error) / SCORE_MEMORY,
        min(max(kept + evidence - RETURN_LEAST_EVIDENCE, -bound), bound),
    )


def _trend_after(
    evidence: TrendEvidence, one: DueForecast, rate: float, noise: float
) -> TrendEvidence:
    """Return the evidence after the outcome of a forecast."""
    carried, variance = one.carried_per_second, one.variance + noise
    weight = 1.0 / variance
    square = carried * carried * weight
    if square > LARGEST_SQUARE:
        weight *= LARGEST_SQUARE / square
    furthest = LARGEST_DEVIATIONS * variance**0.5
    realized = min(max(rate - one.level_per_second, -furthest), furthest)
    kept = 1.0 - 1.0 / TREND_MEMORY_WINDOWS
    return TrendEvidence(
        squares=kept * evidence.squares + carried * carried * weight,
        products=kept * evidence.products + carried * realized * weight,
    )


def _spread_ratio(squared_error: float) -> float:
    """Return the factor for predicted deviations, from the mean squared error over variance."""
    low, high = SPREAD_BOUNDS
    return min(max(math.sqrt(squared_error), low), high)
