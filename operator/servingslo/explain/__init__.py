"""Which reports of a decision are there, for people and machines?

Log line, events, metric samples, text, summary, document; room: conditions. All derive from it.
Must not import the controller or anything that does I/O.
"""

from servingslo.explain.changes import (
    Change,
    ChangeOutcome,
    change_event,
    change_line,
    not_written,
    replica_count_change,
)
from servingslo.explain.conditions.condition import Condition, ConditionStatus, ConditionType
from servingslo.explain.conditions.derived import conditions, not_ready
from servingslo.explain.document import as_dict, summary_line
from servingslo.explain.events import Event, EventType, events
from servingslo.explain.log_line import log_line, material_change
from servingslo.explain.text import text

__all__ = [
    "Change",
    "ChangeOutcome",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "Event",
    "EventType",
    "as_dict",
    "change_event",
    "change_line",
    "conditions",
    "events",
    "log_line",
    "material_change",
    "not_ready",
    "not_written",
    "replica_count_change",
    "summary_line",
    "text",
]
