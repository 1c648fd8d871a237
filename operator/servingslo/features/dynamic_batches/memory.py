"""Memory of limits of dynamic batches."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from servingslo.features.dynamic_batches.decision import BatcherLimits
from servingslo.features.dynamic_batches.search import BatcherSearch
from servingslo.features.dynamic_batches.servers import PodBatcher
from servingslo.policy.knobs.trial.stages import Began, Refusal

# A reload of a large model takes longer than the wait for its answer.
ASK_AGAIN_SECONDS = 60.0
# After this many requests, a pod that does not take limits counts with those that it has.
MOST_ASKED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """When a pod was last asked to take limits, and how often in a row."""

    at_seconds: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherMemory:
    """The wanted limits and the progress towards them; after a restart they are read from pods.

    first_pod: the only one that has them; None if all are to have them. proven: every pod has had
    them, so that a pod without them is new or has drifted. former: our limits from before the
    trial, to restore. began: the comparison in progress. loaded_seconds: when any pod was last
    asked. refusal: limits that were taken back.
    """

    wanted: BatcherLimits | None = None
    first_pod: str | None = None
    proven: bool = False
    former: BatcherLimits | None = None
    began: Began[PodBatcher] | None = None
    asked: Mapping[str, Asked] = field(default_factory=dict)
    changed_seconds: float | None = None
    loaded_seconds: float | None = None
    refusal: Refusal | None = None
    search: BatcherSearch | None = field(default=None, compare=False, repr=False)

    def refuses(self, limits: BatcherLimits) -> bool:
        """Whether these limits were taken back last."""
        return self.refusal is not None and self.refusal.setting == limits

    def count(self, pod: str) -> int:
        """How often in a row a pod was asked."""
        return self.asked[pod].count if pod in self.asked else 0

    def is_reloading(self, now_seconds: float) -> bool:
        """Whether a model was loaded recently: its counters were reset, and requests are missed."""
        since = self.loaded_seconds
        return since is not None and now_seconds - since < ASK_AGAIN_SECONDS
