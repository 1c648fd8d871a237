"""The part of the status about the share of answered requests, and its gauges."""

from servingslo.api.status_base import StatusModel, StatusPart, told
from servingslo.features.availability.answers import REPORT, AvailabilityReport

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
        description="Share of requests that got a whole answer, over the period of the promise, a "
        "day by default, 0 to 1.",
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


PART = StatusPart(
    key=REPORT,
    model=AvailabilityStatus,
    description="The share of answered requests, if spec.availability is set.",
)
