"""The part of the status about the backlog, and its gauges."""

from collections.abc import Iterator

from servingslo.api.status_base import GaugeRow, GaugeValue, StatusModel, StatusPart, told
from servingslo.features.backlog.report import REPORT, BacklogReport


def _rate(report: BacklogReport) -> Iterator[GaugeValue]:
    yield {"unit": report.unit.value}, report.rate_per_second


def _left(report: BacklogReport) -> Iterator[GaugeValue]:
    yield {"unit": report.unit.value}, report.left


class BacklogStatus(StatusModel):
    """Work with a deadline, in its unit."""

    gauge_rows = (
        GaugeRow(
            name="servingslo_backlog_rate_per_second",
            help="What may be sent of the backlog now, beyond live demand; 0 while unknown.",
            labels=("unit",),
            values=_rate,
        ),
        GaugeRow(
            name="servingslo_backlog_left",
            help="Length of the queue, in the unit of the backlog.",
            labels=("unit",),
            values=_left,
        ),
    )

    unit: str | None = told(lambda report: report.unit.value, "What is counted.")
    rate_per_second: float | None = told(
        "rate_per_second", "What may be sent now, beyond live demand; 0 while that is unknown."
    )
    left: float | None = told("left", "Length of the queue.")
    late: float | None = told(
        "late_ratio",
        "Share of the queue that will be late, 0 to 1.",
        gauge="servingslo_backlog_late_ratio",
    )
    replicas: int | None = told(
        "replicas",
        "Replicas that finish it in time, or leave least late.",
        gauge="servingslo_backlog_replicas",
    )
    feasible: bool | None = told(
        lambda report: None if report.replicas is None else not report.infeasible,
        "Whether these finish the stated share in time.",
    )
    enough_replicas: int | None = told(
        "enough_replicas", "If they do not: how many would, if any number examined does."
    )
    problem: str | None = told(
        lambda report: report.problem or None, "Why nothing is planned.", max_length=256
    )


PART = StatusPart(
    key=REPORT,
    model=BacklogStatus,
    description="Work with a deadline, if spec.backlog is set.",
)
