"""How many requests are answered, for a person on call."""

from collections.abc import Iterator

from servingslo.explain.features import Reports, Text
from servingslo.explain.format import percent, seconds
from servingslo.features.availability.answers import REPORT, AvailabilityReport

_FULL = 1.0


class AvailabilityText(Text):
    """How many requests are answered."""

    def lines(self, reports: Reports) -> Iterator[str]:
        """The share, the objective, and what no one counts."""
        return availability_lines(REPORT.of(reports))


def availability_lines(report: AvailabilityReport | None) -> Iterator[str]:
    """The share of answered requests, the objective, and what no one counts."""
    if report is None:
        return
    answered = "no requests counted"
    if report.answered_ratio is not None:
        answered = f"{share(report.answered_ratio)} of requests answered"
    over = seconds(60.0 * max(round(report.observed_seconds / 60.0), 1))
    uncounted = ""
    if report.uncounted:
        uncounted = f"; no one counts {' and '.join(report.uncounted)} requests"
    yield (f"Availability: {answered}, {share(report.target_ratio)} wanted, over {over}{uncounted}")


def share(ratio: float) -> str:
    """A ratio with as many digits as targets have: '99.95 %'. Never rounded up to 100."""
    text = f"{100.0 * ratio:.3f}".rstrip("0").rstrip(".")
    return percent(ratio) if text == "100" and ratio < _FULL else f"{text} %"


PART = AvailabilityText()
