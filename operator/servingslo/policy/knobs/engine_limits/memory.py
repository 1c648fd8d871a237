"""What is remembered of batch limits from tick to tick, and how it is stored."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servingslo.estimation.sample import EngineSample
from servingslo.policy.knobs.decisions import BATCH_LIMITS, LimitsPlan
from servingslo.policy.knobs.engine_limits.limit_reverts import LimitReverts

# Where limits were taken back none in their direction are tried again while the same load may recur
# daily: what was found is a little different at every search.
REFUSED_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The two batch limits of an engine."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChange:
    """A change of batch limits that was ordered, and how the workload did before it.

    observed_before: measured percentile of each objective before the change, by its key, seconds.
    rollback: it takes an earlier change back, and is not judged itself. replicas_saved: what the
    new limits were expected to do without. flags_added: limits whose flags the command line did not
    have, which are removed again where the change is taken back. judged_up_to_per_second: arrivals
    at a replica beyond which latency says nothing of the limits; None where it is not known.
    beyond_seconds: when more than that last arrived.
    """

    at_seconds: float
    before: BatchLimits
    after: BatchLimits
    observed_before: Mapping[str, float]
    rollback: bool = False
    replicas_saved: int = 0
    flags_added: tuple[str, ...] = ()
    judged_up_to_per_second: float | None = None
    beyond_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWrite:
    """Limits of ours in the pod template: what stood before them, and when they were ordered.

    queue: the engines' own bound, before and after; empty where it stays.
    """

    at_seconds: float
    before: BatchLimits
    after: BatchLimits
    queue: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """The last search over batch limits: when, for which mix and limits, and what it found.

    held_per_replica_per_second: arrivals at a replica at which the better limits were found to keep
    every objective; 0 where they do not.
    objectives_gained: the better plan keeps objectives that today's cannot within the maximum, or
    comes so much nearer that it is worth a rollout.
    """

    at_seconds: float
    mix_at_seconds: float
    current: BatchLimits
    best: BatchLimits
    today: LimitsPlan
    better: LimitsPlan
    held_per_replica_per_second: float
    objectives_gained: bool

    @property
    def replicas_saved(self) -> int:
        """Replicas that the better plan does without; 0 where it misses an objective.

        What cannot be kept is kept by some requests, and limits that are good for the other
        objectives cost it those.
        """
        return self.today.replicas - self.better.replicas if self.better.meets_objectives else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryMemory:
    """What engines had counted when the comparison with a canary began, by pod and engine.

    since_seconds: when that canary was ordered.
    """

    since_seconds: float
    began_seconds: float
    engines: Mapping[str, EngineSample] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingMemory:
    """Batch limits over time.

    verifying: the change whose effect is not yet judged. refused: limits that made latency worse
    than predicted and were taken back; none in their direction are tried before
    refused_until_seconds. canary: of the one that is compared; begun anew after a restart.
    written: ours in the pod template, until somebody sets others. reverts: who puts others back.
    before_write: the memory to go back to where the write of what was
    ordered last is refused; None once it is known what came of it.
    """

    last_change_seconds: float | None = None
    verifying: BatchChange | None = None
    refused: BatchLimits | None = None
    refused_until_seconds: float | None = None
    search: BatchSearch | None = None
    canary: CanaryMemory | None = None
    written: BatchWrite | None = None
    reverts: LimitReverts | None = None
    before_write: "BatchingMemory | None" = field(default=None, compare=False, repr=False)

    def settle(self, *, written: bool) -> "BatchingMemory":
        """The memory after what was ordered last was written, or refused."""
        before = self.before_write
        kept = self if written or before is None else before
        return replace(kept, before_write=None)


def memory_of(knobs: Mapping[str, object]) -> BatchingMemory:
    """The memory of batch limits among those of all knobs."""
    found = knobs.get(BATCH_LIMITS)
    return found if isinstance(found, BatchingMemory) else BatchingMemory()
