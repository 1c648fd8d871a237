"""Forecast demand at the lead time: a predictive distribution, corrected by its realized errors.

The bank of `rate_filters` gives level, slope and their uncertainty. Demand may also return to its
mean: then that mean and its spread predict it, weighted by how much better this has predicted at
the same lead. If history has a season, the season is a third opinion (`season_offset`).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from servingslo.copying import replace
from servingslo.errors import MetricsUnavailableError
from servingslo.estimation.forecast import realized_errors, season_offset
from servingslo.estimation.forecast.mixtures import mixture_quantile
from servingslo.estimation.forecast.rate_filters import (
    JUMP,
    LEAST_LEVEL_VARIANCE,
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
    DueForecast,
    ErrorLog,
    at_horizon,
    damping_at,
)
from servingslo.estimation.forecast.season_offset import NO_SEASON, SeasonForecast, SeasonState
from servingslo.estimation.forecast.season_profile import RateHistory, find_season
from servingslo.estimation.windows.freshness import DEFAULT_SCRAPE_SECONDS
from servingslo.records import record

# After a longer pause demand is treated as new: two to three times the longest scored lead.
# Judgement; measured by `python -m tests.benchmarks.forecast` with pauses of 5 to 30 minutes.
LONGEST_SILENCE_SECONDS = 600.0
# Memory of the mean and spread to which demand may return.
# Judgement; measured by the pinball loss of `python -m tests.benchmarks.forecast`.
RETURN_MEMORY_SECONDS = 900.0
# Demand observed before a usual mean is used.
LEAST_USUAL_SECONDS = RETURN_MEMORY_SECONDS / 3.0
# Deviations by which the usual mean must exceed zero. Below, the mean mixes two levels, such as
# rest and a surge, or a ramp, and demand does not vary around it; no normal law fits.
# Judgement; measured by the pinball loss on the two-level rows of that benchmark.
USUAL_LEAST_DEVIATIONS = 3.0
# A rise is one while so many windows in a row each exceed the one before by a standard error, and
# by so many in all. A jump is over after two: the window that it begins in, and one.
RISING_STEPS, SURE_DEVIATIONS = 3, 3.0
# The usual mean itself is known no better than to this share of it.
USUAL_ERROR_RATIO = 0.02


@record(frozen=True, slots=True, kw_only=True)
class ForecastState:
    """The filters, when they were last updated, and the log of realized errors.

    usual_mean_per_second, usual_variance: of the rate over the last quarter of an hour.
    begun_seconds: when demand became new, so that earlier forecasts do not apply to it. latest:
    times, rates and their variances of the last windows.
    """

    time_seconds: float | None = None
    filters: tuple[FilterState, ...] = ()
    usual_mean_per_second: float = 0.0
    usual_variance: float = 0.0
    observed_seconds: float = 0.0
    errors: ErrorLog = EMPTY_LOG
    season: SeasonState = NO_SEASON
    begun_seconds: float | None = None
    latest: tuple[tuple[float, float, float], ...] = ()


@record(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Future arrival rate, as a mixture of normal laws cut at zero.

    age_seconds: time since the last window used. furthest_lead_seconds: beyond it demand is assumed
    constant. trend_damping: share of predicted
    trend rises that came true far ahead. share_ratio: part of the demand that this forecast is of.
    rise_per_second2: of a rise that is surely one, else 0.
    Before the first window nothing is known, not even an arrival rate.
    """

    filters: tuple[FilterState, ...] = ()
    spread_ratios: tuple[float, ...] = (1.0, 1.0, 1.0)
    usual_mean_per_second: float = 0.0
    usual_variance: float = 0.0
    return_probabilities: tuple[float, ...] = (0.0, 0.0, 0.0)
    age_seconds: float = 0.0
    season: SeasonForecast | None = None
    furthest_lead_seconds: float = math.inf
    trend_damping: float = 1.0
    share_ratio: float = 1.0
    rise_per_second2: float = 0.0

    def share(self, ratio: float) -> "Forecast":
        """Return the forecast of this share of the demand, above 1 if it comes several times."""
        return replace(self, share_ratio=ratio * self.share_ratio)

    @property
    def known(self) -> bool:
        """Whether any window was used."""
        return bool(self.filters)

    @property
    def surge_probability(self) -> float:
        """Probability that demand moves as in a surge, up or down."""
        return self.filters[SURGE].probability if self.filters else 0.0

    @property
    def unsettled_probability(self) -> float:
        """Probability that demand moves as in a surge or has just jumped, up or down.

        The first window of a surge looks like a jump.
        """
        if not self.filters:
            return 0.0
        return min(self.filters[JUMP].probability + self.filters[SURGE].probability, 1.0)

    def season_weight(self, lead_seconds: float) -> float:
        """Return the season's share in the forecast this far ahead, 0 without a season."""
        if self.season is None:
            return 0.0
        return at_horizon(self._lead(lead_seconds), self.season.weights)

    def _lead(self, lead_seconds: float) -> float:
        return min(max(lead_seconds, 0.0), self.furthest_lead_seconds) + self.age_seconds

    def mean_per_second(self, lead_seconds: float) -> float:
        """Return the expected arrival rate this far ahead, 0 or more.

        Raises: MetricsUnavailableError before the first window.
        """
        components = self._components(lead_seconds)
        mean = sum(weight * mean for weight, mean, _ in components)
        return self.share_ratio * max(mean, 0.0)

    def quantile_per_second(self, lead_seconds: float, probability: float) -> float:
        """Quantile of the arrival rate this far ahead, 0 or more; probability within (0, 1).

        Raises: MetricsUnavailableError before the first window.
        """
        found = mixture_quantile(self._components(lead_seconds), probability)
        return self.share_ratio * max(found, 0.0)

    def risen_per_second(self, lead_seconds: float) -> float:
        """Return the rate this far ahead if a sure rise goes on; 0 without one.

        Raises: MetricsUnavailableError before the first window.
        """
        if self.rise_per_second2 <= 0.0:
            return 0.0
        lead = self._lead(lead_seconds) - self.age_seconds  # the mean of now has the age in it
        return self.mean_per_second(0.0) + self.share_ratio * self.rise_per_second2 * lead

    def _components(self, lead_seconds: float) -> list[tuple[float, float, float]]:
        """Return (weight, mean, standard deviation) of each model at the lead."""
        if not self.filters:
            raise MetricsUnavailableError("forecast: no window of arrivals was measured yet")
        lead = self._lead(lead_seconds)
        ratio = at_horizon(lead, self.spread_ratios)
        mean, deviation, explained = self._usual()
        usual = at_horizon(lead, self.return_probabilities) * explained
        # Beyond the scored leads there is no evidence for returning to the mean.
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
        """Return the usual mean, its deviation, and how usual the present rate is, 0 to 1."""
        mean = self.usual_mean_per_second
        deviation = math.sqrt(
            self.usual_variance + (USUAL_ERROR_RATIO * mean) ** 2 + LEAST_LEVEL_VARIANCE
        )
        return mean, deviation, self._usual_share(mean, deviation)

    def _usual_share(self, usual_mean: float, usual_deviation: float) -> float:
        """How usual the present rate is, 0 to 1; during a surge the usual mean says nothing."""
        if usual_mean < USUAL_LEAST_DEVIATIONS * usual_deviation:
            return 0.0
        now = [
            (f.probability, max(f.level, 0.0), max(f.level_variance, LEAST_LEVEL_VARIANCE))
            for f in self.filters
        ]
        level = sum(weight * mean for weight, mean, _ in now)
        variance = sum(weight * (v + (mean - level) ** 2) for weight, mean, v in now)
        distance = (level - usual_mean) ** 2 / (usual_deviation**2 + variance)
        within = math.exp(-0.5 * max(distance - season_offset.USUAL_DISTANCE, 0.0))
        return within * (1.0 - self.surge_probability)


