"""Nodes before pods: the replicas of a CapacityBuffer, from the plan one node lead further ahead.

Never fewer than its owner states: what the operator adds is what it takes back.
"""

from dataclasses import replace

from servingslo.features.node_buffer.ahead import required_ahead
from servingslo.features.node_buffer.decision import (
    MEASURED,
    MOST,
    NODE_BUFFER,
    OURS,
    OWN,
    REPLICAS,
    STATED,
    TARGETS,
    BufferDecision,
    NodeTargets,
)
from servingslo.features.node_buffer.steps import Wanted, next_buffer
from servingslo.features.node_buffer.waits import WAITS, NodeWaits
from servingslo.plugins import Key
from servingslo.policy.inputs import InForce, SignalProblem
from servingslo.policy.knobs.decisions import KnobDecision
from servingslo.policy.knobs.protocol import Outcome, PlainKnob, Turn
from servingslo.policy.replicas.ownership import acting_limit
from servingslo.reasons import Reason


class NodeBufferKnob(PlainKnob):
    """The replicas of the buffer, if the spec names one."""

    name = NODE_BUFFER
    key: Key[KnobDecision] = Key(TARGETS.name, BufferDecision)

    def decide(self, turn: Turn, memory: object) -> Outcome:
        """Decide the replicas; nothing if no buffer is named."""
        context = turn.context
        asked = TARGETS.of(context.targets.features)
        standing = context.observation.in_force.get(NODE_BUFFER)
        if asked is None or standing is None:
            return Outcome(None)
        limit, owner = acting_limit(context.targets, context.limits), context.owner
        # A target that is gone, at zero or scaled by another asks for no nodes.
        stopped = limit is None and owner is not None
        told = _told(asked, standing, WAITS.of(context.state.features) or NodeWaits())
        wanted, lead = Wanted(), told.lead_seconds
        required = max(turn.requirement.replicas, context.bounds.minimum)
        count = max(context.current, min(required, context.bounds.maximum))
        if lead is not None:
            now = context.now_seconds
            # What stands when this process begins was wanted until then.
            begun = Wanted(counts=((now, count + told.before),))
            known = memory if isinstance(memory, Wanted) else begun
            ahead = None if stopped else required_ahead(context, context.lead_seconds + lead)
            wanted = known.after(ahead, now, lead)
            told = replace(
                told,
                ahead_seconds=context.lead_seconds + lead,
                ahead_replicas=ahead,
                needed=None if ahead is None else max(ahead - count, 0),
            )
        if not (turn.acting or stopped):
            return Outcome(replace(told, reason=limit or told.reason), wanted)
        if standing.refused is not None:
            kept = memory if told.unread else wanted
            return Outcome(_refused(told, standing, standing.refused), kept)
        blind = context.signals.no_metrics
        reason = None if blind is None else blind.reason
        if lead is None:
            reason = Reason.NODE_LEAD_UNKNOWN
        allowed = standing.values.get(MOST) or 0
        most = allowed if asked.max_replicas is None else min(asked.max_replicas, allowed)
        after = min(next_buffer(told.before, told.needed or 0, wanted.peak, count), most)
        return Outcome(_moved(told, max(after, told.own), most, reason), wanted)


def _told(asked: NodeTargets, standing: InForce, waits: NodeWaits) -> BufferDecision:
    """What is known before anything is decided."""
    before, own = (standing.values.get(name) or 0 for name in (REPLICAS, OWN))
    lead, source = waits.lead_seconds, MEASURED
    if asked.lead_seconds is not None:
        lead, source = asked.lead_seconds, STATED
    return BufferDecision(
        reason=Reason.NODES_SUFFICIENT,
        buffer=asked.buffer,
        before=before,
        after=before,
        own=own,
        lead_seconds=lead,
        lead_source=None if lead is None else source,
        unread=REPLICAS not in standing.values,
    )


def _moved(told: BufferDecision, after: int, most: int, because: Reason | None) -> BufferDecision:
    """The decision that sets these replicas. because: why nothing is known of the need."""
    reason = Reason.NODES_BUFFERED if after > told.own else Reason.NODES_SUFFICIENT
    if (told.needed or 0) > max(most, told.own):
        reason = Reason.MAX_BUFFER_REACHED
    told = replace(told, reason=because or reason)
    if after == told.before:
        return told
    raised = after > told.before
    return replace(
        told,
        after=after,
        change_reason=Reason.BUFFER_RAISED if raised else Reason.BUFFER_LOWERED,
        puts_back=after == told.own,
    )


def _refused(told: BufferDecision, standing: InForce, problem: SignalProblem) -> BufferDecision:
    """Write no more; put the owner's replicas back if those in force are ours."""
    told = replace(told, reason=problem.reason, detail=problem.detail)
    if problem.reason is Reason.CLUSTER_UNAVAILABLE or OURS not in standing.values:
        return told
    return replace(told, after=told.own, change_reason=Reason.BUFFER_PUT_BACK, puts_back=True)


PART = NodeBufferKnob()
