"""Track how the arrival rate moves with a bank of parallel damped-trend filters.

No single model fits all demand. Five linear Gaussian models (steady, drift, ramp, jump, surge)
exchange their states by an interacting multiple model filter. Each explains the last window or does
not, and its probability follows within one or two scrapes. Observation noise is known: a window of
T seconds counts a dispersed Poisson number of requests. Demand moves in proportion to its level, so
no model explains a fleet that wakes from almost nothing: then the bank restarts at the counted
rate.
Source: H. A. P. Blom and Y. Bar-Shalom, "The interacting multiple model algorithm", IEEE TAC 1988;
E. S. Gardner, "Exponential smoothing: the state of the art", 1985 (damped trend); R. P. Adams and
D. J. C. MacKay, "Bayesian online changepoint detection", 2007 (the restart).
"""

import math
from dataclasses import dataclass

from servingslo.copying import replace
from servingslo.models.numerics import TINY_PROBABILITY
from servingslo.units import SECONDS_PER_DAY, SECONDS_PER_MINUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class RateModel:
    """How one kind of demand moves, relative to its level.

    level_ratio: standard deviation of the level after a minute. trend_ratio: of the slope (per
    minute) after a minute. damping_seconds: time in which a slope dies out. lasting_seconds: how
    long demand stays of this kind. first_level_ratio, first_trend_ratio: standard deviation of
    level and slope (per minute) when demand becomes of this kind: a ramp, a jump or a surge begins
    with an unknown value and then continues with it.
    """

    level_ratio: float
    trend_ratio: float
    damping_seconds: float
    lasting_seconds: float
    first_level_ratio: float = 0.0
    first_trend_ratio: float = 0.0


# Chosen by pinball loss over the Azure trace and generated ramps, steps and surges, and by the
# forecast after a step (`python -m tests.benchmarks.forecast`); the figures are in
# docs/lab/findings.md.
MODELS = (
    RateModel(level_ratio=0.01, trend_ratio=0.0, damping_seconds=60.0, lasting_seconds=300.0),
    RateModel(level_ratio=0.05, trend_ratio=0.01, damping_seconds=600.0, lasting_seconds=300.0),
    RateModel(
        level_ratio=0.03,
        trend_ratio=0.05,
        damping_seconds=400.0,
        lasting_seconds=300.0,
        first_trend_ratio=0.3,
    ),
    RateModel(
        level_ratio=0.20,
        trend_ratio=0.0,
        damping_seconds=60.0,
        lasting_seconds=60.0,
        first_level_ratio=0.5,
    ),
    RateModel(
        level_ratio=0.10,
        trend_ratio=0.3,
        damping_seconds=45.0,
        lasting_seconds=60.0,
        first_trend_ratio=1.5,
    ),
)
JUMP, SURGE = len(MODELS) - 2, len(MODELS) - 1
# How often demand is of each kind when nothing is known.
PRIOR = (0.5, 0.3, 0.1, 0.08, 0.02)
# Uncertainty of the first level and slope, relative to the first rate.
FIRST_LEVEL_RATIO = 0.15
FIRST_TREND_RATIO_PER_MINUTE = 0.05
# How often demand becomes unrelated to its past, and its distribution then: any rate from one
# request in a quarter of an hour to ten thousand a second (a factor of e^16), every order of
# magnitude equally likely. Its kind is one of those that begin with an unknown value.
NEW_DEMAND_SECONDS = SECONDS_PER_DAY
LOG_RATE_RANGE = 16.0
# A smaller factor from one scrape to the next is left to jump and surge: twentyfold within a minute
# is 5.8 at the first scrape of 15 s, and its slope must not be lost.
NEW_DEMAND_RATIO = 6.0
PRIOR_OF_NEW = (0.0, 0.0, 0.0, 0.8, 0.2)
# Variance of a level, in (requests per second)²: no level is known without any error.
LEAST_LEVEL_VARIANCE = 1e-12
LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWindow:
    """Mean arrival rate over a window that ended now, and its accuracy.

    dispersion: index of dispersion of counts. error_ratio: standard error beyond counting noise.
    """

    rate_per_second: float
    seconds: float
    dispersion: float = 1.0
    error_ratio: float = 0.02

    def variance(self, rate_per_second: float) -> float:
        """Measured rate's variance around this true rate, at least that of one request."""
        counted = max(rate_per_second, 1.0 / self.seconds)
        error = self.error_ratio * rate_per_second
        return self.dispersion * counted / self.seconds + error * error


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterState:
    """One model: its probability, level and slope (per second), and their covariance."""

    probability: float
    level: float
    trend: float
    level_variance: float
    covariance: float
    trend_variance: float


