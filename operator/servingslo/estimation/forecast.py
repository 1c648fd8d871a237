"""Demand at the lead time: a predictive distribution from a bank of damped-trend filters.

Five linear Gaussian models of the arrival rate (steady, drift, ramp, jump, surge) run side by side
and exchange their states by an interacting multiple model filter; each explains the last window or
does not, and its probability follows within one or two scrapes. Observation noise is known: a
window of T seconds counts a dispersed Poisson number of requests. Demand that keeps returning to
its mean is predicted by that mean and its spread instead, as far as this has predicted better at
the lead in question.
Source: H. A. P. Blom and Y. Bar-Shalom, "The interacting multiple model algorithm", IEEE TAC 1988;
E. S. Gardner, "Exponential smoothing: the state of the art", 1985 (damped trend).
"""

import math
from dataclasses import dataclass, replace

from servingslo.errors import MetricsUnavailableError

SECONDS_PER_MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateModel:
    """How one kind of demand moves, relative to its level.

    level_ratio: standard deviation of the level after a minute. trend_ratio: of the slope (per
    minute) after a minute. damping_seconds: time in which a slope dies out.
    """

    level_ratio: float
    trend_ratio: float
    damping_seconds: float


# Chosen by pinball loss over the Azure trace and generated ramps, steps and crowds; the figures
# are in docs/designs/0003-estimation.md.
MODELS = (
    RateModel(level_ratio=0.01, trend_ratio=0.0, damping_seconds=60.0),
    RateModel(level_ratio=0.05, trend_ratio=0.01, damping_seconds=600.0),
    RateModel(level_ratio=0.03, trend_ratio=0.05, damping_seconds=400.0),
    RateModel(level_ratio=0.30, trend_ratio=0.0, damping_seconds=60.0),
    RateModel(level_ratio=0.10, trend_ratio=0.70, damping_seconds=90.0),
)
SURGE = len(MODELS) - 1
# How often demand is of each kind when nothing is known, and how long one kind lasts.
PRIOR = (0.5, 0.3, 0.1, 0.08, 0.02)
MODE_SECONDS = 300.0
# Uncertainty of the first level and slope, relative to the first rate.
FIRST_LEVEL_RATIO = 0.3
FIRST_TREND_RATIO_PER_MINUTE = 0.05
# Counting is never better than this share of the rate: scrapes of several pods are not in step.
COUNTING_ERROR_RATIO = 0.02
# Spread is corrected by realized errors at these leads, slowly and within bounds.
SCORED_LEADS_SECONDS = (30.0, 90.0, 240.0)
SCORE_MEMORY = 40.0
SPREAD_BOUNDS = (0.5, 2.5)
LARGEST_SQUARED_ERROR = 9.0
LONGEST_GAP_SECONDS = 600.0
# Mean and spread that demand may return to, and how evidence for returning is weighed: log odds
# before any, their memory in windows, their bounds and the most that one window may add.
RETURN_MEMORY_SECONDS = 900.0
RETURN_PRIOR_LOG_ODDS = -2.0
RETURN_EVIDENCE_MEMORY = 40.0
RETURN_LOG_ODDS_BOUND = 6.0
RETURN_EVIDENCE_BOUND = 2.0
# Evidence that a window must bring to count for returning: steady demand fits both alike.
RETURN_LEAST_EVIDENCE = 0.1
PENDING_PER_LEAD = 32
BISECTIONS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterState:
    """One model: its probability, level and slope (per second), and their covariance."""

    probability: float
    level: float
    trend: float
    level_variance: float
    covariance: float
    trend_variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingScore:
    """A prediction made earlier that waits for its outcome."""

    due_seconds: float
    mean_per_second: float
    variance: float
    usual_mean_per_second: float
    usual_variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastState:
    """The filters, when they were last updated, and the errors realized at the scored leads.

    squared_errors: moving average of squared error over predicted variance, by lead.
    usual_mean_per_second, usual_variance: of the rate over the last quarter of an hour.
    return_log_odds: evidence, by lead, that demand returns to them.
    """

    time_seconds: float | None = None
    filters: tuple[FilterState, ...] = ()
    usual_mean_per_second: float = 0.0
    usual_variance: float = 0.0
    observed_seconds: float = 0.0
    return_log_odds: tuple[float, ...] = (RETURN_PRIOR_LOG_ODDS,) * len(SCORED_LEADS_SECONDS)
    pending: tuple[tuple[PendingScore, ...], ...] = ((), (), ())
    squared_errors: tuple[float, ...] = (1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Arrival rate to come, as a mixture of normal laws cut at zero.

    age_seconds: time since the last window that entered. Nothing is known before the first window,
    and there is no arrival rate then either.
    """

    filters: tuple[FilterState, ...] = ()
    spread_ratios: tuple[float, ...] = (1.0, 1.0, 1.0)
    usual_mean_per_second: float = 0.0
    usual_variance: float = 0.0
    return_probabilities: tuple[float, ...] = (0.0, 0.0, 0.0)
    age_seconds: float = 0.0

    @property
    def known(self) -> bool:
        """Whether any window has entered."""
        return bool(self.filters)

    @property
    def surge_probability(self) -> float:
        """Probability that demand moves as in a crowd, up or down."""
        return self.filters[SURGE].probability if self.filters else 0.0

    @property
    def trend_per_second(self) -> float:
        """Slope of the arrival rate now, requests per second per second."""
        return sum(f.probability * f.trend for f in self.filters)

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
        components = self._components(lead_seconds)
        spread = 8.0
        low = min(mean - spread * deviation for _, mean, deviation in components)
        high = max(mean + spread * deviation for _, mean, deviation in components)
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            if _mixture_cdf(components, middle) < probability:
                low = middle
            else:
                high = middle
        return max(0.5 * (low + high), 0.0)

    def _components(self, lead_seconds: float) -> list[tuple[float, float, float]]:
        """(weight, mean, standard deviation) of each model at the lead."""
        if not self.filters:
            raise MetricsUnavailableError("forecast: no window of arrivals was measured yet")
        lead = max(lead_seconds, 0.0) + self.age_seconds
        ratio = _interpolated(lead, self.spread_ratios)
        scale = _scale(self.filters)
        # What is usual says nothing about a crowd.
        usual = _interpolated(lead, self.return_probabilities) * (1.0 - self.surge_probability)
        found = [(usual, self.usual_mean_per_second, math.sqrt(max(self.usual_variance, 1e-12)))]
        for state, model in zip(self.filters, MODELS, strict=True):
            mean, variance = _ahead(state, model, lead, scale)
            found.append((state.probability * (1.0 - usual), mean, ratio * math.sqrt(variance)))
        return found


def forecast(state: ForecastState, now_seconds: float) -> Forecast:
    """What is known now of the demand to come."""
    if state.time_seconds is None:
        return Forecast()
    return Forecast(
        filters=state.filters,
        spread_ratios=tuple(_spread_ratio(e) for e in state.squared_errors),
        usual_mean_per_second=state.usual_mean_per_second,
        usual_variance=state.usual_variance,
        return_probabilities=tuple(
            1.0 / (1.0 + math.exp(-odds))
            if state.observed_seconds >= RETURN_MEMORY_SECONDS / 3.0
            else 0.0
            for odds in state.return_log_odds
        ),
        age_seconds=max(now_seconds - state.time_seconds, 0.0),
    )


def observe(
    state: ForecastState,
    rate_per_second: float,
    window_seconds: float,
    now_seconds: float,
    dispersion: float,
) -> ForecastState:
    """The state after a window of this mean rate that ended now.

    dispersion: index of dispersion of counts, which sets how much of a change is noise.
    """
    gap = None if state.time_seconds is None else now_seconds - state.time_seconds
    if gap is None or gap > LONGEST_GAP_SECONDS:
        return replace(
            state,
            time_seconds=now_seconds,
            filters=_first(rate_per_second, window_seconds, dispersion),
            pending=((),) * len(SCORED_LEADS_SECONDS),
            usual_mean_per_second=rate_per_second,
            usual_variance=0.0,
            observed_seconds=0.0,
        )
    if gap <= 0:
        return state
    scale = _scale(state.filters)
    predicted = [
        _predicted(mixed, model, gap, scale)
        for mixed, model in zip(_mixed(state.filters, gap), MODELS, strict=True)
    ]
    filters = _corrected(predicted, rate_per_second, window_seconds, dispersion)
    noise = _observation_variance(
        sum(f.probability * f.level for f in filters), window_seconds, dispersion
    )
    state = replace(state, time_seconds=now_seconds, filters=filters)
    state = _with_usual(state, rate_per_second, noise, gap)
    return _scored(state, rate_per_second, noise, now_seconds)


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


def _first(rate: float, window: float, dispersion: float) -> tuple[FilterState, ...]:
    noise = _observation_variance(rate, window, dispersion)
    level = noise + (FIRST_LEVEL_RATIO * rate) ** 2
    trend = (FIRST_TREND_RATIO_PER_MINUTE * rate / SECONDS_PER_MINUTE) ** 2
    return tuple(
        FilterState(
            probability=probability,
            level=rate,
            trend=0.0,
            level_variance=level,
            covariance=0.0,
            trend_variance=trend,
        )
        for probability in PRIOR
    )


def _observation_variance(rate: float, window: float, dispersion: float) -> float:
    """Variance of a window's mean rate around the true one, at least that of one request."""
    counted = max(rate, 1.0 / window)
    return dispersion * counted / window + (COUNTING_ERROR_RATIO * rate) ** 2


def _mixed(filters: tuple[FilterState, ...], gap: float) -> list[FilterState]:
    """States after modes may have changed: each starts from all that could have led to it."""
    leave = 1.0 - math.exp(-gap / MODE_SECONDS)
    mixed = []
    for index in range(len(filters)):
        weights = [
            f.probability * (leave * PRIOR[index] + (1.0 - leave if i == index else 0.0))
            for i, f in enumerate(filters)
        ]
        total = max(sum(weights), 1e-300)
        shares = [w / total for w in weights]
        level = sum(s * f.level for s, f in zip(shares, filters, strict=True))
        trend = sum(s * f.trend for s, f in zip(shares, filters, strict=True))
        spread = [(f.level - level, f.trend - trend) for f in filters]
        terms = list(zip(shares, filters, spread, strict=True))
        mixed.append(
            FilterState(
                probability=total,
                level=level,
                trend=trend,
                level_variance=sum(s * (f.level_variance + d * d) for s, f, (d, _) in terms),
                covariance=sum(s * (f.covariance + d * e) for s, f, (d, e) in terms),
                trend_variance=sum(s * (f.trend_variance + e * e) for s, f, (_, e) in terms),
            )
        )
    return mixed


def _scale(filters: tuple[FilterState, ...]) -> float:
    """The rate that relative noise refers to: the level now, at least one request a minute."""
    level = sum(f.probability * f.level for f in filters)
    return max(level, 1.0 / SECONDS_PER_MINUTE)


def _predicted(state: FilterState, model: RateModel, gap: float, scale: float) -> FilterState:
    """One model's state after `gap` seconds without a measurement."""
    reach, keep, level_noise, trend_noise = _dynamics(model, gap, scale)
    return FilterState(
        probability=state.probability,
        level=state.level + reach * state.trend,
        trend=keep * state.trend,
        level_variance=state.level_variance
        + 2.0 * reach * state.covariance
        + reach * reach * state.trend_variance
        + level_noise
        + trend_noise * reach * reach / 3.0,
        covariance=keep * (state.covariance + reach * state.trend_variance)
        + trend_noise * reach / 2.0,
        trend_variance=keep * keep * state.trend_variance + trend_noise,
    )


def _ahead(state: FilterState, model: RateModel, lead: float, scale: float) -> tuple[float, float]:
    """Mean and variance of the rate `lead` seconds ahead."""
    ahead = _predicted(state, model, lead, scale)
    return ahead.level, max(ahead.level_variance, 1e-12)


def _dynamics(model: RateModel, seconds: float, scale: float) -> tuple[float, float, float, float]:
    """(seconds of slope collected, share of slope kept, level noise, slope noise) over a time."""
    keep = math.exp(-seconds / model.damping_seconds)
    reach = model.damping_seconds * (1.0 - keep)
    minutes = seconds / SECONDS_PER_MINUTE
    level_noise = (model.level_ratio * scale) ** 2 * minutes
    # Slopes die out, so their noise saturates with the damping time.
    lasting = reach / SECONDS_PER_MINUTE
    trend_noise = (model.trend_ratio * scale / SECONDS_PER_MINUTE) ** 2 * lasting
    return reach, keep, level_noise, trend_noise


def _corrected(
    predicted: list[FilterState], rate: float, window: float, dispersion: float
) -> tuple[FilterState, ...]:
    """States and probabilities after the measurement, the mean over a window that ended now."""
    lag = 0.5 * window
    updated: list[tuple[float, FilterState]] = []
    for state in predicted:
        # A window's mean is the level half a window ago.
        expected = state.level - lag * state.trend
        p_level = state.level_variance - lag * state.covariance
        p_trend = state.covariance - lag * state.trend_variance
        noise = _observation_variance(max(expected, 0.0), window, dispersion)
        variance = p_level - lag * p_trend + noise
        error = rate - expected
        gain_level, gain_trend = p_level / variance, p_trend / variance
        log_likelihood = -0.5 * (error * error / variance + math.log(variance))
        updated.append(
            (
                math.log(max(state.probability, 1e-300)) + log_likelihood,
                FilterState(
                    probability=0.0,
                    level=max(state.level + gain_level * error, 0.0),
                    trend=state.trend + gain_trend * error,
                    level_variance=max(state.level_variance - gain_level * p_level, 1e-12),
                    covariance=state.covariance - gain_level * p_trend,
                    trend_variance=max(state.trend_variance - gain_trend * p_trend, 0.0),
                ),
            )
        )
    largest = max(log for log, _ in updated)
    weights = [math.exp(log - largest) for log, _ in updated]
    total = sum(weights)
    return tuple(
        replace(state, probability=weight / total)
        for weight, (_, state) in zip(weights, updated, strict=True)
    )


def _scored(state: ForecastState, rate: float, noise: float, now_seconds: float) -> ForecastState:
    """The state with due predictions scored and new ones noted."""
    scale = _scale(state.filters)
    pending, errors, odds = [], [], []
    for index, lead in enumerate(SCORED_LEADS_SECONDS):
        queue = state.pending[index]
        due = [p for p in queue if p.due_seconds <= now_seconds]
        error, log_odds = state.squared_errors[index], state.return_log_odds[index]
        if due:
            error, log_odds = _judged(due[-1], rate, noise, error, log_odds)
        parts = [
            (f.probability, *_ahead(f, m, lead, scale))
            for f, m in zip(state.filters, MODELS, strict=True)
        ]
        mean = sum(w * m for w, m, _ in parts)
        note = PendingScore(
            due_seconds=now_seconds + lead,
            mean_per_second=max(mean, 0.0),
            variance=sum(w * (v + (m - mean) ** 2) for w, m, v in parts),
            usual_mean_per_second=state.usual_mean_per_second,
            usual_variance=state.usual_variance,
        )
        pending.append((*queue[len(due) :], note)[-PENDING_PER_LEAD:])
        errors.append(error)
        odds.append(log_odds)
    return replace(
        state,
        pending=tuple(pending),
        squared_errors=tuple(errors),
        return_log_odds=tuple(odds),
    )


def _judged(
    note: PendingScore, rate: float, noise: float, squared_error: float, log_odds: float
) -> tuple[float, float]:
    """Squared error and log odds of returning, after a prediction's outcome."""
    variance = note.variance * _spread_ratio(squared_error) ** 2 + noise
    error = (rate - note.mean_per_second) ** 2
    squared = min(error / (note.variance + noise), LARGEST_SQUARED_ERROR)
    usual_variance = note.usual_variance + noise
    usual_error = (rate - note.usual_mean_per_second) ** 2
    evidence = 0.5 * (
        error / variance
        + math.log(variance)
        - usual_error / usual_variance
        - math.log(usual_variance)
    )
    evidence = min(max(evidence, -RETURN_EVIDENCE_BOUND), RETURN_EVIDENCE_BOUND)
    kept = RETURN_PRIOR_LOG_ODDS + (log_odds - RETURN_PRIOR_LOG_ODDS) * (
        1.0 - 1.0 / RETURN_EVIDENCE_MEMORY
    )
    bound = RETURN_LOG_ODDS_BOUND
    return (
        squared_error + (squared - squared_error) / SCORE_MEMORY,
        min(max(kept + evidence - RETURN_LEAST_EVIDENCE, -bound), bound),
    )


def _spread_ratio(squared_error: float) -> float:
    low, high = SPREAD_BOUNDS
    return min(max(math.sqrt(squared_error), low), high)


def _interpolated(lead: float, values: tuple[float, ...]) -> float:
    """Value at a lead, linear between the scored leads and constant outside."""
    leads = SCORED_LEADS_SECONDS
    if lead <= leads[0]:
        return values[0]
    for i in range(1, len(leads)):
        if lead <= leads[i]:
            share = (lead - leads[i - 1]) / (leads[i] - leads[i - 1])
            return values[i - 1] + share * (values[i] - values[i - 1])
    return values[-1]


def _mixture_cdf(components: list[tuple[float, float, float]], value: float) -> float:
    root = math.sqrt(2.0)
    return sum(
        0.5 * weight * math.erfc((mean - value) / (deviation * root))
        for weight, mean, deviation in components
    )
