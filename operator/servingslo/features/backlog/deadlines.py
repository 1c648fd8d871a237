"""When waiting work is due, remembered by when it arrived: a queue's length does not say it.

A reading that is longer than what is left of the last one has new work at its end; the oldest work
is sent first. Work whose time has passed is late once, and must still be done: soon.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from servingslo.plugins import Key

# Arrivals within this share of the deadline are one: 32 are remembered at most in a duration.
_TOGETHER_RATIO = 1.0 / 32.0
# The oldest ones are joined beyond it, as if all had arrived with the first: an earlier deadline.
MOST_COHORTS = 64
# What is known to be sent is a mean of about a minute, four readings; and lengths are noisy. What
# left the queue beyond it, up to these, is no reason to take as much for new work afterwards:
# otherwise each error makes old work young, and its deadline is missed unseen.
_LAGGING_READINGS = 4.0
_NOISE_RATIO = 0.05
# A dispatcher that sends nothing for so long while it might, of at least so many requests, is away:
# twenty readings; by chance none of ten comes with e^-10.
SILENT_SECONDS = 300.0
LEAST_OFFERED_REQUESTS = 10.0
# What is known to be sent is a mean of the last minute: a reading tells no more of a gap before it.
TOLD_SECONDS = 60.0


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
class Silence:
    """None of the work is sent; in the queue's unit.

    left: at its beginning. seconds: of it, in which some might have been sent. offered: how much.
    """

    left: float
    seconds: float = 0.0
    offered: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogMemory:
    """What waits, oldest first, by the reading of this time.

    unexplained: what left the queue and was not known to be sent, and may be noise. silence: None
    while work is sent, or none waits.
    """

    at_seconds: float
    cohorts: tuple[Cohort, ...] = ()
    unexplained: float = 0.0
    silence: Silence | None = None

    def is_silent(self, units_per_request: float) -> bool:
        """Whether a dispatcher that runs would have sent some of it."""
        one, least = self.silence, LEAST_OFFERED_REQUESTS * units_per_request
        return one is not None and one.seconds >= SILENT_SECONDS and one.offered >= least


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Requests that are due in so many seconds, more than 0. late: their deadline passed."""

    due_seconds: float
    requests: float
    late: bool = False


TARGETS: Key[BacklogTargets] = Key("backlog", BacklogTargets)
READING: Key[BacklogReading] = Key(TARGETS.name, BacklogReading)
MEMORY: Key[BacklogMemory] = Key(TARGETS.name, BacklogMemory)


def remember(
    memory: BacklogMemory | None,
    reading: BacklogReading,
    sent: float,
    span_seconds: float,
    offered_per_second: float = 0.0,
) -> BacklogMemory:
    """The memory with a reading.

    sent: since the last one, in the queue's unit. offered_per_second: what might have been.
    """
    left, now = reading.left or 0.0, reading.time_seconds
    before, unexplained = ((), 0.0) if memory is None else (memory.cohorts, memory.unexplained)
    waiting = sum(one.left for one in before)
    more = left - max(waiting - sent, 0.0)
    arrived = max(more - unexplained, 0.0) if before else left
    noise = _LAGGING_READINGS * sent + _NOISE_RATIO * left
    unexplained = min(max(unexplained + arrived - more, 0.0), noise)
    kept = _without_oldest(before, waiting - (left - arrived))
    if arrived > 0.0:
        kept = _with_newest(kept, Cohort(arrived_seconds=now, left=arrived), span_seconds)
    silence = None
    if left and not sent:
        seconds = 0.0 if memory is None else min(now - memory.at_seconds, TOLD_SECONDS)
        quiet = None if memory is None else memory.silence
        silence = _silence(quiet, left, seconds, offered_per_second)
    return BacklogMemory(at_seconds=now, cohorts=kept, unexplained=unexplained, silence=silence)


def _silence(
    before: Silence | None, left: float, seconds: float, offered_per_second: float
) -> Silence:
    if before is None or left < (1.0 - _NOISE_RATIO) * before.left:
        return Silence(left=left)
    if not offered_per_second:
        return before
    offered = before.offered + offered_per_second * seconds
    return replace(before, seconds=before.seconds + seconds, offered=offered)


def _with_newest(kept: tuple[Cohort, ...], new: Cohort, span_seconds: float) -> tuple[Cohort, ...]:
    newest = kept[-1] if kept else None
    if newest and new.arrived_seconds - newest.arrived_seconds < _TOGETHER_RATIO * span_seconds:
        joined = Cohort(arrived_seconds=newest.arrived_seconds, left=newest.left + new.left)
        return (*kept[:-1], joined)
    return _bounded((*kept, new))


def work_of(
    cohorts: Sequence[Cohort],
    deadline: Deadline,
    requests_per_unit: float,
    now_seconds: float,
    soon_seconds: float,
) -> tuple[Work, ...]:
    """The work of a queue, oldest first, as requests: none is sent after what arrived later.

    soon_seconds: in which late work is to be done.
    """
    found, behind = [], math.inf
    for one in reversed(cohorts):
        due = deadline.due_seconds(one.arrived_seconds)
        late = due <= now_seconds
        behind = min(behind, now_seconds + soon_seconds if late else due)
        requests = one.left * requests_per_unit
        found.append(Work(due_seconds=behind - now_seconds, requests=requests, late=late))
    return tuple(reversed(found))


def _without_oldest(cohorts: tuple[Cohort, ...], gone: float) -> tuple[Cohort, ...]:
    """What is left. gone: below 0, what was taken for gone is still there."""
    kept = []
    for one in cohorts:
        part = min(gone, one.left)
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
