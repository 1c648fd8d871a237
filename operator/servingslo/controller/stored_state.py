"""What a status keeps for the operator itself: what was learnt, in one string.

Versions before kept an object in `status.learned.state`; it is still read.
"""

from collections.abc import Mapping
from typing import Any

from servingslo.explain.format import timestamp
from servingslo.packing import packed, unpacked
from servingslo.policy.state import PlannerState
from servingslo.policy.stored_state import learned


def learned_field(state: PlannerState, now_seconds: float) -> dict[str, Any]:
    """`status.learned`: what must survive a restart, packed, and when it was written."""
    return {"savedAt": timestamp(now_seconds), "data": packed(learned(state, now_seconds))}


def learned_of(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a status holds of what was learnt; None where it holds nothing.

    Empty where it cannot be read: `lost_parts` then says so.
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
