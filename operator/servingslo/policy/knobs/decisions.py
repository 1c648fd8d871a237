"""What knobs decided, as data: what a decision, its document and its reports are made from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Self

from servingslo.reasons import Reason

# Names of the built-in knobs; of those that change something on the cluster, their actuators'.
BATCH_LIMITS = "batch-limits"
ADMISSION = "admission"
GATEWAY_LIMITS = "gateway-limits"
DYNAMIC_BATCHING = "dynamic-batching"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobDecision:
    """What was decided of one knob, and why. detail: for people."""

    reason: Reason
    detail: str = ""

    @property
    def saving(self) -> int | None:
        """Replicas that what is recommended does without; None where nothing is recommended."""
        return None

    def hold(self) -> Self:
        """The decision where nothing may be written at this tick."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsPlan:
    """Replicas, batch limits and bound on running + waiting that belong together.

    replicas: for the demand planned for, failures tolerated included, before other guards.
    in_flight_limit: of one replica. meets_objectives: whether so many keep them all; where no count
    keeps one, the replicas are those for the others.
    """

    replicas: int
    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight_limit: int
    meets_objectives: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCost:
    """What a change of batch limits costs: every pod is started anew beside the one it replaces.

    surge_replica_seconds: a cold start for each of the restarted replicas. payback_seconds: time
    after which the replicas saved have paid for it; None where none are saved.
    """

    restarted_replicas: int
    surge_replica_seconds: float
    payback_seconds: float | None


class CanaryAct(StrEnum):
    """What is done about new batch limits that one pod has first.

    HOLD: nothing goes on by itself. LEAVE: what somebody else set meanwhile stands. FREE: pods that
    block the way back are evicted.
    """

    START = "start"
    HOLD = "hold"
    COMPLETE = "complete"
    TAKE_BACK = "take-back"
    LEAVE = "leave"
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingDecision(KnobDecision):
    """Batch limits in force and recommended; apply says whether the pod template is patched.

    today: the plan with the limits in force. better: the cheapest plan there is, beside it; None
    where the limits in force are as good. rollout: the price of going there. flags_removed: limits
    whose flags go from the command line, because they were not there before what is taken back.
    flags_added: those that are given by a flag for the first time.
    queue: the engines' own bound, before and after; empty where it stays.
    canary: what apply does where one pod goes first; None: all pods at once. detail: for people.
    """

    apply: bool = False
    container: str | None = None
    current_max_num_seqs: int | None = None
    recommended_max_num_seqs: int | None = None
    current_max_num_batched_tokens: int | None = None
    recommended_max_num_batched_tokens: int | None = None
    replicas_saved: int | None = None
    today: LimitsPlan | None = None
    better: LimitsPlan | None = None
    rollout: RolloutCost | None = None
    flags_removed: tuple[str, ...] = ()
    flags_added: tuple[str, ...] = ()
    queue: tuple[int | None, ...] = ()
    canary: CanaryAct | None = None

    @property
    def saving(self) -> int | None:
        """Replicas that the better plan does without."""
        return self.replicas_saved

    def hold(self) -> Self:
        """The limits in force stay."""
        return replace(self, apply=False)


class BatcherLimits(NamedTuple):
    """As a model's configuration has them; max_queue_size 0 for any number."""

    max_batch_size: int
    max_queue_delay_microseconds: int
    max_queue_size: int

    def __str__(self) -> str:
        """'8/20000/64'."""
        return "/".join(map(str, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherDecision(KnobDecision):
    """Limits of dynamic batches that are set on servers while they run.

    before: that most pods have. after: that all are to have, None where none are known or what
    stood before ours is put back. pods: on which they are set at this tick. puts_back: there what
    stood before ours takes over.
    """

    before: BatcherLimits | None = None
    after: BatcherLimits | None = None
    pods: tuple[str, ...] = ()
    puts_back: bool = False

    def hold(self) -> Self:
        """No pod is set."""
        return replace(self, pods=())


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDecision(KnobDecision):
    """Admission bounds from ready replicas.

    queue_limit: requests that may wait at one replica.
    in_flight_limit: requests that may run or wait there.
    """

    admitted_rate_per_second: float | None = None
    queue_limit: int | None = None
    in_flight_limit: int | None = None
    shed_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitDecision(KnobDecision):
    """The bound on requests in flight at each proxy of a gateway.

    reason: LIMIT_VERIFIED, LIMIT_UNVERIFIED, LIMIT_NOT_HELD, LIMIT_OPENED, or why none is written.
    before: in force now, None where the object states none. after: the one to set; equal where it
    stays. change_reason: why it changes, None where it does not. puts_back: what stood before the
    operator's is put back, to the letter.
    """

    kind: str
    object_name: str
    proxies: int = 1
    before: int | None = None
    after: int | None = None
    change_reason: Reason | None = None
    puts_back: bool | None = None


# What a document of a decision calls the built-in knobs, and what it holds of each.
DOCUMENT_NAMES: Mapping[str, str] = {
    BATCH_LIMITS: "batching",
    ADMISSION: "admission",
    GATEWAY_LIMITS: "gateway_limit",
    DYNAMIC_BATCHING: "batcher",
}
DECISION_TYPES: Mapping[str, type[KnobDecision]] = {
    BATCH_LIMITS: BatchingDecision,
    ADMISSION: AdmissionDecision,
    GATEWAY_LIMITS: LimitDecision,
    DYNAMIC_BATCHING: BatcherDecision,
}


def report_batching(
    batching: BatchingDecision, batcher: BatcherDecision | None
) -> BatchingDecision:
    """What is reported of batch limits: those of dynamic batches where servers have them."""
    if batcher is None or batching.reason is Reason.BATCHING_OFF:
        return batching
    change = ""
    if batcher.after is not None and batcher.after != batcher.before:
        change = ", ".join(
            f"{name} {before} → {after}"
            for name, before, after in zip(
                BatcherLimits._fields, batcher.before or (), batcher.after, strict=False
            )
            if before != after
        )
    detail = ": ".join(part for part in (change, batcher.detail) if part)
    return replace(batching, reason=batcher.reason, detail=detail)