def first_filters(window: RateWindow, prior: tuple[float, ...] = PRIOR) -> tuple[FilterState, ...]:
    """Return the bank after its first window: its rate, no slope, large uncertainty of both."""
    rate = window.rate_per_second
    level = window.variance(rate) + (FIRST_LEVEL_RATIO * rate) ** 2
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
        for probability in prior
    )


def next_filters(
    filters: tuple[FilterState, ...], window: RateWindow, gap: float
) -> tuple[FilterState, ...] | None:
    """Return the bank after a window that ended `gap` seconds after the previous one.

    None if it is likelier that demand has become new, so that the bank does not apply.
    """
    scale = _scale(filters)
    predicted = [
        _predict(mixed, model, gap, scale)
        for mixed, model in zip(_mix(filters, gap), MODELS, strict=True)
    ]
    corrected, log_likelihood = _correct(predicted, window)
    if log_likelihood < _log_likelihood_of_new(window.rate_per_second, gap, scale):
        return None
    return corrected


def _log_likelihood_of_new(rate: float, gap: float, scale: float) -> float:
    """Return the log density of this rate and of demand having become new since the last window.

    Zero probability for rises with which a jump or a surge may begin: those models continue.
    """
    if rate <= NEW_DEMAND_RATIO * scale:
        return -math.inf
    return math.log(gap / NEW_DEMAND_SECONDS) - math.log(rate * LOG_RATE_RANGE)


def ahead(
    filters: tuple[FilterState, ...], lead: float, trend_damping: float = 1.0
) -> list[tuple[float, float, float]]:
    """Return (probability, mean, variance) of the rate `lead` seconds from now, by model.

    trend_damping: share of the rise that slopes predict, except a surge's.
    """
    scale = _scale(filters)
    found = []
    for index, (state, model) in enumerate(zip(filters, MODELS, strict=True)):
        level, variance = _level(state, _dynamics(model, lead, scale))
        gain = 1.0 if index == SURGE else trend_damping
        mean = state.level + gain * (max(level, 0.0) - state.level)
        found.append((state.probability, mean, max(variance, LEAST_LEVEL_VARIANCE)))
    return found


def _mix(filters: tuple[FilterState, ...], gap: float) -> list[FilterState]:
    """Return states after modes may have changed: each mixes all states that may have led to it.

    The slope of a surge ends with the surge: the next mode starts from its level alone.
    """
    leaves = [1.0 - math.exp(-gap / model.lasting_seconds) for model in MODELS]
    scale = _scale(filters)
    settled = _settle(filters[SURGE], scale)
    mixed = []
    for index, model in enumerate(MODELS):
        others = filters if index == SURGE else (*filters[:SURGE], settled)
        begun = _begun(model, scale)
        weights = [
            f.probability * (leave * PRIOR[index] + (1.0 - leave if i == index else 0.0))
            for i, (f, leave) in enumerate(zip(filters, leaves, strict=True))
        ]
        total = max(sum(weights), TINY_PROBABILITY)
        shares = [w / total for w in weights]
        level = sum([s * f.level for s, f in zip(shares, others, strict=True)])
        trend = sum([s * f.trend for s, f in zip(shares, others, strict=True)])
        level_variance = covariance = trend_variance = 0.0
        for i, (share, f) in enumerate(zip(shares, others, strict=True)):
            d, e, (more, steeper) = f.level - level, f.trend - trend, begun
            if i == index:
                more = steeper = 0.0
            level_variance += share * (f.level_variance + more + d * d)
            covariance += share * (f.covariance + d * e)
            trend_variance += share * (f.trend_variance + steeper + e * e)
        mixed.append(
            FilterState(
                probability=total,
                level=level,
                trend=trend,
                level_variance=level_variance,
                covariance=covariance,
                trend_variance=trend_variance,
            )
        )
    return mixed


def _settle(surge: FilterState, scale: float) -> FilterState:
    """Return a surge that is over: its level, and only the slope uncertainty of a first window."""
    trend = FIRST_TREND_RATIO_PER_MINUTE * scale / SECONDS_PER_MINUTE
    return replace(surge, trend=0.0, covariance=0.0, trend_variance=trend * trend)


