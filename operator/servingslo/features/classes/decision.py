"""What is decided of each class of requests: the bound of its lane, and what is reported."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from statistics import median
from typing import Self

from servingslo.plugins import Key
from servingslo.policy.knobs.decisions import KnobDecision, WrittenBound
from servingslo.policy.routes import LANES, ClassTargets
from servingslo.reasons import Reason


class LaneState(StrEnum):
    """Of a class now: its requests are let in; some are refused; its lane is at its least.

    UNBOUND: more of it is in flight than its lane allows. UNSEEN: the gateway does not count it.
    """

    OPEN = "Open"
    FULL = "Full"
    CLOSED = "Closed"
    UNBOUND = "Unbound"
    UNSEEN = "Unseen"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassReport:
    """One class of requests; rates per second, None while unknown.

    admitted, refused, queueing: the parts of what is offered. in_flight: passed on and not answered
    yet. mean_seconds: time from there to the answer (Little's law). policy: the object that holds
    its lane. before, after: bound of each proxy in force and to be set; None if the object states
    none, or if none is to be set. change_reason: why it changes; None if it does not.
    features: what each feature reports of the class, by its name.
    """

    name: str
    priority: int
    policy: str
    state: LaneState
    offered_per_second: float | None = None
    admitted_per_second: float | None = None
    refused_per_second: float | None = None
    queueing_per_second: float = 0.0
    in_flight: float | None = None
    mean_seconds: float | None = None
    before: int | None = None
    after: int | None = None
    change_reason: Reason | None = None
    features: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesDecision(KnobDecision):
    """The lanes of all classes.

    reason: LIMIT_VERIFIED, LIMIT_UNVERIFIED, LIMIT_NOT_HELD, LIMIT_OPENED, ADMISSION_OFF,
    ADMISSION_RECOMMENDED, or why no lane is written. written: whether lanes are to be written at
    all, not only recommended. puts_back: the bounds from before the operator's are restored
    exactly.
    """

    classes: tuple[ClassReport, ...] = ()
    proxies: int = 1
    puts_back: bool = False
    written: bool = False

    @property
    def bound(self) -> WrittenBound | None:
        """The lanes, if they are to be written at all."""
        if not self.written:
            return None
        where = f"BackendTrafficPolicy {', '.join(one.policy for one in self.classes)}"
        return WrittenBound(where, self.reason, "no lane is written", self.detail)

    @property
    def changed(self) -> tuple[ClassReport, ...]:
        """The classes whose lanes are to be written now."""
        return tuple(one for one in self.classes if one.change_reason is not None)

    @property
    def bounds(self) -> dict[str, int | None]:
        """Their new bounds."""
        return {one.name: one.after for one in self.changed}

    def hold(self) -> Self:
        """The lanes in force stay."""
        kept = (replace(one, after=one.before, change_reason=None) for one in self.classes)
        return replace(self, classes=tuple(kept), puts_back=False)


LANES_DECIDED: Key[LanesDecision] = Key(LANES, LanesDecision)
# Each lane keeps one request in flight, so that its latency and its demand stay visible.
LEAST_LANE = 1
# Readings of what a class has in flight: five minutes of ticks for its usual level, and the last
# few, which show a surge. A median is not moved by one burst, and each write costs a burst.
# Judgement; measured by refusals of the higher class and by the job's time (benchmark of classes).
HELD_READINGS = 20
SURGE_READINGS = 5


def lane_bounds(
    classes: Sequence[ClassTargets], held: Mapping[str, int], *, whole: int, filled: int
) -> dict[str, int]:
    """The bound in flight of each class, over all proxies.

    held: what each class has in flight. whole: the fleet's bound. filled: the mean in flight at the
    greatest rate within the objectives, to which sheddable classes fill up: what is beyond it makes
    requests late. Classes of one priority share: each has what the others leave, at least an equal
    part.
    """
    lanes: dict[str, int] = {}
    above = 0
    ranked = sorted(classes, key=lambda one: -one.priority)
    for _, equals in groupby(ranked, key=lambda one: one.priority):
        group = tuple(equals)
        bound = whole if group[0].orders else min(filled, whole)
        left = max(bound - above, LEAST_LANE)
        together = sum(held.get(one.name, 0) for one in group)
        for one in group:
            others = together - held.get(one.name, 0)
            lanes[one.name] = max(left - others, math.ceil(left / len(group)))
        above += together
    return lanes


def held_of(readings: Sequence[float]) -> int:
    """What a class has in flight: its usual level, or that of the last readings if it is higher."""
    return math.ceil(max(median(readings), median(readings[-SURGE_READINGS:])))
