"""Which window bounds the replica count, until when, and which comes next."""

from collections.abc import Iterator

from servingslo.explain.features import Reports, Text
from servingslo.features.schedule.report import REPORT, ScheduleReport, WindowReport
from servingslo.units import timestamp_from_seconds


class ScheduleText(Text):
    """The windows of a schedule."""

    def pairs(self, reports: Reports) -> Iterator[tuple[str, str]]:
        """The windows in force or ordered for, and a minimum that a maximum cuts."""
        report = REPORT.of(reports)
        if report is None:
            return
        if report.windows:
            yield "windows", "; ".join(_bounds(one) for one in report.windows)
        if report.cut_minimum is not None:
            yield "cut_min", str(report.cut_minimum)

    def minimum(self, reports: Reports) -> str:
        """The window whose minimum holds."""
        if (report := REPORT.of(reports)) is None:
            return ""
        return next((_bounds(one) for one in report.windows if one.minimum == report.minimum), "")

    def essence(self, reports: Reports) -> object:
        """The windows, by when they began, and a contradiction."""
        report = REPORT.of(reports)
        return None if report is None else (report.windows, report.cut_minimum)

    def headlines(self, reports: Reports) -> Iterator[str]:
        """A contradiction, and what was done."""
        report = REPORT.of(reports)
        if report is not None and report.cut_minimum is not None:
            yield (
                f"Bounds contradict: min {report.cut_minimum} is above the max of a window; "
                "the max holds"
            )

    def lines(self, reports: Reports) -> Iterator[str]:
        """The bounds that hold, each window, and the next one."""
        report = REPORT.of(reports)
        if report is not None:
            yield f"Schedule: {_held(report)}"
            for one in report.windows:
                yield f"  {_window(one)}"
            if report.next is not None and report.next not in report.windows:
                yield f"  next: {_window(report.next)}"


def _held(report: ScheduleReport) -> str:
    if report.minimum is None:
        return "of each pool its own"
    most = "" if report.maximum is None else f", at most {report.maximum}"
    return f"at least {report.minimum}{most} now"


def _window(one: WindowReport) -> str:
    begins, ends = map(timestamp_from_seconds, (one.begins_seconds, one.ends_seconds))
    return f"{_bounds(one)}, from {begins} to {ends}"


def _bounds(one: WindowReport) -> str:
    stated = (("min", one.minimum), ("max", one.maximum))
    bounds = ", ".join(f"{name} {count}" for name, count in stated if count is not None)
    whose = f"{one.pool}: " if one.pool else ""
    return f"{whose}{bounds} by '{one.cron}' {one.time_zone}"


PART = ScheduleText()
