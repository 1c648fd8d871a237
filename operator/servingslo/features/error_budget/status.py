"""The part of the status about the error budget, and its gauges."""

from collections.abc import Iterator

from servingslo.api.status_base import GaugeRow, GaugeValue, StatusModel, StatusPart, told
from servingslo.features.error_budget.report import (
    FAST_BURN_SECONDS,
    LEFT,
    REPORT,
    SLOW_BURN_SECONDS,
    BudgetReport,
)
from servingslo.units import format_duration


def _burn(report: BudgetReport, seconds: float) -> float | None:
    return next((one.rate for one in report.burn_rates if one.seconds == seconds), None)


def _burns(report: BudgetReport) -> Iterator[GaugeValue]:
    for one in report.burn_rates:
        yield {"window": format_duration(one.seconds)}, one.rate


class ErrorBudgetStatus(StatusModel):
    """What is left of the error budget, and how fast it burns."""

    gauge_rows = (
        GaugeRow(
            name="servingslo_error_budget_burn_rate",
            help="Speed at which the error budget was spent over a window; 1 is allowed.",
            labels=("window",),
            values=_burns,
        ),
    )

    remaining: float | None = told(
        "remaining_ratio",
        "Share of the budget that is left, by as many misses as there may have been: "
        "requests that missed two objectives are counted twice. Negative when overspent.",
        gauge="servingslo_error_budget_remaining_ratio",
    )
    remaining_at_most: float | None = told(
        "remaining_most_ratio",
        "The same by as many misses as there were at least.",
        gauge="servingslo_error_budget_remaining_greatest_ratio",
    )
    fast_burn: float | None = told(
        lambda budget: _burn(budget, FAST_BURN_SECONDS),
        "How many times as fast as allowed it was spent in the last hour.",
    )
    slow_burn: float | None = told(
        lambda budget: _burn(budget, SLOW_BURN_SECONDS), "The same over the last three days."
    )
    covered: float | None = told(
        "covered_ratio",
        "Share of the window of which Prometheus knows anything, 0 to 1.",
        gauge="servingslo_error_budget_covered_ratio",
    )


class BudgetOfClass(StatusModel):
    """What is left of the error budget of one class of requests."""

    gauge_labels = (("class", "name"),)

    error_budget_remaining: float | None = told(
        lambda one: LEFT.of(one.features),
        "Share of the class's own error budget that is left.",
        gauge="servingslo_class_error_budget_remaining_ratio",
    )


PART = StatusPart(
    key=REPORT,
    model=ErrorBudgetStatus,
    description="The error budget, if spec.errorBudget is set.",
    of_class=BudgetOfClass,
    columns=(
        ("Error Budget", "number", ".status.errorBudget.remaining", "Share of it that is left."),
    ),
)
