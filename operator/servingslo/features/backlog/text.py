"""The backlog, for a person on call."""

from collections.abc import Iterator

from servingslo.explain.features import Reports, Text
from servingslo.explain.format import counted, number, percent, seconds
from servingslo.features.backlog.report import REPORT, SILENT, BacklogReport


class BacklogText(Text):
    """What waits, when it is due, what it needs and what may be sent."""

    def pairs(self, reports: Reports) -> Iterator[tuple[str, str]]:
        """What waits, what may be sent, and what is late if too much is."""
        if (report := REPORT.of(reports)) is None:
            return
        if report.left is not None:
            yield "backlog", number(report.left)
        yield "backlog_rate", number(report.rate_per_second)
        if report.infeasible:
            yield "backlog_late", percent(report.late_ratio)
        if report.problem:
            yield "backlog_problem", report.problem

    def essence(self, reports: Reports) -> tuple[bool, str] | None:
        """Whether it can be done in time, and why it is not planned."""
        report = REPORT.of(reports)
        return None if report is None else (report.infeasible, report.problem)

    def headlines(self, reports: Reports) -> Iterator[str]:
        """A deadline that cannot be met, and what would do; a dispatcher that is away."""
        report = REPORT.of(reports)
        if report is not None and report.problem == SILENT:
            yield f"Backlog: {SILENT}"
        if report is not None and report.infeasible:
            yield (
                f"Backlog: {percent(report.late_ratio)} is or will be late at "
                f"{counted(report.replicas, 'replica')}; {_would_do(report)}"
            )

    def lines(self, reports: Reports) -> Iterator[str]:
        """What waits, and the rate."""
        if (report := REPORT.of(reports)) is None:
            return
        unit = report.unit.value
        now = f"{number(report.rate_per_second)} {unit}/s may be sent now"
        if report.problem:
            yield f"Backlog: not planned: {report.problem}; {now}"
        elif not report.left or report.due_seconds is None:
            yield f"Backlog: empty; {now}"
        else:
            yield (
                f"Backlog: {number(report.left)} {unit}, the first {_due(report.due_seconds)}: "
                f"{counted(report.replicas, 'replica')}; {now}"
            )


def _due(in_seconds: float) -> str:
    return f"due in {seconds(in_seconds)}" if in_seconds else "late"


def _would_do(report: BacklogReport) -> str:
    if report.enough_replicas is None:
        return "no count that was examined finishes it in time"
    return f"{report.enough_replicas} would finish it in time"


PART = BacklogText()
