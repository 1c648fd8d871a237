"""The lead of a node, measured from pods while a buffer is named; reported with the buffer."""

from collections.abc import Mapping
from dataclasses import replace

from servingslo.features.node_buffer.decision import NODE_BUFFER, REPLICAS, TARGETS
from servingslo.features.node_buffer.waits import (
    LONGEST_WAIT_SECONDS,
    REMEMBERED_WAITS,
    WAITS,
    NodeWaits,
    observe,
)
from servingslo.policy.insights import Insight
from servingslo.policy.replicas.context import TickContext


class WaitsInsight(Insight):
    """Waits of pods for a node."""

    key = WAITS

    def learn(self, context: TickContext, memories: Mapping[str, object]) -> NodeWaits | None:
        """The waits with this tick's pods; None if no buffer is named."""
        if TARGETS.of(context.targets.features) is None:
            return None
        state, now = WAITS.of(memories) or NodeWaits(), context.now_seconds
        standing = context.observation.in_force.get(NODE_BUFFER)
        if standing is not None and standing.values.get(REPLICAS):
            state = replace(state, ahead_seconds=now)
        return observe(state, context.observation.pods, now)

    def dump(self, memory: object) -> list[int] | None:
        """The waits, in whole seconds."""
        return [round(one) for one in memory.seconds] if isinstance(memory, NodeWaits) else None

    def load(self, stored: object, _now_seconds: float) -> NodeWaits | None:
        """The reverse; None for a malformed value."""
        if not isinstance(stored, list) or len(stored) > REMEMBERED_WAITS:
            return None
        if not all(type(one) is int and 0 <= one <= LONGEST_WAIT_SECONDS for one in stored):
            return None
        return NodeWaits(seconds=tuple(map(float, stored)))


PART = WaitsInsight()
