"""The part of a decision that is about batch limits."""

from dataclasses import dataclass, replace
from enum import StrEnum

from servingslo.policy.batchers import BatcherLimits
from servingslo.reasons import Reason


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
class BatchingDecision:
    """Batch limits in force and recommended; apply says whether the pod template is patched.

    today: the plan with the limits in force. better: the cheapest plan there is, beside it; None
    where the limits in force are as good. rollout: the price of going there. flags_removed: limits
    whose flags go from the command line, because they were not there before what is taken back.
    flags_added: those that are given by a flag for the first time.
    queue: the engines' own bound, before and after; empty where it stays.
    canary: what apply does where one pod goes first; None: all pods at once. detail: for people.
    """

    reason: Reason
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
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherDecision:
    """Limits of dynamic batches that are set on servers while they run.

    before: that most pods have. after: that all are to have, None where none are known or what
    stood before ours is put back. pods: on which they are set at this tick. puts_back: there what
    stood before ours takes over.
    """

    reason: Reason
    before: BatcherLimits | None = None
    after: BatcherLimits | None = None
    pods: tuple[str, ...] = ()
    puts_back: bool = False
    detail: str = ""


def told_of_batcher(
    batching: BatchingDecision, batcher: BatcherDecision | None
) -> BatchingDecision:
    """What is told of batch limits, where they are those of dynamic batches."""
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
