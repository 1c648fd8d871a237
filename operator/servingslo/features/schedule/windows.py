"""Windows of time that begin by cron, and which of them are in force around a moment.

Everything follows from the time that is passed in: a restart inside a window finds it in force.
Source of the fields and of daylight saving: crontab(5) of Debian, as `cronsim` follows it. A local
time that is skipped begins with the first minute after the gap; one that comes twice begins once,
at the first, if minute and hour are fixed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim

# No clock of the time zone database is set back by more since 1970. Inside the hours that come
# twice, starts of later local times have been: a search that begins so far ahead passes them.
_SET_BACK_SECONDS = 3 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Bounds on the replica count for a time after each beginning; None keeps the usual one.

    cron: minute, hour, day of month, month, day of week, in local time of the zone, which is named
    as in the IANA database.
    """

    cron: str
    zone: str
    duration_seconds: float
    minimum: int | None = None
    maximum: int | None = None


class Occurrence(NamedTuple):
    """One time that a window is in force, in seconds since the epoch."""

    window: Window
    begins_seconds: float
    ends_seconds: float


def last_begun(window: Window, at_seconds: float) -> Occurrence | None:
    """The newest occurrence that began at this time or before; None if there was none."""
    again = _local(window, at_seconds).fold
    late = _local(window, at_seconds + (_SET_BACK_SECONDS if again else 1.0))
    starts = _seconds(CronSim(window.cron, late, reverse=True))
    return _occurrence(window, next((one for one in starts if one <= at_seconds), None))


def next_begun(window: Window, at_seconds: float) -> Occurrence | None:
    """The first occurrence that begins later; None if none does."""
    starts = _seconds(CronSim(window.cron, _local(window, at_seconds)))
    return _occurrence(window, next((one for one in starts if one > at_seconds), None))


def in_force(windows: Sequence[Window], at_seconds: float) -> tuple[Occurrence, ...]:
    """The occurrences that have begun and not ended."""
    begun = (last_begun(window, at_seconds) for window in windows)
    return tuple(one for one in begun if one is not None and at_seconds < one.ends_seconds)


def coming(windows: Sequence[Window], at_seconds: float) -> tuple[Occurrence, ...]:
    """The next occurrence of each window, the soonest first."""
    found = (next_begun(window, at_seconds) for window in windows)
    return tuple(
        sorted((one for one in found if one is not None), key=lambda one: one.begins_seconds)
    )


def _local(window: Window, at_seconds: float) -> datetime:
    return datetime.fromtimestamp(at_seconds, ZoneInfo(window.zone))


def _seconds(starts: CronSim) -> Iterator[float]:
    return (start.timestamp() for start in starts)


def _occurrence(window: Window, begins_seconds: float | None) -> Occurrence | None:
    if begins_seconds is None:
        return None
    return Occurrence(window, begins_seconds, begins_seconds + window.duration_seconds)
