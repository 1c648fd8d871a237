"""Demand at the lead time: a predictive distribution, corrected by its own realized errors.

The bank of `rate_filters` gives level, slope and their uncertainty. Demand that keeps returning to
its mean is predicted by that mean and its spread instead, as far as this has predicted better at
the lead in question. Where history has a season, it is a third opinion (`seasonal`).
"""

import math
from dataclasses import dataclass, replace

from servingslo.errors import MetricsUnavailableError
from servingslo.estimation.forecast import realized_errors as errors
from servingslo.estimation.forecast import season_offset as seasonal
from servingslo.estimation.forecast.mixtures import mixture_quantile
from servingslo.estimation.forecast.rate_filters import (
    JUMP,
    LEAST_VARIANCE,
    PRIOR_OF_NEW,
    SURGE,
    FilterState,
    RateWindow,
    ahead,
    first_filters,
    next_filters,
)
from servingslo.estimation.forecast.realized_errors import (
    EMPTY_LOG,
    HORIZONS_SECONDS,
    LEAST_INTERVAL_SECONDS,
    SURGE_HORIZON,
    DueForecast,
    ErrorLog,
    at_horizon,
    damping_at,
)
from servingslo.estimation.forecast.season_offset import NO_SEASON, SeasonForecast, SeasonState
from servingslo.estimation.forecast.season_profile import RateHistory, find_season
from servingslo.estimation.forecast.surges import Recurrence, recurrence
from servingslo.estimation.windows.freshness import DEFAULT_SCRAPE_SECONDS

