"""The part of the status about what the promise costs."""

from servingslo.api.status_base import StatusModel, told
from servingslo.policy.decision_parts import ReserveReport
from servingslo.units import format_duration


def _rule(report: ReserveReport) -> str:
    window = report.window_seconds
    rate = f"greatest rate of {format_duration(window)}" if window else "rate at the lead time"
    return f"{rate} x {report.margin_ratio:g}, at least {report.floor_replicas} replicas"


class ReserveStatus(StatusModel):
    """The replicas that past demand asks for beyond the forecast, and what they are worth."""

    rule: str = told(
        _rule,
        "What is ordered for: the greatest rate of a time or the rate at the lead time, times a "
        "margin, and never fewer replicas than a floor.",
        default=...,
    )
    mean_replicas: float | None = told(
        "mean_replicas", "Mean count of this rule over the last day's demand."
    )
    missed: float | None = told(
        "missed_ratio", "Share of that day's requests that it would have missed."
    )
    cheaper_mean_replicas: float | None = told(
        "cheaper_mean_replicas", "Mean count of the next cheaper rule."
    )
    cheaper_missed: float | None = told(
        "cheaper_missed_ratio", "Share that the next cheaper rule would have missed."
    )
