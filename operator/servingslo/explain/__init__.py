"""Everything people and machines are told of a decision, derived from the decision alone."""

from servingslo.explain.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    conditions,
    not_ready,
)
from servingslo.explain.document import as_dict, summary_line
from servingslo.explain.events import (
    Event,
    EventType,
    events,
    scaled_event,
    write_failed_event,
)
from servingslo.explain.log_line import log_line, material_change
from servingslo.explain.samples import GAUGES, GaugeFamily, MetricSample, metric_samples
from servingslo.explain.text import text

__all__ = [
    "GAUGES",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "Event",
    "EventType",
    "GaugeFamily",
    "MetricSample",
    "as_dict",
    "conditions",
    "events",
    "log_line",
    "material_change",
    "metric_samples",
    "not_ready",
    "scaled_event",
    "summary_line",
    "text",
    "write_failed_event",
]