# After a longer pause demand is taken as new: two to three times the longest scored lead.
LONGEST_GAP_SECONDS = 600.0
# Of the mean and spread that demand may return to.
RETURN_MEMORY_SECONDS = 900.0
# Of demand seen before it is said what is usual.
LEAST_USUAL_SECONDS = RETURN_MEMORY_SECONDS / 3.0
# A level this far from the usual one (squared, in variances) is not usual any more.
USUAL_DISTANCE = 4.0
# Deviations that the usual mean must lie above zero: below, two levels are in it and not one that
# demand varies around, such as rest and a surge, or a ramp, and no normal law is near.
USUAL_LEAST_DEVIATIONS = 3.0
# The usual mean is itself known to no better than this share of it.
USUAL_ERROR_RATIO = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastState:
    """The filters, when they were last updated, and the log of realized errors.

    usual_mean_per_second, usual_variance: of the rate over the last quarter of an hour.
    begun_seconds: when demand became something new, of which earlier forecasts know nothing.
    """

    time_seconds: float | None = None
    filters: tuple[FilterState, ...] = ()
    usual_mean_per_second: float = 0.0
    usual_variance: float = 0.0
    observed_seconds: float = 0.0
    errors: ErrorLog = EMPTY_LOG
    season: SeasonState = NO_SEASON
    begun_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Arrival rate to come, as a mixture of normal laws cut at zero.

    age_seconds: time since the last window that entered. furthest_lead_seconds: beyond it demand is
    taken to be as it is there. recurrence: rises that nothing foretells and that may come again.
    trend_damping: share of what slopes carry that has come true far ahead.
    Nothing is known before the first window, and there is no arrival rate then either.
    """

    filters: tuple[FilterState, ...] = ()
    spread_ratios: tuple[float, ...] = (1.0, 1.0, 1.0)
    usual_mean_per_second: float = 0.0
    usual_variance: float = 0.0
    return_probabilities: tuple[float, ...] = (0.0, 0.0, 0.0)
    age_seconds: float = 0.0
    season: SeasonForecast | None = None
    furthest_lead_seconds: float = math.inf
    recurrence: Recurrence | None = None
    trend_damping: float = 1.0

    @property
    def known(self) -> bool:
        """Whether any window has entered."""
        return bool(self.filters)

    @property
    def surge_probability(self) -> float:
        """Probability that demand moves as in a surge, up or down."""
        return self.filters[SURGE].probability if self.filters else 0.0

    @property
    def unsettled_probability(self) -> float:
        """Probability that demand moves as in a surge or has just jumped, up or down.

        The first window of a surge is a jump, as far as can be told.
        """
        if not self.filters:
            return 0.0
        return min(self.filters[JUMP].probability + self.filters[SURGE].probability, 1.0)

    def season_weight(self, lead_seconds: float) -> float:
        """Share that the season has in the forecast this far ahead, 0 without one."""
        if self.season is None:
            return 0.0
        return at_horizon(self._lead(lead_seconds), self.season.weights)

    def _lead(self, lead_seconds: float) -> float:
        return min(max(lead_seconds, 0.0), self.furthest_lead_seconds) + self.age_seconds

    def mean_per_second(self, lead_seconds: float) -> float:
        """Expected arrival rate this far ahead, 0 or more.

        Raises: MetricsUnavailableError before the first window.
        """
        components = self._components(lead_seconds)
        return max(sum(weight * mean for weight, mean, _ in components), 0.0)

    def quantile_per_second(self, lead_seconds: float, probability: float) -> float:
        """Quantile of the arrival rate this far ahead, 0 or more; probability within (0, 1).

        Raises: MetricsUnavailableError before the first window.
        """
        return max(mixture_quantile(self._components(lead_seconds), probability), 0.0)

    def _components(self, lead_seconds: float) -> list[tuple[float, float, float]]:
        """(weight, mean, standard deviation) of each model at the lead."""
        if not self.filters:
            raise MetricsUnavailableError("forecast: no window of arrivals was measured yet")
        lead = self._lead(lead_seconds)
        ratio = at_horizon(lead, self.spread_ratios)
        mean, deviation, explained = self._usual()
        usual = at_horizon(lead, self.return_probabilities) * explained
        # Beyond the leads that were scored there is no evidence for it.
        usual *= min(HORIZONS_SECONDS[-1] / max(lead, 1.0), 1.0)
        seasonal_weight, found = 0.0, []
        if self.season is not None:
            seasonal_weight = self.season_weight(lead_seconds)
            expected, variance = self.season.ahead(lead)
            found.append((seasonal_weight, expected, math.sqrt(variance) + 1e-6))
        found.append((usual * (1.0 - seasonal_weight), mean, deviation))
        rest = (1.0 - usual) * (1.0 - seasonal_weight)
        for probability, mean, variance in ahead(
            self.filters, lead, damping_at(lead, self.trend_damping)
        ):
            found.append((probability * rest, mean, ratio * math.sqrt(variance)))
        return found

    def _usual(self) -> tuple[float, float, float]:
        """Mean and deviation of what is usual, and whether the present is, 0 to 1."""
        mean = self.usual_mean_per_second
        deviation = math.sqrt(self.usual_variance + (USUAL_ERROR_RATIO * mean) ** 2 + 1e-12)
        return mean, deviation, self._explained(mean, deviation)

    def _explained(self, usual_mean: float, usual_deviation: float) -> float:
        """Whether the present is usual, 0 to 1: what is usual says nothing about a surge."""
        if usual_mean < USUAL_LEAST_DEVIATIONS * usual_deviation:
            return 0.0
        now = [
            (f.probability, max(f.level, 0.0), max(f.level_variance, LEAST_VARIANCE))
            for f in self.filters
        ]
        level = sum(weight * mean for weight, mean, _ in now)
        variance = sum(weight * (v + (mean - level) ** 2) for weight, mean, v in now)
        distance = (level - usual_mean) ** 2 / (usual_deviation**2 + variance)
        within = math.exp(-0.5 * max(distance - USUAL_DISTANCE, 0.0))
        return within * (1.0 - self.surge_probability)


def forecast(state: ForecastState, now_seconds: float) -> Forecast:
    """What is known now of the demand to come."""
    if state.time_seconds is None:
        return Forecast()
    return Forecast(
        filters=state.filters,
        spread_ratios=state.errors.spread_ratios,
        usual_mean_per_second=state.usual_mean_per_second,
        usual_variance=state.usual_variance,
        return_probabilities=tuple(
            1.0 / (1.0 + math.exp(-odds)) if state.observed_seconds >= LEAST_USUAL_SECONDS else 0.0
            for odds in state.errors.return_log_odds
        ),
        age_seconds=max(now_seconds - state.time_seconds, 0.0),
        season=seasonal.season_forecast(state.season, state.time_seconds),
        recurrence=recurrence(state.errors.surges, _level_before_surges(state), now_seconds),
        trend_damping=state.errors.trend.damping,
    )


def _level_before_surges(state: ForecastState) -> float:
    """The level now, or a lead ago where it was lower: what has risen since may be a surge."""
    level = sum(f.probability * f.level for f in state.filters)
    return min([level, *(p.level_per_second for p in state.errors.due[SURGE_HORIZON][:1])])


def with_history(
    state: ForecastState, history: RateHistory, stated_days: int | None = None
) -> ForecastState:
    """The state with the season that this history of the arrival rate holds, if any.

    Where today lies and how far the season is believed are kept: they are of the workload, and a
    new history a day later holds the same season. stated_days: 1 or 7 where it is said that there
    is one.
    """
    finding = find_season(history, stated_days)
    return replace(state, season=replace(state.season, finding=finding))


def observe(state: ForecastState, window: RateWindow, now_seconds: float) -> ForecastState:
    """The state after a window of arrivals that ended now."""
    gap = None if state.time_seconds is None else now_seconds - state.time_seconds
    if gap is None or gap > 0:
        waited = window.seconds if gap is None else gap
        season = seasonal.observe(state.season, window, now_seconds, waited)
        state = replace(state, season=season)
    if gap is None or abs(gap) > LONGEST_GAP_SECONDS:
        begun, usual = _begun(state, window)
        return replace(
            state,
            time_seconds=now_seconds,
            filters=begun,
            errors=replace(state.errors, due=EMPTY_LOG.due, interval=None),
            usual_mean_per_second=usual,
            usual_variance=0.0,
            observed_seconds=0.0,
        )
    if gap <= 0:
        return state
    filters = next_filters(state.filters, window, gap)
    if filters is None:
        filters = first_filters(window, PRIOR_OF_NEW)
        state = replace(state, begun_seconds=now_seconds)
    level = sum(f.probability * f.level for f in filters)
    interval, ended = errors.with_window(state.errors.interval, window, gap)
    measured = window.variance(level)
    state = replace(
        state,
        time_seconds=now_seconds,
        filters=filters,
        errors=replace(state.errors, interval=None if ended else interval),
    )
    state = _with_usual(state, window.rate_per_second, measured, gap)
    if not ended:
        return state
    return _scored(state, interval.rate_per_second, level, interval.variance(level), now_seconds)


def _begun(state: ForecastState, window: RateWindow) -> tuple[tuple[FilterState, ...], float]:
    """The filters after a long pause, and the rate that is usual: what this window counts.

    One that is too short to tell a level (four requests in a second, where 1.5 came on average) is
    set against the level before the pause instead, as known as after a plain first window.
    """
    level = sum(f.probability * f.level for f in state.filters)
    if level <= 0.0 or window.seconds >= LEAST_INTERVAL_SECONDS:
        return first_filters(window), window.rate_per_second
    before = replace(window, rate_per_second=level, seconds=DEFAULT_SCRAPE_SECONDS)
    filters = next_filters(first_filters(before), window, window.seconds)
    if filters is None:
        return first_filters(window, PRIOR_OF_NEW), window.rate_per_second
    return filters, level


def _with_usual(state: ForecastState, rate: float, noise: float, gap: float) -> ForecastState:
    """The state with mean and variance of the rate brought up to date, counting noise left out."""
    seen = state.observed_seconds + gap
    share = min(gap / min(seen, RETURN_MEMORY_SECONDS), 1.0)
    mean = state.usual_mean_per_second + share * (rate - state.usual_mean_per_second)
    square = max((rate - state.usual_mean_per_second) * (rate - mean) - noise, 0.0)
    return replace(
        state,
        usual_mean_per_second=mean,
        usual_variance=state.usual_variance + share * (square - state.usual_variance),
        observed_seconds=seen,
    )


def _scored(
    state: ForecastState, rate: float, level: float, noise: float, now_seconds: float
) -> ForecastState:
    """The state with due forecasts scored and new ones noted; level: of the filters now."""
    log, season_odds = errors.scored(
        state.errors,
        state.season.log_odds,
        rate=rate,
        noise=noise,
        now_seconds=now_seconds,
        begun_seconds=state.begun_seconds,
    )
    season = seasonal.season_forecast(state.season, now_seconds)
    state = replace(state, errors=log, season=replace(state.season, log_odds=season_odds))
    made = (_forecast_at(state, level, season, now_seconds, lead) for lead in HORIZONS_SECONDS)
    return replace(state, errors=errors.with_forecasts(log, tuple(made)))


def _forecast_at(
    state: ForecastState,
    level: float,
    season: SeasonForecast | None,
    now_seconds: float,
    lead: float,
) -> DueForecast:
    """What each opinion predicts now for this lead."""
    plain, gain = ahead(state.filters, lead), damping_at(lead, state.errors.trend.damping)
    parts = plain if gain == 1.0 else ahead(state.filters, lead, gain)
    mean = sum(w * m for w, m, _ in parts)
    carried = [w * (m - f.level) for f, (w, m, _) in zip(state.filters, plain, strict=True)]
    expected, spread = (None, 0.0) if season is None else season.ahead(lead)
    return DueForecast(
        due_seconds=now_seconds + lead,
        level_per_second=level,
        mean_per_second=max(mean, 0.0),
        variance=sum(w * (v + (m - mean) ** 2) for w, m, v in parts),
        usual_mean_per_second=state.usual_mean_per_second,
        usual_variance=state.usual_variance,
        season_mean_per_second=expected,
        season_variance=spread,
        carried_per_second=sum(carried) - carried[SURGE],
        surge_probability=state.filters[SURGE].probability,
    )
