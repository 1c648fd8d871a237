"""Fields of other people's objects: what forbids to set one, and what is put back.

A value is put back that nobody may ask for any more.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.marked_objects import NOT_MANAGED, RELEASED, is_released
from servingslo.adapters.kubernetes.api.owned_fields import Owned, OwnedObject, OwnedValues, Value
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.protocol import Acting
from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    InvalidNameError,
    LimitNotEnforceableError,
    NotFoundError,
    PermissionDeniedError,
    WriteConflictError,
)
from servingslo.explain.changes import Change, not_written
from servingslo.policy.inputs import SignalProblem, Targets
from servingslo.reasons import Reason

_Standing = TypeVar("_Standing")
_NO_USE = (LimitNotEnforceableError, NotFoundError, InvalidNameError)
# Nothing new is written while a switch is off, except by a process from before that leads again.
_LOOK_SECONDS = 600.0


class PartlyUndoneError(ClusterError):
    """Some objects could not be looked for. made: the changes of the others."""

    def __init__(self, errors: Sequence[ClusterError], made: Sequence[Change]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.made = tuple(made)


@dataclass(slots=True)
class Switch:
    """Whether the administrator lets something be written. What stands when it is off is put back.

    Every actuator asks it for whom values stay, and what stands on the cluster.
    """

    on: bool
    _nothing_until: float = float("-inf")

    def acting(self, acting: Acting) -> Acting:
        """The same; nobody acts while it is off."""
        return acting if self.on else lambda ref: None if acting(ref) is None else ()

    async def standing(
        self, read: Callable[[], Awaitable[Sequence[_Standing]]]
    ) -> Sequence[_Standing]:
        """What the operator wrote that stands now. Raises: ClusterError.

        While it is off, it is looked for once in ten minutes, and only where that is permitted:
        without it being on there is usually no right to look.
        """
        if not self.on and SystemClock.elapsed_seconds() < self._nothing_until:
            return ()
        try:
            found = await read()
        except PermissionDeniedError:
            if self.on:
                raise
            found = ()
        if not found:
            self._nothing_until = SystemClock.elapsed_seconds() + _LOOK_SECONDS
        return found

    async def undo(
        self,
        field: OwnedValues[Value, Owned],
        acting: Acting,
        wanted: Callable[[Value, Owned, Sequence[Targets]], bool],
        change: Callable[[Value, Owned], Change],
    ) -> list[Change]:
        """Put back the field in each object whose resource is gone or does not want it any more."""
        found, acting = list[Change](), self.acting(acting)
        for one in await self.standing(field.owned):
            owner = one.owner
            if owner is None:
                continue
            pools = acting(ResourceRef(namespace=one.namespace, name=owner.name, uid=owner.uid))
            if pools is not None and not wanted(one, owner, pools):
                found += await undone(field.put_back(one), change(one, owner))
        return found


def refusal(error: ClusterError, no_use: Reason) -> SignalProblem:
    """Why a field may not be set. no_use: the reason if it would not have the wanted effect."""
    if isinstance(error, _NO_USE):
        reason = no_use
    elif isinstance(error, PermissionDeniedError):
        reason = Reason.NOT_PERMITTED
    else:
        reason = Reason.CLUSTER_UNAVAILABLE
    return SignalProblem(reason=reason, detail=str(error))


def forbidden(
    one: OwnedObject[Any], released: Reason, set_by_another: Reason, other: str
) -> SignalProblem | None:
    """Why the field of an object may not be set; None if it may be.

    released, set_by_another: the reasons. other: what another client or resource set; '' if none.
    """
    if not one.managed:
        return SignalProblem(reason=Reason.NOT_PERMITTED, detail=NOT_MANAGED)
    if is_released(one.item):
        return SignalProblem(reason=released, detail=RELEASED)
    return SignalProblem(reason=set_by_another, detail=other) if other else None


async def undone(ending: Awaitable[int], change: Change) -> Sequence[Change]:
    """Put a value back; return the change with its outcome, or nothing if none was left."""
    try:
        if not await ending:
            return ()
    except NotFoundError:
        return ()
    except ClusterUnavailableError as error:
        return (not_written(change, Reason.WRITE_FAILED, str(error), answered=False),)
    except ClusterError as error:
        conflict = isinstance(error, WriteConflictError)
        reason = Reason.WRITE_CONFLICT if conflict else Reason.WRITE_FAILED
        return (not_written(change, reason, str(error), answered=True),)
    return (change,)
