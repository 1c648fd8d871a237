"""The decision about batch limits at a tick, with its savings and costs."""

from typing import NamedTuple

from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.knobs.decisions import BatchingDecision, RolloutCost
from servingslo.policy.knobs.engine_limits.memory import (
    BatchChange,
    BatchingMemory,
    BatchLimits,
    BatchSearch,
)
from servingslo.policy.replicas.context import TickContext
from servingslo.reasons import Reason


class Tuned(NamedTuple):
    """The decision about batch limits, the memory for the next tick, and the steps taken."""

    decision: BatchingDecision
    memory: BatchingMemory
    steps: tuple[DecisionStep, ...] = ()


def batching_decision(
    context: TickContext,
    current: BatchLimits,
    best: BatchLimits | None,
    reason: Reason,
    *,
    apply: bool = False,
    search: BatchSearch | None = None,
) -> BatchingDecision:
    """The decision. search: the source of its plans, if a search judged the limits."""
    differs = search is not None and best == search.best != current
    return BatchingDecision(
        reason=reason,
        apply=apply,
        container=context.targets.batching.container,
        current_max_num_seqs=current.max_num_seqs,
        recommended_max_num_seqs=None if best is None else best.max_num_seqs,
        current_max_num_batched_tokens=current.max_num_batched_tokens,
        recommended_max_num_batched_tokens=None if best is None else best.max_num_batched_tokens,
        replicas_saved=search.replicas_saved if search is not None and differs else None,
        today=None if search is None else search.today,
        better=search.better if search is not None and differs else None,
        rollout=rollout_cost(context, search) if search is not None and differs else None,
    )


def rollout_cost(context: TickContext, search: BatchSearch) -> RolloutCost:
    """The cost of changing the limits of all pods, each with a surge pod for its cold start."""
    surge = context.current * context.cold_start_seconds
    saved = search.replicas_saved
    return RolloutCost(
        restarted_replicas=context.current,
        surge_replica_seconds=surge,
        payback_seconds=surge / saved if saved > 0 else None,
    )


def change_step(change: BatchChange, reason: Reason, decision: BatchingDecision) -> DecisionStep:
    """The change with its savings and costs, if they are known."""
    rollout = decision.rollout
    return DecisionStep(
        stage="batching",
        knob="max_num_seqs",
        before=change.before.max_num_seqs,
        after=change.after.max_num_seqs,
        reason=reason,
        inputs={
            "max_num_batched_tokens_before": change.before.max_num_batched_tokens,
            "max_num_batched_tokens_after": change.after.max_num_batched_tokens,
            "replicas_saved": decision.replicas_saved,
            "rollout_replica_seconds": None if rollout is None else rollout.surge_replica_seconds,
            "payback_seconds": None if rollout is None else rollout.payback_seconds,
        },
    )
