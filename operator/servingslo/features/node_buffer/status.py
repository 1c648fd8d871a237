"""The part of the status about nodes that are ordered ahead, and its gauges."""

from servingslo.api.status_base import MAX_REASON_LENGTH, StatusModel, StatusPart, told
from servingslo.features.node_buffer.decision import TARGETS, buffer_of


class NodesStatus(StatusModel):
    """What is ordered ahead by spec.nodes."""

    buffer: int | None = told(
        lambda decided: None if decided.unread else decided.after,
        "Replicas of the CapacityBuffer.",
        gauge="servingslo_node_buffer_replicas",
    )
    needed: int | None = told(
        "needed",
        "Replicas that demand needs beyond the ordered ones when a node ordered now can serve.",
        gauge="servingslo_node_buffer_needed_replicas",
    )
    lead_seconds: float | None = told(
        "lead_seconds",
        "Time from the order of a node until a pod runs on it; absent while it is unknown.",
        gauge="servingslo_node_lead_seconds",
    )
    lead_source: str | None = told("lead_source", "Where that time is from: measured or stated.")
    reason: str | None = told(
        "reason", "Why the replicas are what they are.", max_length=MAX_REASON_LENGTH
    )


PART = StatusPart(
    key=TARGETS,
    model=NodesStatus,
    description="Nodes that are ordered ahead, if spec.nodes is set.",
    of=lambda decision: buffer_of(decision.knobs),
)
