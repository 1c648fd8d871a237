"""Nodes that are ordered ahead, for people: log line, explanation and condition."""

from collections.abc import Iterator

from servingslo.explain.conditions.condition import ConditionStatus, ConditionType, Verdict
from servingslo.explain.features import Reports, Text
from servingslo.explain.format import counted, seconds
from servingslo.features.node_buffer.buffers import KIND
from servingslo.features.node_buffer.decision import BufferDecision, buffer_of
from servingslo.reasons import Reason

_MESSAGES = {
    Reason.NODES_SUFFICIENT: "no node beyond those of ordered pods will be needed",
    Reason.NODES_BUFFERED: "nodes are ordered ahead",
    Reason.MAX_BUFFER_REACHED: "more nodes will be needed than may be ordered ahead",
    Reason.NODE_LEAD_UNKNOWN: "how long a node takes is unknown: no pod waited for one yet, and "
    "spec.nodes.lead is not stated",
}
_UNKNOWN = frozenset({Reason.NODE_LEAD_UNKNOWN, Reason.CLUSTER_UNAVAILABLE})


class NodeBufferText(Text):
    """The replicas of the buffer, why they are so, and whether it can be used."""

    def essence(self, reports: Reports) -> Reason | None:
        """Why the replicas are what they are."""
        decided = buffer_of(reports)
        return None if decided is None else decided.reason

    def knob_pairs(self, knobs: Reports) -> Iterator[tuple[str, str]]:
        """The replicas and their reason."""
        if (decided := buffer_of(knobs)) is not None:
            yield "nodes", decided.reason.value
            if decided.after:
                yield "node_buffer", str(decided.after)

    def knob_lines(self, knobs: Reports) -> Iterator[str]:
        """'Nodes: NodesBuffered, 3 replicas of CapacityBuffer/llama; ...'."""
        if (decided := buffer_of(knobs)) is None:
            return
        now = "unknown replicas" if decided.unread else counted(decided.after, "replica")
        yield f"Nodes: {decided.reason.value}, {now} of {KIND}/{decided.buffer}{_ahead(decided)}"
        if decided.lead_seconds is not None:
            yield f"  a node takes {seconds(decided.lead_seconds)}, {decided.lead_source}"
        if decided.detail:
            yield f"  {decided.detail}"

    def verdicts(self, knobs: Reports) -> Iterator[tuple[ConditionType, Verdict]]:
        """Whether the buffer can be used; nothing if none is named."""
        if (decided := buffer_of(knobs)) is not None:
            yield ConditionType.NODE_BUFFER_USABLE, buffer_verdict(decided)


def buffer_verdict(decided: BufferDecision) -> Verdict:
    """Whether the buffer can be used. Its replicas change often, so they are in the status only."""
    said = _MESSAGES.get(decided.reason, "its replicas are not changed")
    message = f"{KIND}/{decided.buffer}: {said}"
    if decided.reason not in _MESSAGES and decided.detail:
        message = f"{message}: {decided.detail}"
    status = ConditionStatus.TRUE if decided.reason in _MESSAGES else ConditionStatus.FALSE
    if decided.reason in _UNKNOWN:
        status = ConditionStatus.UNKNOWN
    return Verdict(status, decided.reason, message)


def _ahead(decided: BufferDecision) -> str:
    if decided.ahead_replicas is None or decided.ahead_seconds is None:
        return ""
    count = counted(decided.ahead_replicas, "replica")
    return f"; {count} needed in {seconds(decided.ahead_seconds)}"


PART = NodeBufferText()