def forecast(state: ForecastState, now_seconds: float) -> Forecast:
    """Return the forecast of demand, as known now: not at all after a long pause."""
    if state.time_seconds is None:
        return Forecast()
    age = max(now_seconds - state.time_seconds, 0.0)
    if age > LONGEST_SILENCE_SECONDS:
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
        age_seconds=age,
        season=season_offset.season_forecast(state.season, state.time_seconds),
        trend_damping=state.errors.trend.damping,
        rise_per_second2=_rise_per_second2(state.latest),
    )


def _rise_per_second2(latest: Sequence[tuple[float, float, float]]) -> float:
    """Return how fast the rate rises, if it surely does and has not ended; else 0."""
    rising = all(
        after[1] - before[1] > math.sqrt(after[2] + before[2]) for before, after in pairwise(latest)
    )
    if len(latest) <= RISING_STEPS or not rising:
        return 0.0
    (begin, first, first_variance), (end, last, last_variance) = latest[0], latest[-1]
    chance = SURE_DEVIATIONS * math.sqrt(first_variance + last_variance)
    return (last - first) / (end - begin) if last - first > chance else 0.0


def with_history(
    state: ForecastState, history: RateHistory, stated_days: int | None = None
) -> ForecastState:
    """Return the state with the season found in this history of the arrival rate, if any.

    Today's offset and the trust in the season are kept: they belong to the workload, and a new
    history a day later holds the same season. stated_days: 1 or 7 if a season is stated.
    """
    finding = find_season(history, stated_days)
    return replace(state, season=replace(state.season, finding=finding))


