"""The remaining error budget, and how fast it burns."""

from servingslo.estimation.requests.misses import BudgetReading, WindowMisses
from servingslo.models.burn_rates import (
    FAST_BURN,
    MEDIUM_BURN,
    SLOW_BURN,
    budget_left_ratio,
    burn_rate,
)
from servingslo.policy.decision_parts import BudgetReport, BurnRate
from servingslo.policy.inputs import Observation, Targets

BURN_WINDOWS = (FAST_BURN, MEDIUM_BURN, SLOW_BURN)
BURN_SECONDS = tuple(
    sorted({s for pair in BURN_WINDOWS for s in (pair.short_seconds, pair.long_seconds)})
)
"""Lengths of the windows that burn rates are told of."""
# Readings come about every minute; an older one says nothing about the present.
OLDEST_READING_SECONDS = 900.0


def budget_report(targets: Targets, observation: Observation) -> BudgetReport | None:
    """The budget by its pessimistic bound; None if none is requested or nothing is known."""
    budget, reading = targets.error_budget, observation.error_budget
    if budget is None or reading is None or not reading.windows:
        return None
    age_seconds = observation.time_seconds - reading.time_seconds
    if age_seconds > OLDEST_READING_SECONDS or reading.covered_ratio <= 0:
        return None
    target = targets.error_budget_target_ratio
    whole = reading.windows[-1]
    return BudgetReport(
        target_ratio=target,
        window_seconds=budget.window_seconds,
        remaining_ratio=budget_left_ratio(whole.most, whole.requests, target),
        remaining_most_ratio=budget_left_ratio(whole.least, whole.requests, target),
        covered_ratio=reading.covered_ratio,
        burn_rates=_burn_rates(reading, target),
    )


def _burn_rates(reading: BudgetReading, target: float) -> tuple[BurnRate, ...]:
    return tuple(
        BurnRate(seconds=window.seconds, rate=_rate(window, target))
        for window in reading.windows[:-1]
        if window.requests > 0
    )


def _rate(window: WindowMisses, target: float) -> float:
    return burn_rate(window.most / window.requests, target)
