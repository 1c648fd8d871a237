"""The part of the status about a schedule, and its gauges."""

from servingslo.api.status_base import StatusModel, StatusPart, Timestamp, told
from servingslo.features.schedule.report import REPORT
from servingslo.units import timestamp_from_seconds


class WindowStatus(StatusModel):
    """A window at one of its times."""

    cron: str | None = told("cron", "The cron that it begins by.")
    time_zone: str | None = told("time_zone", "Its time zone.")
    begins: Timestamp | None = told(
        lambda one: timestamp_from_seconds(one.begins_seconds), "When it begins."
    )
    ends: Timestamp | None = told(
        lambda one: timestamp_from_seconds(one.ends_seconds), "When it ends."
    )
    min: int | None = told("minimum", "Its fewest replicas.")
    max: int | None = told("maximum", "Its most replicas.")
    pool: str | None = told(lambda one: one.pool or None, "Whose it is, with pools.")


class ScheduleStatus(StatusModel):
    """The bounds of replicas.schedule, if it is set."""

    min: int | None = told(
        "minimum",
        "Fewest replicas that hold now; absent with pools.",
        gauge="servingslo_schedule_min_replicas",
    )
    max: int | None = told(
        "maximum",
        "Most replicas that hold now; absent with pools.",
        gauge="servingslo_schedule_max_replicas",
    )
    windows: tuple[WindowStatus, ...] = told(
        "windows", "Windows in force, or ordered for because they begin soon.", default=()
    )
    next: WindowStatus | None = told("next", "The window that begins next.")
    cut_min: int | None = told(
        "cut_minimum",
        "A min, of replicas or a window, above the max of a window in force; the max holds.",
    )


PART = StatusPart(
    key=REPORT,
    model=ScheduleStatus,
    description="The bounds of replicas.schedule, if it is set.",
)
