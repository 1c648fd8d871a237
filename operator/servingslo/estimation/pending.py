"""Predictions that wait for their outcome, and what it says of each opinion in a forecast."""

import math
from dataclasses import dataclass

from servingslo.estimation import seasonal

# Outcomes that the realized error is averaged over, ten minutes of 15 s windows. Measured with
# `python -m tests.benchmarks.forecast`: 20 and 80 change the loss over all demands by 1 % at most.
SCORE_MEMORY = 40.0
# Of the spread that the filters predict, what it is corrected to. Measured there: 0.7 to 1.5 loses
# 2 % more in bursts of two minutes, no correction 6 to 10 %.
SPREAD_BOUNDS = (0.5, 2.5)
# Three deviations: one outcome further off than that says no more. Measured there: two deviations
# lose 4 % more in bursts of two minutes.
LARGEST_SQUARED_ERROR = 9.0
# How evidence for returning to the usual mean is weighed: log odds before any, their memory in
# windows, their bounds and the most that one window may add.
RETURN_PRIOR_LOG_ODDS = -2.0
RETURN_EVIDENCE_MEMORY = 40.0
RETURN_LOG_ODDS_BOUND = 3.0
RETURN_EVIDENCE_BOUND = 2.0
# Evidence that a window must bring to count for returning: steady demand fits both alike.
RETURN_LEAST_EVIDENCE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingScore:
    """A prediction made earlier that waits for its outcome.

    level_per_second, surge_probability: when it was made. carried_per_second: the rise that slopes,
    but for a crowd's, would have carried it by.
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


def season_judged(note: PendingScore, rate: float, noise: float, log_odds: float) -> float:
    """Log odds of the season, after the outcome of a prediction."""
    if note.season_mean_per_second is None:
        return log_odds
    return seasonal.judged(
        log_odds,
        season_error=(rate - note.season_mean_per_second) ** 2,
        plain_error=(rate - note.mean_per_second) ** 2,
        variance=note.variance + note.season_variance + noise,
    )


def judged(
    note: PendingScore, rate: float, noise: float, squared_error: float, log_odds: float
) -> tuple[float, float]:
    """Squared error and log odds of returning, after a prediction's outcome."""
    variance = note.variance * spread_ratio(squared_error) ** 2 + noise
    error = (rate - note.mean_per_second) ** 2
    squared = min(error / (note.variance + noise), LARGEST_SQUARED_ERROR)
    usual_variance = note.usual_variance + noise
    usual_error = (rate - note.usual_mean_per_second) ** 2
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


def spread_ratio(squared_error: float) -> float:
    """What predicted deviations are multiplied with, from the mean squared error over variance."""
    low, high = SPREAD_BOUNDS
    return min(max(math.sqrt(squared_error), low), high)