def observe(state: ForecastState, window: RateWindow, now_seconds: float) -> ForecastState:
    """Return the state after a window of arrivals that ended now."""
    gap = None if state.time_seconds is None else now_seconds - state.time_seconds
    if gap is None or gap > 0:
        waited = window.seconds if gap is None else gap
        season = season_offset.observe(state.season, window, now_seconds, waited)
        state = replace(state, season=season)
    if gap is None or abs(gap) > LONGEST_SILENCE_SECONDS:
        begun, usual = _begin_anew(state, window)
        return replace(
            state,
            time_seconds=now_seconds,
            filters=begun,
            errors=replace(state.errors, due=EMPTY_LOG.due, interval=None),
            usual_mean_per_second=usual,
            usual_variance=0.0,
            observed_seconds=0.0,
            latest=(),
        )
    if gap <= 0:
        return state
    filters = next_filters(state.filters, window, gap)
    if filters is None:
        filters = first_filters(window, PRIOR_OF_NEW)
        state = replace(state, begun_seconds=now_seconds)
    level = sum(f.probability * f.level for f in filters)
    interval, ended = realized_errors.with_window(state.errors.interval, window, gap)
    measured = window.variance(level)
    latest = (*state.latest, (now_seconds, window.rate_per_second, measured))[-RISING_STEPS - 1 :]
    state = replace(
        state,
        time_seconds=now_seconds,
        filters=filters,
        errors=replace(state.errors, interval=None if ended else interval),
        latest=latest,
    )
    state = _with_usual(state, window.rate_per_second, measured, gap)
    if not ended:
        return state
    return _score_due(state, interval.rate_per_second, level, interval.variance(level), now_seconds)


def _begin_anew(state: ForecastState, window: RateWindow) -> tuple[tuple[FilterState, ...], float]:
    """Return new filters after a long pause, and the usual rate: the rate of this window.

    A window that is too short to show a level (four requests in a second, where 1.5 came on
    average) is instead compared with the level before the pause, known as well as after a plain
    first window.
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
    """Return the state with the rate's mean and variance updated, without counting noise."""
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


def _score_due(
    state: ForecastState, rate: float, level: float, noise: float, now_seconds: float
) -> ForecastState:
    """Score due forecasts and add new ones; level: of the filters now."""
    log, season_odds = realized_errors.score_due(
        state.errors,
        state.season.log_odds,
        rate=rate,
        noise=noise,
        now_seconds=now_seconds,
        begun_seconds=state.begun_seconds,
    )
    season = season_offset.season_forecast(state.season, now_seconds)
    state = replace(state, errors=log, season=replace(state.season, log_odds=season_odds))
    made = (_forecast_at(state, level, season, now_seconds, lead) for lead in HORIZONS_SECONDS)
    return replace(state, errors=realized_errors.with_forecasts(log, tuple(made)))


def _forecast_at(
    state: ForecastState,
    level: float,
    season: SeasonForecast | None,
    now_seconds: float,
    lead: float,
) -> DueForecast:
    """Return each opinion's prediction for this lead."""
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
