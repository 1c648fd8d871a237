"""The bounds that hold at a moment: of windows in force, and of those that begin within a lead.

What a window states takes the place of the usual bound. Of several windows in force the greatest
minimum and the least maximum hold; if these contradict, the maximum. The cost of a lower count is a
missed objective, that of a higher one is replicas that somebody else may have been promised.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from servingslo.features.schedule.windows import Occurrence, Window, coming, in_force
from servingslo.plugins import Key
from servingslo.policy.inputs import ReplicaTargets
from servingslo.policy.replicas.bounds_in_force import BoundsPart, Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The stated windows."""

    windows: tuple[Window, ...]


SCHEDULE: Key[Schedule] = Key("schedule", Schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What is in force at a moment, and what comes next, of each window, the soonest first.

    ahead_seconds: the time at which a replica that is ordered now is ready.
    """

    now: tuple[Occurrence, ...]
    later: tuple[Occurrence, ...]
    ahead_seconds: float

    @property
    def ordered(self) -> tuple[Occurrence, ...]:
        """What begins before a replica that is ordered later would be ready."""
        return tuple(one for one in self.later if one.begins_seconds <= self.ahead_seconds)


def around(schedule: Schedule, moment: Moment) -> Around:
    """What is in force and what comes next."""
    return Around(
        now=in_force(schedule.windows, moment.now_seconds),
        later=coming(schedule.windows, moment.now_seconds),
        ahead_seconds=moment.now_seconds + moment.lead_seconds,
    )


def least(occurrences: Iterable[Occurrence]) -> int | None:
    """The minimum of windows that are in force together: the greatest; None if none is stated."""
    stated = (one.window.minimum for one in occurrences)
    return max((one for one in stated if one is not None), default=None)


def greatest(occurrences: Iterable[Occurrence]) -> int | None:
    """The maximum of windows that are in force together: the least; None if none is stated."""
    stated = (one.window.maximum for one in occurrences)
    return min((one for one in stated if one is not None), default=None)


def _left_minimum(occurrences: tuple[Occurrence, ...], usual: ReplicaTargets) -> int:
    """The minimum that the maxima of windows in force with it leave."""
    minimum, maximum = least(occurrences), greatest(occurrences)
    minimum = usual.minimum if minimum is None else minimum
    return minimum if maximum is None else min(minimum, maximum)


def bounds_at(schedule: Schedule, usual: ReplicaTargets, moment: Moment) -> ReplicaTargets:
    """The bounds that hold at a moment. usual: those of no window.

    A minimum holds one lead before its time, so that its replicas are ready then. The usual maximum
    gives way to a minimum that is ordered ahead; the maximum of a window in force does not.
    """
    found = around(schedule, moment)
    known = (*found.now, *found.ordered)
    changes = (
        *(one.ends_seconds for one in known if one.ends_seconds <= found.ahead_seconds),
        *(one.begins_seconds for one in found.ordered),
    )
    own = least(found.now)
    minima = (_left_minimum(in_force(schedule.windows, time), usual) for time in changes)
    minimum = max((usual.minimum if own is None else own, *minima))
    maximum, cut = greatest(found.now), None
    if maximum is not None and minimum > maximum:
        minimum, cut = maximum, minimum
    if maximum is None and usual.maximum is not None:
        maximum = max(usual.maximum, minimum)
    return replace(
        usual,
        minimum=minimum,
        maximum=maximum,
        zero_at_times=usual.may_sleep,
        lowered_from=cut,
    )


PART = BoundsPart(
    key=SCHEDULE,
    bounds=bounds_at,
    greatest=lambda schedule: max(window.maximum or 0 for window in schedule.windows),
)
