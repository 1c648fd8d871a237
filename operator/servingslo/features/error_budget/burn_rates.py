"""Error budgets and burn rates by the textbook."""

from servingslo.errors import InvalidInputError


def _check_target(target_ratio: float) -> float:
    if not 0 < target_ratio < 1:
        raise InvalidInputError("target_ratio", target_ratio, "between 0 and 1")
    return 1.0 - target_ratio


def error_budget_requests(target_ratio: float, request_count: float) -> float:
    """Return the requests that may miss the objective, (1 − target)·requests.

    Source: "Serving and Systems Tradeoffs", error budget.
    """
    return _check_target(target_ratio) * request_count


def burn_rate(missed_ratio: float, target_ratio: float) -> float:
    """Return how many times faster than allowed the budget is spent: missed share / (1 − target).

    Source: Google, The Site Reliability Workbook (2018), chapter 5, burn rate.
    """
    return missed_ratio / _check_target(target_ratio)


def budget_left_ratio(missed_count: float, request_count: float, target_ratio: float) -> float:
    """Return the share of a window's budget left; negative when overspent, 1 without requests.

    Source: Google, Site Reliability Engineering (2016), chapter 3, error budgets.
    """
    budget = error_budget_requests(target_ratio, request_count)
    return 1.0 - missed_count / budget if budget > 0 else 1.0


# Source: Google, The Site Reliability Workbook, chapter 5, table 5-8: pairs of a long window and a
# short one, which ends an alert soon after the trouble ends.
FAST_BURN_SECONDS, SLOW_BURN_SECONDS = 3600.0, 259_200.0
BURN_SECONDS = (300.0, 1800.0, FAST_BURN_SECONDS, 21_600.0, SLOW_BURN_SECONDS)
"""Lengths of the windows whose burn rates are reported."""
