"""How long a node takes, from this workload's own pods: those that waited for one.

The wait is from a pod's creation until it is scheduled, of pods that were seen unschedulable. A pod
that is old when it is first seen so was held by a gate, or waited before this memory began: its
wait is not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from servingslo.estimation.sample import PodSample
from servingslo.features.node_buffer.decision import TARGETS
from servingslo.plugins import Key

REMEMBERED_WAITS = 8
# Nodes with eight cards take minutes, up to a quarter of an hour. A longer wait is a shortage,
# which no order ahead ends. Judgement; measured by waits in clusters that send theirs.
LONGEST_WAIT_SECONDS = 1800.0
# Age at which a pod that waits is seen for the first time: two ticks, as they are by default.
SEEN_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWaits:
    """Pods that wait for a node, and the last waits that ended.

    waiting: by pod, whether its wait may be a rest of one. seconds: waits, oldest first.
    ahead_seconds: when nodes were last ordered ahead; None if never. They come within a node lead,
    so that a pod may find one half-way there after the buffer gave way to it.
    """

    waiting: tuple[tuple[str, bool], ...] = ()
    seconds: tuple[float, ...] = ()
    ahead_seconds: float | None = None

    @property
    def lead_seconds(self) -> float | None:
        """The median wait; None before one was measured."""
        return sorted(self.seconds)[len(self.seconds) // 2] if self.seconds else None


WAITS: Key[NodeWaits] = Key(TARGETS.name, NodeWaits)


def observe(state: NodeWaits, pods: Sequence[PodSample], now_seconds: float) -> NodeWaits:
    """The waits with this tick's pods."""
    waiting, ended = dict(state.waiting), list(state.seconds)
    ahead = state.ahead_seconds
    ordered_ahead = ahead is not None and now_seconds - ahead <= (
        state.lead_seconds or LONGEST_WAIT_SECONDS
    )
    still: dict[str, bool] = {}
    for pod in pods:
        if pod.unschedulable_reason is not None and not pod.deleting:
            late = pod.age_seconds is None or pod.age_seconds > SEEN_SECONDS
            if pod.name in waiting or not late:
                still[pod.name] = waiting.get(pod.name, ordered_ahead)
        elif pod.name in waiting and pod.scheduled_after_seconds is not None:
            wait, lead = pod.scheduled_after_seconds, state.lead_seconds
            # A node that was ordered ahead comes sooner: such a wait shows only a longer lead.
            whole = not waiting[pod.name] or lead is None or wait > lead
            if whole and 0.0 < wait <= LONGEST_WAIT_SECONDS:
                ended.append(wait)
    seconds = tuple(ended[-REMEMBERED_WAITS:])
    return replace(state, waiting=tuple(still.items()), seconds=seconds)
