"""Use the season as a second opinion on future demand, weighted by its evidence.

Dividing every rate by the season and forecasting the rest would need the level at night to predict
the morning, and a fleet that sleeps has none. So the season is multiplied by a slowly changing
offset of today's level: a filter in log rate whose noise is that of history at this time of day. In
log rate an empty window carries as much information as the requests that were expected in it. The
season's weight starts as the share of variance that it explained in history. It is lowered while
the present is unexpected, and moved by its own errors against those of the forecast without it.
Source: M. West and J. Harrison, "Bayesian Forecasting and Dynamic Models", 1997, ch. 14 (dynamic
generalised linear models, Poisson with log link); J. Hoeting et al., "Bayesian model averaging: a
tutorial", 1999.
"""

import math
from dataclasses import dataclass

from servingslo.copying import replace
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.forecast.season_profile import Season, SeasonFinding
from servingslo.units import SECONDS_PER_DAY

# Before the first window today may differ from the profile by a factor of two.
FIRST_VARIANCE = math.log(2.0) ** 2
LARGEST_VARIANCE = math.log(4.0) ** 2
# No day has a thousandth of its usual demand, nor a thousand times as much.
LARGEST_OFFSET = math.log(1000.0)
# Memory of the offset: a day's deviation from the profile belongs to that day.
OFFSET_MEMORY_SECONDS = SECONDS_PER_DAY
# A season that explained all of history may still be another one now, so its weight starts below
# one.
# Then: how far evidence moves the weight, the most that one window may add, and how long it counts:
# evidence of this morning is not used this afternoon, and hardly tomorrow. Chosen by pinball loss
# with the right season and with one that is hours off (`python -m tests.benchmarks.forecast`).
LARGEST_PRIOR = 0.8
# A stated season that explains little starts with the same weight as the forecast without it.
LEAST_PRIOR = 0.5
LOG_ODDS_BOUND = 6.0
EVIDENCE_BOUND = 2.0
EVIDENCE_MEMORY_SECONDS = SECONDS_PER_DAY
# The present is as expected within this distance (squared, in variances).
# Judgement; measured by the pinball loss with a season that is hours off.
USUAL_DISTANCE = 4.0
# Windows over which a growing distance is averaged: one odd count is chance, two are not. A wrong
# season may match the rate by accident when it crosses it, so trust returns only after a while.
DISTANCE_MEMORY_WINDOWS = 2.0
DISTANCE_MEMORY_SECONDS = 600.0
LARGEST_DISTANCE = 40.0
NEWTON_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SeasonState:
    """The season in force and today's offset from it.

    finding: the last one, None before any history arrived. offset: log of today's rate over the
    profile. variance: of it. distance: squared, in variances, of the last windows from the expected
    rate. log_odds: evidence, by lead, moved by errors since the prior.
    """

    finding: SeasonFinding | None = None
    offset: float = 0.0
    variance: float = FIRST_VARIANCE
    distance: float = 0.0
    log_odds: tuple[float, ...] = (0.0, 0.0, 0.0)

    @property
    def season(self) -> Season | None:
        """The season in force, None if none was found."""
        return None if self.finding is None else self.finding.season


@dataclass(frozen=True, slots=True, kw_only=True)
class SeasonForecast:
    """The season's forecast for times after `time_seconds`, and its weight by scored lead."""

    season: Season
    time_seconds: float
    offset: float
    variance: float
    weights: tuple[float, ...]

    def ahead(self, lead_seconds: float) -> tuple[float, float]:
        """Return (mean, variance) of the arrival rate this far ahead."""
        return _ahead(self.season, self.time_seconds, lead_seconds, self.offset, self.variance)


NO_SEASON = SeasonState()


