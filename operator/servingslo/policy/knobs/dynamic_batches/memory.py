"""Memory of limits of dynamic batches, and its effect on pods and plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from servingslo.policy.inputs import Observation
from servingslo.policy.knobs.decisions import BatcherLimits
from servingslo.policy.knobs.dynamic_batches.search import BatcherSearch
from servingslo.policy.knobs.dynamic_batches.servers import PodBatcher

# A reload of a large model takes longer than the wait for its answer.
ASK_AGAIN_SECONDS = 60.0
# After this many requests, a pod that does not take limits counts with those that it has.
MOST_ASKED = 3
LIMITS_NOT_SET = "limits-not-set"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """When a pod was last asked to take limits, and how often in a row."""

    at_seconds: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherMemory:
    """The wanted limits and the progress towards them; after a restart they are read from pods.

    first_pod: the only one that has them; None if all are to have them. proven: every pod has had
    them, so that a pod without them is new or has drifted. before: the limits of the first pod
    before it got them; former: the same if they were ours, to restore. mean_microseconds: of a
    request on that pod before. seen, seen_seconds: counters of the pods when the comparison began,
    and that time. loaded_seconds: when any pod was last asked. refused: limits that were taken
    back.
    """

    wanted: BatcherLimits | None = None
    first_pod: str | None = None
    proven: bool = False
    before: BatcherLimits | None = None
    former: BatcherLimits | None = None
    mean_microseconds: float | None = None
    seen: Mapping[str, PodBatcher] = field(default_factory=dict)
    seen_seconds: float = 0.0
    asked: Mapping[str, Asked] = field(default_factory=dict)
    changed_seconds: float | None = None
    loaded_seconds: float | None = None
    refused: BatcherLimits | None = None
    refused_seconds: float | None = None
    search: BatcherSearch | None = field(default=None, compare=False, repr=False)

    def count(self, pod: str) -> int:
        """How often in a row a pod was asked."""
        return self.asked[pod].count if pod in self.asked else 0


def reloaded(memory: BatcherMemory | None, now_seconds: float) -> bool:
    """Whether a model was loaded recently: its counters were reset, and requests are missed."""
    since = None if memory is None else memory.loaded_seconds
    return since is not None and now_seconds - since < ASK_AGAIN_SECONDS


def unset_pods(
    memory: BatcherMemory | None, observation: Observation, batchers: Mapping[str, PodBatcher]
) -> tuple[str, ...]:
    """Ready pods that lack the limits that all others have: no capacity until those are set.

    A pod that cannot be read yet gets as much time as a pod that is asked to take them.
    """
    if memory is None or memory.wanted is None or not memory.proven:
        return ()
    ready = [pod for pod in observation.pods if pod.ready and not pod.deleting]
    return tuple(
        pod.name
        for pod in ready
        if (
            (pod.ready_for_seconds or 0.0) < ASK_AGAIN_SECONDS
            if pod.name not in batchers
            else batchers[pod.name].limits != memory.wanted and memory.count(pod.name) < MOST_ASKED
        )
    )
