"""Under which of the release's Leases a resource is: the holder of that one decides it."""

from collections.abc import Callable, Mapping
from typing import Any

from servingslo.plugins import Aspect
from servingslo.records import record


@record(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a resource is.

    lease: the number of the Lease; 0 is the only one unless a feature divides the resources. moves:
    from one Lease to another; a record with fewer of them than a known one is older.
    """

    lease: int = 0
    moves: int = 0


PLACE: Aspect[Callable[[Mapping[str, Any]], Place]] = Aspect("place")
_ONLY = Place()


def place_of(status: Mapping[str, Any]) -> Place:
    """The place that a status names."""
    return next((read(status) for read in PLACE.parts()), _ONLY)
