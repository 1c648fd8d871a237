"""What came of putting a value back for a resource that no longer asks for it."""

from collections.abc import Awaitable, Sequence

from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    NotFoundError,
    WriteConflictError,
)
from servingslo.explain.changes import Change, not_written
from servingslo.reasons import Reason


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
