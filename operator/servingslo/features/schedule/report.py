"""What is reported of a schedule: the bounds that hold, the windows they are of, and the next."""

from dataclasses import dataclass

from servingslo.features.schedule.bounds import SCHEDULE, Schedule, around
from servingslo.features.schedule.windows import Occurrence
from servingslo.plugins import Key
from servingslo.policy.inputs import ReplicaTargets
from servingslo.policy.replicas.bounds_in_force import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReport:
    """A window at one of its times, in seconds since the epoch. pool: whose, with several pools."""

    cron: str
    time_zone: str
    begins_seconds: float
    ends_seconds: float
    minimum: int | None = None
    maximum: int | None = None
    pool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReport:
    """The bounds that hold now.

    minimum, maximum: None of several pools; maximum also if none is stated. windows: in force, or
    ordered for because they begin within a lead. next: the window that begins next. cut_minimum: a
    minimum, also the usual one, above the maximum of a window in force; the maximum holds.
    """

    minimum: int | None = None
    maximum: int | None = None
    windows: tuple[WindowReport, ...] = ()
    next: WindowReport | None = None
    cut_minimum: int | None = None


REPORT: Key[ScheduleReport] = Key(SCHEDULE.name, ScheduleReport)


def schedule_report(
    schedule: Schedule, held: ReplicaTargets, moment: Moment, pool: str = ""
) -> ScheduleReport:
    """The report at a moment. held: the bounds that hold then."""
    found = around(schedule, moment)
    return ScheduleReport(
        minimum=held.minimum,
        maximum=held.maximum,
        windows=tuple(_reported(one, pool) for one in (*found.now, *found.ordered)),
        next=_reported(found.later[0], pool) if found.later else None,
        cut_minimum=held.lowered_from,
    )


def _reported(one: Occurrence, pool: str) -> WindowReport:
    return WindowReport(
        cron=one.window.cron,
        time_zone=one.window.zone,
        begins_seconds=one.begins_seconds,
        ends_seconds=one.ends_seconds,
        minimum=one.window.minimum,
        maximum=one.window.maximum,
        pool=pool,
    )
