"""What is remembered of batch limits from tick to tick, and how it is stored over a restart."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from servingslo.estimation.sample import EngineSample
from servingslo.estimation.stored_fields import (
    TEXT,
    Keys,
    One,
    Record,
    Scalar,
    count_of,
    items_of,
    number_of,
)
from servingslo.models.engine.service_time import EngineLimits
from servingslo.models.objectives import Objective
from servingslo.policy.inputs import LIMIT_FIELDS, BatchingTargets
from servingslo.policy.knobs.decisions import BATCH_LIMITS, LimitsPlan
from servingslo.policy.knobs.trial.stages import REFUSED_SECONDS, Began, Refusal
from servingslo.policy.replicas.prepared_model import Mix
from servingslo.policy.replicas.reverts import manager_in_words, pause_seconds

# Pause for batch limits, from the first revert on, because each revert has cost two rollouts. An
# hour is Flux's longest usual interval; refused limits are left alone for a day.
FIRST_LIMITS_PAUSE_SECONDS = 3600.0
LONGEST_LIMITS_PAUSE_SECONDS = 86400.0


class BatchLimits(NamedTuple):
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
    when more than that last arrived. queue: the engines' own bound, before and after; empty if it
    stays.
    """

    at_seconds: float
    before: BatchLimits
    after: BatchLimits
    observed_before: Mapping[str, float] = field(default_factory=dict)
    rollback: bool = False
    replicas_saved: int = 0
    flags_added: tuple[str, ...] = ()
    judged_up_to_per_second: float | None = None
    beyond_seconds: float | None = None
    queue: tuple[int | None, ...] = ()


