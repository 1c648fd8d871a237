"""State that a status stores for the operator itself: learnt state, in one string.

Earlier versions stored an object in `status.learned.state`; it is still read.
"""

from collections.abc import Mapping
from typing import Any

from servingslo.explain.format import timestamp
from servingslo.packing import packed, unpacked
from servingslo.policy.state import PlannerState
from servingslo.policy.stored_state import learned


def learned_field(state: PlannerState, now_seconds: float) -> dict[str, Any]:
    """`status.learned`: state that must survive a restart, packed, and when it was written."""
    return {"savedAt": timestamp(now_seconds), "data": packed(learned(state, now_seconds))}


def learned_of(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The learnt state in a status; None if it has none.

    Empty if it cannot be read: `lost_parts` then reports that.
    """
    field: Mapping[str, Any] = status.get("learned") or {}
    if not field.get("data"):
        state: Mapping[str, Any] | None = field.get("state")
        return state
    try:
        found = unpacked(str(field["data"]))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
