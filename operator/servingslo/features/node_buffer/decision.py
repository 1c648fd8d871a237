"""A buffer of nodes: what is asked for, in force and decided."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from servingslo.plugins import Key
from servingslo.policy.knobs.decisions import KnobDecision
from servingslo.reasons import Reason

NODE_BUFFER = "node-buffer"
# Values in force: replicas of the CapacityBuffer now, those that its owner states, and the most
# that the administrator allows. OURS is there only if those of now are the operator's.
REPLICAS, OWN, MOST, OURS = "replicas", "own", "most", "ours"
MEASURED, STATED = "measured", "stated"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTargets:
    """Nodes that are ordered ahead.

    buffer: a CapacityBuffer of the namespace. max_replicas: the most of it, None for no bound of
    the resource's own. lead_seconds: from the order of a node until pods run there; None if it is
    measured.
    """

    buffer: str
    max_replicas: int | None = None
    lead_seconds: float | None = None


TARGETS: Key[NodeTargets] = Key("nodes", NodeTargets)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferDecision(KnobDecision):
    """The replicas of a CapacityBuffer.

    reason: NODES_SUFFICIENT, NODES_BUFFERED, MAX_BUFFER_REACHED, NODE_LEAD_UNKNOWN, or why nothing
    is written. before, after: replicas in force and to set; equal if they stay. own: those that the
    owner states. needed: that the forecast asks for beyond the ordered ones, None if unknown.
    ahead_replicas: that it asks for in all, ahead_seconds from now. lead_seconds, lead_source: of a
    node; None while it is unknown. change_reason: why it changes, None if it does not. puts_back:
    the owner's replicas are restored. unread: those in force are not known.
    """

    buffer: str
    before: int = 0
    after: int = 0
    own: int = 0
    needed: int | None = None
    ahead_replicas: int | None = None
    ahead_seconds: float | None = None
    lead_seconds: float | None = None
    lead_source: str | None = None
    change_reason: Reason | None = None
    puts_back: bool = False
    unread: bool = False

    def hold(self) -> "BufferDecision":
        """Keep the replicas in force."""
        return replace(self, after=self.before, change_reason=None, puts_back=False)


def buffer_of(knobs: Mapping[str, object]) -> BufferDecision | None:
    """What is decided of the buffer, from the decisions of all knobs; None if none is asked for."""
    found = knobs.get(NODE_BUFFER)
    return found if isinstance(found, BufferDecision) else None
