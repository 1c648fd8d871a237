"""The season as a second opinion on the demand to come, and how far it is believed.

Season times a slowly changing offset of today's level: a filter in log rate whose noise is that of
the history at this time of day. Dividing every rate by the season and forecasting what is left
would need the level at night to foretell the morning, and a fleet that sleeps has none; in log rate
an empty window says just as much as the requests that were expected in it.
Its say is the share of variance that the season explained in history, lowered wherever the present
is not what it expected, and moved by its own errors against those of the forecast without it.
Source: M. West and J. Harrison, "Bayesian Forecasting and Dynamic Models", 1997, ch. 14 (dynamic
generalised linear models, Poisson with log link); J. Hoeting et al., "Bayesian model averaging: a
tutorial", 1999.
"""

import math
from dataclasses import dataclass, replace

from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.forecast.season_profile import Season, SeasonFinding

# Before the first window today may lie a factor of two beside the profile.
FIRST_VARIANCE = math.log(2.0) ** 2
LARGEST_VARIANCE = math.log(4.0) ** 2
# No day has a thousandth of what it has usually, nor a thousand times as much.
LARGEST_OFFSET = math.log(1000.0)
# How a day lies beside the profile is of that day.
OFFSET_MEMORY_SECONDS = 86400.0
# A season that explained everything may still be another one now, so it does not begin with all of
# the say; how far evidence moves that, the most that one window may add, and how long it counts:
# what misled this morning is not believed this afternoon, nor quite tomorrow. Chosen by pinball
# loss with the right season and with one that is hours off (`python -m tests.benchmarks.forecast`).
LARGEST_PRIOR = 0.8
# One that was stated and explains little begins with no more say than the forecast without it.
LEAST_PRIOR = 0.5
LOG_ODDS_BOUND = 6.0
EVIDENCE_BOUND = 2.0
EVIDENCE_MEMORY_SECONDS = 86400.0
# The present is as expected within this distance (squared, in variances).
USUAL_DISTANCE = 4.0
# Windows over which a growing distance is averaged: one odd count is chance, two are not. A season
# that was off may meet the rate by accident, in crossing it; it is believed again after a while.
DISTANCE_MEMORY_WINDOWS = 2.0
DISTANCE_MEMORY_SECONDS = 600.0
LARGEST_DISTANCE = 40.0
NEWTON_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SeasonState:
    """The season in force and where today lies beside it.

    finding: the last one, None before any history arrived. offset: log of today's rate over the
    profile. variance: of it. distance: squared, in variances, of the last windows from what was
    expected. log_odds: evidence, by lead, moved by errors since the prior.
    """

    finding: SeasonFinding | None = None
    offset: float = 0.0
    variance: float = FIRST_VARIANCE
    distance: float = 0.0
    log_odds: tuple[float, ...] = (0.0, 0.0, 0.0)

    @property
    def season(self) -> Season | None:
        """The season in force, None where none was found."""
        return None if self.finding is None else self.finding.season


@dataclass(frozen=True, slots=True, kw_only=True)
class SeasonForecast:
    """What the season says of the time after `time_seconds`, and its weight by scored lead."""

    season: Season
    time_seconds: float
    offset: float
    variance: float
    weights: tuple[float, ...]

    def ahead(self, lead_seconds: float) -> tuple[float, float]:
        """(mean, variance) of the arrival rate this far ahead."""
        return _ahead(self.season, self.time_seconds, lead_seconds, self.offset, self.variance)


NO_SEASON = SeasonState()


def observe(
    state: SeasonState, window: RateWindow, now_seconds: float, gap_seconds: float
) -> SeasonState:
    """The state after a window of arrivals that ended now, `gap_seconds` after the one before."""
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
    moved = _moved(expected, counted, variance, dispersion)
    keep = math.exp(-gap_seconds / EVIDENCE_MEMORY_SECONDS)
    return replace(
        state,
        offset=min(max(offset + moved, -LARGEST_OFFSET), LARGEST_OFFSET),
        variance=1.0 / (1.0 / variance + expected * math.exp(moved) / dispersion),
        distance=state.distance + share * (min(far, LARGEST_DISTANCE) - state.distance),
        log_odds=tuple(keep * odds for odds in state.log_odds),
    )


def season_forecast(state: SeasonState, time_seconds: float) -> SeasonForecast | None:
    """What the season says after its last window at this time; None without a season."""
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


def judged(log_odds: float, *, season_error: float, plain_error: float, variance: float) -> float:
    """Evidence after an outcome: squared errors of both, over the variance of either together.

    Only where they differ does it say anything, so quiet hours wear no evidence away.
    """
    evidence = 0.5 * (plain_error - season_error) / variance
    evidence = min(max(evidence, -EVIDENCE_BOUND), EVIDENCE_BOUND)
    return min(max(log_odds + evidence, -LOG_ODDS_BOUND), LOG_ODDS_BOUND)


def _ahead(
    season: Season, time_seconds: float, lead: float, offset: float, variance: float
) -> tuple[float, float]:
    """(mean, variance) of the rate at a lead: the profile there, and what may change until then."""
    kept = math.exp(-lead / OFFSET_MEMORY_SECONDS)
    then = time_seconds + lead
    noise = max(season.variance_per_second(time_seconds), season.variance_per_second(then))
    mean = season.rate_per_second(then) * math.exp(kept * offset)
    spread = min(kept * kept * variance + noise * lead, LARGEST_VARIANCE)
    return mean, mean * mean * spread


def _moved(expected: float, counted: float, variance: float, dispersion: float) -> float:
    """How far the offset moves: the mode of its posterior, by Newton's method.

    The root of δ/variance = (counted − expected·e^δ)/dispersion, which rises in δ.
    """
    precise = max(counted, expected) / dispersion * variance
    moved = precise / (1.0 + precise) * math.log((counted + 0.5) / (expected + 0.5))
    for _ in range(NEWTON_STEPS):
        then = expected * math.exp(moved)
        slope = 1.0 / variance + then / dispersion
        moved -= (moved / variance - (counted - then) / dispersion) / slope
    return moved
