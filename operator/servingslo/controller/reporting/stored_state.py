"""State that a status stores for the operator itself: learnt state, in one string.

Earlier versions stored an object in `status.learned.state`; it is still read.
"""

from collections.abc import Mapping
from typing import Any

from servingslo.packing import packed, unpacked
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.pools.stored import learned_fleet
from servingslo.units import timestamp_from_seconds

# What is lost if the API server drops what this process writes, or dropped what another wrote.
PRUNED = "all of it, because the installed CRD is older than the operator: apply crds/"
FORMERLY_PRUNED = "all of it, dropped before this start: by an older CRD (a rollback?) or an edit"


def learned_field(state: FleetState, targets: FleetTargets, now_seconds: float) -> dict[str, Any]:
    """`status.learned`: state that must survive a restart, packed, and when it was written."""
    stored = learned_fleet(state, targets, now_seconds)
    return {"savedAt": timestamp_from_seconds(now_seconds), "data": packed(stored)}


def is_pruned(status: Mapping[str, Any]) -> bool:
    """Whether a status has lost its learnt state: a CRD that was older than the writer drops it."""
    field: Mapping[str, Any] = status.get("learned") or {}
    return bool(field.get("savedAt")) and not (field.get("data") or field.get("state"))


def learned_of(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The learnt state in a status; None if it has none.

    Empty if it was dropped or cannot be read: `lost_parts` then reports that.
    """
    if is_pruned(status):
        return {}
    field: Mapping[str, Any] = status.get("learned") or {}
    if not field.get("data"):
        state: Mapping[str, Any] | None = field.get("state")
        return state
    try:
        found = unpacked(str(field["data"]))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