def _begun(model: RateModel, scale: float) -> tuple[float, float]:
    """Return the variances of level and slope that a change to this kind of demand adds."""
    level = model.first_level_ratio * scale
    trend = model.first_trend_ratio * scale / SECONDS_PER_MINUTE
    return level * level, trend * trend


def _scale(filters: tuple[FilterState, ...]) -> float:
    """Rate that relative noise refers to: the level now, at least one request a minute."""
    level = sum(f.probability * f.level for f in filters)
    return max(level, 1.0 / SECONDS_PER_MINUTE)


def _predict(state: FilterState, model: RateModel, gap: float, scale: float) -> FilterState:
    """Return one model's state after `gap` seconds without a measurement.

    A falling rate ends at zero, and so does its slope. Otherwise the next count, which is never
    below zero, would look like a rise.
    """
    dynamics = reach, keep, _, trend_noise = _dynamics(model, gap, scale)
    level, variance = _level(state, dynamics)
    return FilterState(
        probability=state.probability,
        level=max(level, 0.0),
        trend=keep * state.trend if level > 0.0 else 0.0,
        level_variance=variance,
        covariance=keep * (state.covariance + reach * state.trend_variance)
        + trend_noise * reach / 2.0,
        trend_variance=keep * keep * state.trend_variance + trend_noise,
    )


def _level(state: FilterState, dynamics: tuple[float, float, float, float]) -> tuple[float, float]:
    """Return mean (it may be below zero) and variance of a state's level after these dynamics."""
    reach, _, level_noise, trend_noise = dynamics
    variance = (
        state.level_variance
        + 2.0 * reach * state.covariance
        + reach * reach * state.trend_variance
        + level_noise
        + trend_noise * reach * reach / 3.0
    )
    return state.level + reach * state.trend, variance


def _dynamics(model: RateModel, seconds: float, scale: float) -> tuple[float, float, float, float]:
    """Slope seconds collected, share of slope kept, level noise and slope noise over a time."""
    keep = math.exp(-seconds / model.damping_seconds)
    reach = model.damping_seconds * (1.0 - keep)
    minutes = seconds / SECONDS_PER_MINUTE
    level_noise = (model.level_ratio * scale) ** 2 * minutes
    # Slopes die out, so their noise saturates with the damping time.
    lasting = reach / SECONDS_PER_MINUTE
    trend_noise = (model.trend_ratio * scale / SECONDS_PER_MINUTE) ** 2 * lasting
    return reach, keep, level_noise, trend_noise


def _correct(
    predicted: list[FilterState], window: RateWindow
) -> tuple[tuple[FilterState, ...], float]:
    """Return states and probabilities after a window that ended now, and its log density.

    The measurement is the mean over the window. The log density is that of the whole bank.
    """
    lag = 0.5 * window.seconds
    updated: list[tuple[float, FilterState, float, float, float, float]] = []
    for state in predicted:
        # A window's mean is the level half a window ago.
        expected = state.level - lag * state.trend
        p_level = state.level_variance - lag * state.covariance
        p_trend = state.covariance - lag * state.trend_variance
        variance = p_level - lag * p_trend + window.variance(max(expected, 0.0))
        error = window.rate_per_second - expected
        log_weight = math.log(max(state.probability, TINY_PROBABILITY)) - 0.5 * (
            error * error / variance + math.log(variance)
        )
        updated.append((log_weight, state, p_level, p_trend, error, variance))
    largest = max(u[0] for u in updated)
    total = sum(math.exp(u[0] - largest) for u in updated)
    corrected = tuple(
        FilterState(
            probability=math.exp(log_weight - largest) / total,
            level=max(state.level + p_level / variance * error, 0.0),
            trend=state.trend + p_trend / variance * error,
            level_variance=max(
                state.level_variance - p_level / variance * p_level, LEAST_LEVEL_VARIANCE
            ),
            covariance=state.covariance - p_level / variance * p_trend,
            trend_variance=max(state.trend_variance - p_trend / variance * p_trend, 0.0),
        )
        for log_weight, state, p_level, p_trend, error, variance in updated
    )
    return corrected, largest + math.log(total) - LOG_ROOT_TWO_PI
