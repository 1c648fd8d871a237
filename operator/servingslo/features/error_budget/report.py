"""What is left of the error budget, and how fast it burns, from the last reading."""

from dataclasses import dataclass

from servingslo.features.error_budget.burn_rates import budget_left_ratio, burn_rate
from servingslo.features.error_budget.windows import READING
from servingslo.plugins import Key
from servingslo.policy.inputs import Observation, Targets

# Readings come about every minute; an older one says nothing about the present.
OLDEST_READING_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnRate:
    """How many times as fast as allowed the budget was spent over a recent period."""

    seconds: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReport:
    """The error budget over its window.

    remaining_ratio: of the budget, if every miss is of another request; negative when overspent.
    remaining_most_ratio: if as many misses as possible are of the same requests. covered_ratio:
    share of the window with any data.
    """

    target_ratio: float
    window_seconds: float
    remaining_ratio: float
    remaining_most_ratio: float
    covered_ratio: float
    burn_rates: tuple[BurnRate, ...] = ()


# What is stated: the budget's window, seconds.
WINDOW: Key[float] = Key(READING.name, float)
REPORT: Key[BudgetReport] = Key(READING.name, BudgetReport)
# What is left of the budget of one class of requests, as a ratio.
LEFT: Key[float] = Key(READING.name, float)


def budget_report(targets: Targets, observation: Observation) -> BudgetReport | None:
    """The budget by its pessimistic bound; None if none is requested or nothing is known."""
    window, reading = WINDOW.of(targets.features), READING.of(observation.features)
    if window is None or reading is None or not reading.windows:
        return None
    age_seconds = observation.time_seconds - reading.time_seconds
    if age_seconds > OLDEST_READING_SECONDS or reading.covered_ratio <= 0:
        return None
    target, whole = targets.promised_share_ratio, reading.windows[-1]
    return BudgetReport(
        target_ratio=target,
        window_seconds=window,
        remaining_ratio=budget_left_ratio(whole.most, whole.requests, target),
        remaining_most_ratio=budget_left_ratio(whole.least, whole.requests, target),
        covered_ratio=reading.covered_ratio,
        burn_rates=tuple(
            BurnRate(seconds=one.seconds, rate=burn_rate(one.most / one.requests, target))
            for one in reading.windows[:-1]
            if one.requests > 0
        ),
    )
