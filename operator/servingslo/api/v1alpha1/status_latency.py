"""The parts of the status about what is answered, and what the promise costs."""

from servingslo.api.status_base import StatusModel, told
from servingslo.policy.availability import AvailabilityReport
from servingslo.policy.decision_parts import ReserveReport
from servingslo.units import format_duration

# 99.95 % and 99.9 % differ.
_DIGITS_OF_A_SHARE = 6


def _answered(report: AvailabilityReport) -> float | None:
    answered = report.answered_ratio
    return None if answered is None else round(answered, _DIGITS_OF_A_SHARE)


def _is_met(report: AvailabilityReport) -> bool | None:
    answered = report.answered_ratio
    return None if answered is None else answered >= report.target_ratio


class AvailabilityStatus(StatusModel):
    """The share of answered requests, if spec.availability is set."""

    answered: float | None = told(
        _answered,
        exact=True,
        description="Share of requests that got a whole answer, over errorBudget.window or a day, "
        "0 to 1.",
        gauge="servingslo_availability_ratio",
    )
    target: float | None = told(
        lambda report: round(report.target_ratio, _DIGITS_OF_A_SHARE),
        exact=True,
        description="The objective, 0 to 1.",
        gauge="servingslo_availability_target_ratio",
    )
    met: bool | None = told(_is_met, "Whether the share is at least the objective.")
    uncounted: tuple[str, ...] = told(
        "uncounted",
        default=(),
        description="Which of refused, failed and aborted requests no one counts.",
    )


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
