"""What is remembered of batch limits from tick to tick, and how it is stored."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servingslo.estimation.sample import EngineSample
from servingslo.policy.knobs.decisions import BATCH_LIMITS, LimitsPlan
from servingslo.policy.knobs.engine_limits.limit_reverts import LimitReverts

# For this long, no limits in the direction of those taken back are tried: the same load may recur
# daily, and each search finds slightly different limits.
REFUSED_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The two batch limits of an engine."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChange:
    """A change of batch limits that was ordered, and the workload's latency before it.

    observed_before: measured percentile of each objective before the change, by its key, seconds.
    rollback: it takes an earlier change back, and is not judged itself. replicas_saved: replicas
    that the new limits were expected to save. flags_added: limits whose flags the command line did
    not have; they are removed if the change is taken back. judged_up_to_per_second: arrivals at a
    replica beyond which latency says nothing about the limits; None if unknown. beyond_seconds:
    when more than that last arrived.
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
    """Our limits in the pod template: the former ones, and when ours were ordered.

    queue: the engines' own bound, before and after; empty if it stays.
    """

    at_seconds: float
    before: BatchLimits
    after: BatchLimits
    queue: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """The last search over batch limits: when, for which mix and limits, and what it found.

    held_per_replica_per_second: arrivals at a replica at which the better limits were found to keep
    every objective; 0 if they do not. objectives_gained: the better plan keeps objectives that the
    present one cannot keep within the maximum, or comes close enough to be worth a rollout.
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
        """Replicas that the better plan saves; 0 if it misses an objective.

        Some requests meet even an objective that cannot be kept. Limits chosen for the other
        objectives would lose those requests.
        """
        return self.today.replicas - self.better.replicas if self.better.meets_objectives else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryMemory:
    """Counters of the engines at the start of the comparison with a canary, by pod and engine.

    since_seconds: when that canary was ordered.
    """

    since_seconds: float
    began_seconds: float
    engines: Mapping[str, EngineSample] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingMemory:
    """Memory of batch limits.

    verifying: the change whose effect is not yet judged. refused: limits that made latency worse
    than predicted and were taken back; none in their direction are tried before
    refused_until_seconds. canary: of the comparison in progress; it starts again after a restart.
    written: our limits in the pod template, until another client sets others. reverts: the client
    that puts others back. before_write: the memory to restore if the last ordered write is refused;
    None once its outcome is known.
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
        """The memory after the last order was written, or refused."""
        before = self.before_write
        kept = self if written or before is None else before
        return replace(kept, before_write=None)


def memory_of(knobs: Mapping[str, object]) -> BatchingMemory:
    """The memory of batch limits, from the memories of all knobs."""
    found = knobs.get(BATCH_LIMITS)
    return found if isinstance(found, BatchingMemory) else BatchingMemory()
