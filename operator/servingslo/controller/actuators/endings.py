"""Putting a value back that nobody may ask for any more: which ones those are, what came of it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from servingslo.adapters.clock import SystemClock
from servingslo.controller.actuators.protocol import Acting
from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    NotFoundError,
    PermissionDeniedError,
    WriteConflictError,
)
from servingslo.explain.changes import Change, not_written
from servingslo.reasons import Reason

_Standing = TypeVar("_Standing")
# Nothing new is written while a switch is off, except by a process from before that leads again.
_LOOK_SECONDS = 600.0


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
