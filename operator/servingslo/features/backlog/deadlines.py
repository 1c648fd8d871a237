"""When waiting work is due, remembered by when it arrived: a queue's length does not say it.

A reading that is longer than what is left of the last one has new work at its end; the oldest work
is sent first. Work whose time has passed is late, and due again one deadline later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from servingslo.plugins import Key

# Arrivals within this share of the deadline are one: 32 are remembered at most in a duration.
_TOGETHER_RATIO = 1.0 / 32.0
# The oldest ones are joined beyond it, as if all had arrived with the first: an earlier deadline.
MOST_COHORTS = 64


class Unit(StrEnum):
    """What a queue counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"


class Preset(StrEnum):
    """Where the length of a queue is read: `queries.py` has the metric of each."""

    RABBITMQ = "rabbitmq"
    REDIS = "redis"
    LLM_D_ASYNC = "llm-d-async"
    RECORDED = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A duration from arrival, the next time of day in a zone, or the earlier of both.

    within_seconds: 0 without a duration. zone: '' without a time of day.
    """

    within_seconds: float = 0.0
    hour: int = 0
    minute: int = 0
    zone: str = ""

    @property
    def span_seconds(self) -> float:
        """The longest time that work may wait."""
        return self.within_seconds or timedelta(days=1).total_seconds()

    def due_seconds(self, arrived_seconds: float) -> float:
        """When work that arrived then is due, in seconds since the epoch."""
        within = arrived_seconds + self.within_seconds
        if not self.zone:
            return within
        local = datetime.fromtimestamp(arrived_seconds, ZoneInfo(self.zone))
        due = local.replace(hour=self.hour, minute=self.minute, second=0, microsecond=0)
        # A day later on the clock of the zone, also over a change of it.
        at = (due if due > local else due + timedelta(days=1)).timestamp()
        return min(within, at) if self.within_seconds else at


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogTargets:
    """Work that may wait. on_time_ratio: the share of it that must be done in time."""

    preset: Preset
    queue: str
    unit: Unit
    deadline: Deadline
    on_time_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogReading:
    """The length of the queue at a time, in its unit. left: None if nothing exports it."""

    time_seconds: float
    left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Work that arrived together, in the queue's unit."""

    arrived_seconds: float
    left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogMemory:
    """What waits, oldest first, by the reading of this time."""

    at_seconds: float
    cohorts: tuple[Cohort, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Requests that are due in so many seconds, more than 0. late: their first deadline passed."""

    due_seconds: float
    requests: float
    late: bool = False


TARGETS: Key[BacklogTargets] = Key("backlog", BacklogTargets)
READING: Key[BacklogReading] = Key(TARGETS.name, BacklogReading)
MEMORY: Key[BacklogMemory] = Key(TARGETS.name, BacklogMemory)


def remember(
    memory: BacklogMemory | None, reading: BacklogReading, sent: float, span_seconds: float
) -> BacklogMemory:
    """The memory with a reading. sent: since the last one, in the queue's unit, 0 or more."""
    left, now = reading.left or 0.0, reading.time_seconds
    before = () if memory is None else memory.cohorts
    waiting = sum(one.left for one in before)
    arrived = max(left - max(waiting - sent, 0.0), 0.0)
    kept = _without_oldest(before, waiting - (left - arrived))
    if arrived <= 0.0:
        return BacklogMemory(at_seconds=now, cohorts=kept)
    newest = kept[-1] if kept else None
    if newest and now - newest.arrived_seconds < _TOGETHER_RATIO * span_seconds:
        joined = Cohort(arrived_seconds=newest.arrived_seconds, left=newest.left + arrived)
        return BacklogMemory(at_seconds=now, cohorts=(*kept[:-1], joined))
    kept = (*kept, Cohort(arrived_seconds=now, left=arrived))
    return BacklogMemory(at_seconds=now, cohorts=_bounded(kept))


def work_of(
    cohorts: Sequence[Cohort], deadline: Deadline, requests_per_unit: float, now_seconds: float
) -> tuple[Work, ...]:
    """The work of a queue as requests, by when it is due."""
    found = []
    for one in cohorts:
        due = deadline.due_seconds(one.arrived_seconds)
        late = due <= now_seconds
        due = deadline.due_seconds(now_seconds) if late else due
        requests = one.left * requests_per_unit
        found.append(Work(due_seconds=due - now_seconds, requests=requests, late=late))
    return tuple(sorted(found, key=lambda work: work.due_seconds))


def _without_oldest(cohorts: tuple[Cohort, ...], gone: float) -> tuple[Cohort, ...]:
    kept = []
    for one in cohorts:
        part = min(max(gone, 0.0), one.left)
        gone -= part
        if one.left > part:
            kept.append(Cohort(arrived_seconds=one.arrived_seconds, left=one.left - part))
    return tuple(kept)


def _bounded(cohorts: tuple[Cohort, ...]) -> tuple[Cohort, ...]:
    excess = len(cohorts) - MOST_COHORTS
    if excess <= 0:
        return cohorts
    oldest = cohorts[: excess + 1]
    joined = Cohort(arrived_seconds=oldest[0].arrived_seconds, left=sum(one.left for one in oldest))
    return (joined, *cohorts[excess + 1 :])
