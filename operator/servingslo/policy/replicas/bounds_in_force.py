"""The bounds on a replica count that hold at a tick, if features change them over time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from servingslo.plugins import Aspect, Key
from servingslo.policy.inputs import ReplicaTargets, Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A tick. lead_seconds: from an order until the replica serves."""

    now_seconds: float
    lead_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsPart:
    """A feature that changes bounds over time.

    key: of what is stated of it in `Targets.features`. bounds: what holds at a moment instead of
    the stated bounds. greatest: the greatest maximum that it ever sets, 0 if it sets none.
    """

    key: Key[Any]
    bounds: Callable[[Any, ReplicaTargets, Moment], ReplicaTargets]
    greatest: Callable[[Any], int]


BOUNDS: Aspect[BoundsPart] = Aspect("bounds")


def with_bounds_in_force(targets: Targets, lead_seconds: float, now_seconds: float) -> Targets:
    """The targets with the bounds that hold then; the same where no feature states any.

    Also of targets whose bounds hold at another moment: the usual ones are the first.
    """
    usual = targets.replicas.usual or targets.replicas
    replicas, moment = usual, Moment(now_seconds=now_seconds, lead_seconds=lead_seconds)
    for part in BOUNDS.parts():
        if (stated := part.key.of(targets.features)) is not None:
            replicas = part.bounds(stated, replicas, moment)
    if replicas is usual:
        return targets
    return replace(targets, replicas=replace(replicas, usual=usual))


def change_over_time(targets: Targets) -> bool:
    """Whether a feature changes the bounds at some time."""
    return any(part.key.of(targets.features) is not None for part in BOUNDS.parts())


def greatest_maximum(targets: Targets) -> int | None:
    """The greatest count that the bounds allow at any time; None without a maximum."""
    if targets.replicas.maximum is None:
        return None
    stated = ((part, part.key.of(targets.features)) for part in BOUNDS.parts())
    others = (part.greatest(one) for part, one in stated if one is not None)
    return max((targets.replicas.maximum, *others))