def observe(
    state: SeasonState, window: RateWindow, now_seconds: float, gap_seconds: float
) -> SeasonState:
    """Return the state after a window that ended now, `gap_seconds` after the previous one."""
    season = state.season
    if season is None:
        return state
    middle = now_seconds - 0.5 * window.seconds
    kept = math.exp(-gap_seconds / OFFSET_MEMORY_SECONDS)
    noise = season.variance_per_second(middle) * gap_seconds
    offset = kept * state.offset
    variance = min(kept * kept * state.variance + noise, LARGEST_VARIANCE)
    expected = season.rate_per_second(middle) * math.exp(offset) * window.seconds
    counted = window.rate_per_second * window.seconds
    dispersion = window.dispersion + window.error_ratio**2 * expected
    far = (counted - expected) ** 2 / (expected * (dispersion + variance * expected) + 1.0)
    share = 1.0 / DISTANCE_MEMORY_WINDOWS
    if far < state.distance:
        share = 1.0 - math.exp(-gap_seconds / DISTANCE_MEMORY_SECONDS)
    moved = _offset_step(expected, counted, variance, dispersion)
    keep = math.exp(-gap_seconds / EVIDENCE_MEMORY_SECONDS)
    return replace(
        state,
        offset=min(max(offset + moved, -LARGEST_OFFSET), LARGEST_OFFSET),
        variance=1.0 / (1.0 / variance + expected * math.exp(moved) / dispersion),
        distance=state.distance + share * (min(far, LARGEST_DISTANCE) - state.distance),
        log_odds=tuple(keep * odds for odds in state.log_odds),
    )


def season_forecast(state: SeasonState, time_seconds: float) -> SeasonForecast | None:
    """Return the season's forecast after its last window at this time; None without a season."""
    season = state.season
    if season is None:
        return None
    share = min(max(season.strength_ratio, LEAST_PRIOR), LARGEST_PRIOR)
    prior = math.log(share / (1.0 - share))
    expected = math.exp(-0.5 * max(state.distance - USUAL_DISTANCE, 0.0))
    return SeasonForecast(
        season=season,
        time_seconds=time_seconds,
        offset=state.offset,
        variance=state.variance,
        weights=tuple(expected / (1.0 + math.exp(-prior - odds)) for odds in state.log_odds),
    )


def weigh_evidence(
    log_odds: float, *, season_error: float, plain_error: float, variance: float
) -> float:
    """Update the evidence from the squared errors of both forecasts, over their joint variance.

    Only differences between the two count, so quiet hours do not wear evidence away.
    """
    evidence = 0.5 * (plain_error - season_error) / variance
    evidence = min(max(evidence, -EVIDENCE_BOUND), EVIDENCE_BOUND)
    return min(max(log_odds + evidence, -LOG_ODDS_BOUND), LOG_ODDS_BOUND)


def _ahead(
    season: Season, time_seconds: float, lead: float, offset: float, variance: float
) -> tuple[float, float]:
    """Return (mean, variance) of the rate at a lead: the profile there, and the possible change."""
    kept = math.exp(-lead / OFFSET_MEMORY_SECONDS)
    then = time_seconds + lead
    noise = max(season.variance_per_second(time_seconds), season.variance_per_second(then))
    mean = season.rate_per_second(then) * math.exp(kept * offset)
    spread = min(kept * kept * variance + noise * lead, LARGEST_VARIANCE)
    return mean, mean * mean * spread


def _offset_step(expected: float, counted: float, variance: float, dispersion: float) -> float:
    """Return the move of the offset: the mode of its posterior, by Newton's method.

    The root of δ/variance = (counted − expected·e^δ)/dispersion, which rises in δ.
    """
    precise = max(counted, expected) / dispersion * variance
    moved = precise / (1.0 + precise) * math.log((counted + 0.5) / (expected + 0.5))
    for _ in range(NEWTON_STEPS):
        then = expected * math.exp(moved)
        slope = 1.0 / variance + then / dispersion
        moved -= (moved / variance - (counted - then) / dispersion) / slope
    return moved
