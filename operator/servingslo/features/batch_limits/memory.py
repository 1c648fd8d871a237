"""What is remembered of batch limits from tick to tick, and how it is stored over a restart."""

from dataclasses import dataclass, replace
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
from servingslo.policy.knobs.trial.stages import REFUSED_SECONDS, Began
from servingslo.policy.replicas.prepared_model import Mix
from servingslo.policy.replicas.reverts import manager_in_words
from servingslo.policy.rules.batch_search import BatchLimits, LimitsPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChange:
    """A change of batch limits. queue: the engines' own bound, before and after; empty if it stays.

    at_seconds: when it was ordered.
    """

    at_seconds: float
    before: BatchLimits
    after: BatchLimits
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

    objectives_gained: the better plan keeps objectives that the present one cannot keep within the
    maximum, or comes close enough to be worth a rollout.
    """

    basis: SearchBasis
    at_seconds: float
    mix: Mix
    current: BatchLimits
    best: BatchLimits
    today: LimitsPlan
    better: LimitsPlan
    objectives_gained: bool

    @property
    def replicas_saved(self) -> int:
        """Replicas that the better plan saves; 0 if it misses an objective.

        Some requests meet even an objective that cannot be kept. Limits chosen for the other
        objectives would lose those requests.
        """
        return self.today.replicas - self.better.replicas if self.better.meets_objectives else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsRevert:
    """Our batch limits were reverted to these, and ours are not written for a day.

    at_seconds: time of the revert. by: the field manager that did it, None if the target does not
    report it.
    """

    limits: BatchLimits
    at_seconds: float
    by: str | None = None

    def pauses(self, now_seconds: float) -> bool:
        """Whether the limits are left alone now; setting a clock back does not extend a pause."""
        return self.at_seconds <= now_seconds < self.at_seconds + REFUSED_SECONDS

    @property
    def detail(self) -> str:
        """Which client reverted which limits, for people."""
        sequences, budget = self.limits
        return (
            f"put back to max_num_seqs {sequences}, max_num_batched_tokens {budget} by "
            f"{manager_in_words(self.by)}: batch limits are left to it for a day"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingMemory:
    """Memory of batch limits. The workload itself records a change that one pod has on trial.

    under_way: the change that one pod has, or that a rollout brings to all. began: the comparison
    in progress. written: our limits in the pod template, until another client sets others.
    reverted: the client that put others back.
    """

    last_change_seconds: float | None = None
    under_way: BatchChange | None = None
    search: BatchSearch | None = None
    began: Began[EngineSample] | None = None
    written: BatchChange | None = None
    reverted: LimitsRevert | None = None

    def reverted_lately(self, now_seconds: float) -> LimitsRevert | None:
        """The revert because of which limits are left alone now."""
        return self.reverted if self.reverted and self.reverted.pauses(now_seconds) else None


def dump_batching(memory: BatchingMemory) -> dict[str, object]:
    """The last change, our limits in the template, and who put them back."""
    found: dict[str, object] = _MEMORY.dump(memory)
    return found


def load_batching(stored: object, now_seconds: float) -> BatchingMemory:
    """The reverse: absent or malformed values are left unknown, and no time is in the future."""
    memory = _MEMORY.load(stored)
    if memory is None:
        return BatchingMemory()
    last = memory.last_change_seconds
    return replace(
        memory,
        last_change_seconds=None if last is None else min(last, now_seconds),
        written=_by(memory.written, now_seconds),
        reverted=_by(memory.reverted, now_seconds),
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


# Keys of the stored state.
_TIME, _LIMITS = Scalar(float, number_of), Scalar(list, _limits_of)
_WRITTEN = {
    "at": One("at_seconds", _TIME),
    "before": One("before", _LIMITS),
    "after": One("after", _LIMITS),
    "queue": One("queue", Scalar(list, _queue_of)),
}
_REVERTED = {
    "limits": One("limits", _LIMITS),
    # To a tenth of a second.
    "at": One("at_seconds", Scalar(lambda one: round(one, 1), number_of)),
    "by": One("by", TEXT),
}
_PARTS = {
    "lastChange": One("last_change_seconds", _TIME),
    "written": One(
        "written", Record(BatchChange, Keys(_WRITTEN, needed=["at", "before", "after"]))
    ),
    "reverted": One("reverted", Record(LimitsRevert, Keys(_REVERTED, needed=["limits", "at"]))),
}
_MEMORY = Record(BatchingMemory, Keys(_PARTS))
