"""What is remembered of limits of dynamic batches, and what it makes of pods and of the plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from servingslo.policy.inputs import Observation
from servingslo.policy.knobs.decisions import BatcherLimits
from servingslo.policy.knobs.dynamic_batches.search import BatcherSearch
from servingslo.policy.knobs.dynamic_batches.servers import PodBatcher

# A reload of a large model takes longer than the answer to it is waited for.
ASK_AGAIN_SECONDS = 60.0
# A pod that does not take limits after so many requests counts with those that it has.
MOST_ASKED = 3
LIMITS_NOT_SET = "limits-not-set"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """When a pod was asked last to take limits, and how often in a row."""

    at_seconds: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherMemory:
    """Limits that are to be in force, and how far they have come; a restart reads them from pods.

    first_pod: the one that has them alone; None where all are to have them. proven: every pod has
    had them, so that one without is new or has drifted. before: what stood when that one got them;
    former: the same where it was ours, to go back to. mean_microseconds: of a request there before.
    seen, seen_seconds: what pods had counted when the comparison began, and when that was.
    loaded_seconds: when any pod was asked last. refused: limits that were taken back.
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
    """Whether a model was loaded a moment ago: its counters begin anew, and what came is missed."""
    since = None if memory is None else memory.loaded_seconds
    return since is not None and now_seconds - since < ASK_AGAIN_SECONDS


def unset_pods(
    memory: BatcherMemory | None, observation: Observation, batchers: Mapping[str, PodBatcher]
) -> tuple[str, ...]:
    """Ready pods that lack the limits that all others have: no capacity until those are set.

    One that cannot be read yet is given as long as one that is asked to take them.
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