class SearchBasis(NamedTuple):
    """What the best limits follow from, and when they were searched for it.

    mix_error_ratio: standard error of its means. tpot_ratio: time per output token, observed over
    predicted. stated: the engine's limits, the objectives, and what may be changed.
    """

    at_seconds: float
    mix: Mix
    mix_error_ratio: float
    tpot_ratio: float
    stated: tuple[EngineLimits, tuple[Objective, ...], BatchingTargets]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """The last search over batch limits, and its plans for a mix and load of at_seconds.

    held_per_replica_per_second: arrivals at a replica at which the better limits were found to keep
    every objective; 0 if they do not. objectives_gained: the better plan keeps objectives that the
    present one cannot keep within the maximum, or comes close enough to be worth a rollout.
    """

    basis: SearchBasis
    at_seconds: float
    mix: Mix
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
class LimitReverts:
    """How often our batch limits were reverted to the same ones in a row.

    limits: those, sequences and tokens. at_seconds: time of the last revert. by: the field manager
    that did it, None if the target does not report it.
    """

    limits: BatchLimits
    count: int
    at_seconds: float
    by: str | None = None

    @property
    def until_seconds(self) -> float:
        """End of the pause."""
        return self.at_seconds + pause_seconds(
            self.count - 1, FIRST_LIMITS_PAUSE_SECONDS, LONGEST_LIMITS_PAUSE_SECONDS
        )

    def pauses(self, now_seconds: float) -> bool:
        """Whether the limits are left alone now; setting a clock back does not extend a pause."""
        return self.at_seconds <= now_seconds < self.until_seconds

    @property
    def detail(self) -> str:
        """Which client reverted which limits how often, for people."""
        sequences, budget = self.limits
        times = "once" if self.count == 1 else f"{self.count} times in a row"
        return (
            f"put back to max_num_seqs {sequences}, max_num_batched_tokens {budget} {times} by "
            f"{manager_in_words(self.by)}: batch limits are left to it for a while"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingMemory:
    """Memory of batch limits.

    verifying: the change whose effect is not yet judged. refusal: limits that made latency worse
    than predicted and were taken back. canary: the comparison in progress. written: our limits in
    the pod template, until another client sets others. reverts: the client that puts others back.
    before_write: the memory to restore if the last ordered write is refused; None once its outcome
    is known.
    """

    last_change_seconds: float | None = None
    verifying: BatchChange | None = None
    refusal: Refusal | None = None
    search: BatchSearch | None = None
    canary: Began[EngineSample] | None = None
    written: BatchChange | None = None
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


def count_limits_revert(
    before: LimitReverts | None, *, limits: BatchLimits, by: str | None, now_seconds: float
) -> LimitReverts:
    """The memory after another client restored the limits from before our change."""
    count = 1 if before is None or before.limits != limits else before.count + 1
    return LimitReverts(limits=limits, count=count, at_seconds=now_seconds, by=by)


def expire_limits_reverts(
    before: LimitReverts | None, *, since_seconds: float, now_seconds: float
) -> LimitReverts | None:
    """The memory while our limits stay in the template: none once they have stayed long enough."""
    if before is None:
        return None
    stood = now_seconds - max(since_seconds, before.at_seconds)
    return None if stood >= before.until_seconds - before.at_seconds else before


def dump_batching(memory: BatchingMemory) -> dict[str, object]:
    """An open change, refused limits, our limits in the template, and who puts them back."""
    refusal = memory.refusal
    return {
        **_MEMORY.dump(memory),
        "refused": None if refusal is None else list(refusal.setting),
        "refusedUntil": None if refusal is None else refusal.until_seconds,
    }


def load_batching(stored: object, now_seconds: float) -> BatchingMemory:
    """The reverse: absent or malformed values are left unknown, and no time is in the future."""
    memory = _MEMORY.load(stored)
    if memory is None or not isinstance(stored, Mapping):
        return BatchingMemory()
    limits, until = _limits_of(stored.get("refused")), number_of(stored.get("refusedUntil"))
    refusal = None
    if limits is not None and until is not None:
        refusal = Refusal(setting=limits, until_seconds=min(until, now_seconds + REFUSED_SECONDS))
    last, change = memory.last_change_seconds, _by(memory.verifying, now_seconds)
    if change is not None and change.beyond_seconds is not None:
        change = replace(change, beyond_seconds=min(change.beyond_seconds, now_seconds))
    return replace(
        memory,
        last_change_seconds=None if last is None else min(last, now_seconds),
        refusal=refusal,
        verifying=change,
        written=_by(memory.written, now_seconds),
        reverts=_by(memory.reverts, now_seconds),
    )


def _by(one: Any, now_seconds: float) -> Any:
    """The same, of now if its time is in the future."""
    return None if one is None else replace(one, at_seconds=min(one.at_seconds, now_seconds))


def _limits_of(stored: object) -> BatchLimits | None:
    numbers = [count_of(value) for value in items_of(stored)]
    if len(numbers) != len(LIMIT_FIELDS) or not all(numbers):
        return None
    return BatchLimits(*(number or 0 for number in numbers))


def _queue_of(stored: object) -> tuple[int | None, ...]:
    queue = tuple(count_of(value) or None for value in items_of(stored))
    return queue if len(queue) == len(LIMIT_FIELDS) else ()


def _observed_of(stored: object) -> dict[str, float]:
    values = stored.items() if isinstance(stored, Mapping) else ()
    return {str(key): found for key, one in values if (found := number_of(one)) is not None}


def _round_observed(observed: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in observed.items()}


def _flags_of(stored: object) -> tuple[str, ...]:
    return tuple(name for name in LIMIT_FIELDS if name in items_of(stored))


_TIME, _LIMITS = Scalar(float, number_of), Scalar(list, _limits_of)
_ORDERED = {
    "at": One("at_seconds", _TIME),
    "before": One("before", _LIMITS),
    "after": One("after", _LIMITS),
}
_QUEUE = One("queue", Scalar(list, _queue_of))
_CHANGE = {
    "observed": One("observed_before", Scalar(_round_observed, _observed_of)),
    "rollback": One("rollback", Scalar(bool, lambda one: one is True)),
    "saved": One("replicas_saved", Scalar(int, count_of)),
    "added": One("flags_added", Scalar(list, _flags_of)),
    "judgedUpTo": One("judged_up_to_per_second", _TIME),
    "beyond": One("beyond_seconds", _TIME),
}
# Times to a tenth of a second.
_REVERTS = {
    "limits": One("limits", _LIMITS),
    "count": One("count", Scalar(int, lambda one: count_of(one) or None)),
    "at": One("at_seconds", Scalar(lambda one: round(one, 1), number_of)),
    "by": One("by", TEXT),
}
_WRITTEN = Record(BatchChange, Keys({**_ORDERED, "queue": _QUEUE}, needed=[*_ORDERED]))
_VERIFYING = Record(BatchChange, Keys({**_ORDERED, **_CHANGE}, needed=[*_ORDERED]))
_REVERTED = Record(LimitReverts, Keys(_REVERTS, needed=["limits", "count", "at"]))
_PARTS = {
    "lastChange": One("last_change_seconds", _TIME),
    "written": One("written", _WRITTEN),
    "reverts": One("reverts", _REVERTED),
    "verifying": One("verifying", _VERIFYING),
}
_MEMORY = Record(BatchingMemory, Keys(_PARTS))
