"""Batch limits: the largest batch that meets the inter-token objective and fits memory.

A change restarts every pod, so it is recommended first, applied only where it is worth a rollout,
one at a time, and taken back when the measured latency says so.
"""

from dataclasses import dataclass, replace

from servingslo.models.service_time import EngineLimits
from servingslo.policy.batch_search import BatchCase, best_limits
from servingslo.policy.decision import BatchingDecision, DecisionStep
from servingslo.policy.frame import Frame
from servingslo.policy.inputs import BatchingMode
from servingslo.policy.mix import Mix
from servingslo.policy.sizing import objective_key
from servingslo.policy.state import (
    BatchChange,
    BatchingMemory,
    BatchLimits,
    BatchSearch,
)
from servingslo.policy.wish import Wish, sizing_case
from servingslo.reasons import Reason

# The search costs hundreds of predictions; once a minute follows every change of the mix.
SEARCH_INTERVAL_SECONDS = 60.0
# Neighbouring limits behave alike; a change by less is no recommendation.
SAME_LIMIT_RATIO = 0.1
# After a rollout: until the windows of observed latency hold only the new limits.
VERIFY_AFTER_SECONDS = 180.0
# A change that has not taken force by then was undone by somebody else.
VERIFY_WITHIN_SECONDS = 3600.0
# Measured latency must be this much worse, and beyond its objective, to take a change back.
WORSE_RATIO = 1.1
# Limits that were taken back are not tried again while the same load may recur daily.
REFUSED_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The decision about batch limits, the memory for the next tick, and the steps taken."""

    decision: BatchingDecision
    memory: BatchingMemory
    steps: tuple[DecisionStep, ...] = ()


def tune_batching(frame: Frame, wish: Wish, *, scaling: bool, acting: bool) -> Tuned:
    """The batch limits in force and the better ones, and whether to change them now.

    scaling: the replica count changes at this tick. acting: decisions are carried out.
    """
    memory = frame.state.batching
    targets = frame.targets.batching
    if targets.mode is BatchingMode.OFF:
        return Tuned(decision=BatchingDecision(reason=Reason.BATCHING_OFF), memory=memory)
    limits = frame.estimate.limits
    if limits is None:
        decision = BatchingDecision(reason=Reason.LIMITS_UNKNOWN, container=targets.container)
        return Tuned(decision=decision, memory=memory)
    current = _limits_of(limits)
    if (
        frame.mix is None
        or not frame.trusted
        or frame.signals.blind is not None
        or wish.candidates is None
    ):
        decision = _decision(frame, current, None, frame.estimate.law.reason)
        return Tuned(decision=decision, memory=memory)
    memory, rollback = _verified(frame, memory, current)
    if rollback is not None:
        return _rolled_back(frame, memory, current, rollback, scaling=scaling, acting=acting)
    search = memory.search
    if (
        search is None
        or search.current != current
        or (
            search.mix_at_seconds != frame.mix.at_seconds
            and frame.now_seconds - search.at_seconds >= SEARCH_INTERVAL_SECONDS
        )
    ):
        search = _search(frame, frame.mix, wish, current)
        memory = replace(memory, search=search)
    return _judged(frame, memory, current, search, scaling=scaling, acting=acting)


def _limits_of(limits: EngineLimits) -> BatchLimits:
    return BatchLimits(
        max_num_seqs=limits.max_num_seqs, max_num_batched_tokens=limits.max_num_batched_tokens
    )


def _decision(
    frame: Frame,
    current: BatchLimits,
    best: BatchLimits | None,
    reason: Reason,
    *,
    apply: bool = False,
    replicas_saved: int | None = None,
) -> BatchingDecision:
    return BatchingDecision(
        reason=reason,
        apply=apply,
        container=frame.targets.batching.container,
        current_max_num_seqs=current.max_num_seqs,
        recommended_max_num_seqs=None if best is None else best.max_num_seqs,
        current_max_num_batched_tokens=current.max_num_batched_tokens,
        recommended_max_num_batched_tokens=None if best is None else best.max_num_batched_tokens,
        replicas_saved=replicas_saved,
    )


def _search(frame: Frame, mix: Mix, wish: Wish, current: BatchLimits) -> BatchSearch:
    """The best limits for the demand planned for, and what they save."""
    if wish.candidates is None:
        return BatchSearch(
            at_seconds=frame.now_seconds,
            mix_at_seconds=mix.at_seconds,
            current=current,
            best=current,
            replicas_saved=0,
            objectives_gained=False,
        )
    found = best_limits(
        BatchCase(
            workload=mix.workload,
            law=mix.law,
            limits=mix.limits,
            case=sizing_case(frame, mix),
            load=wish.candidates.load,
            objectives=frame.targets.objectives,
            targets=frame.targets.batching,
            hints=frame.state.hints,
        ),
        current,
    )
    # A count beyond what may be ordered leaves an objective missed, whatever is saved.
    largest = frame.bounds.maximum
    return BatchSearch(
        at_seconds=frame.now_seconds,
        mix_at_seconds=mix.at_seconds,
        current=current,
        best=found.limits,
        replicas_saved=min(found.current_replicas, largest) - min(found.replicas, largest),
        objectives_gained=found.current_replicas > largest >= found.replicas,
    )


def _judged(
    frame: Frame,
    memory: BatchingMemory,
    current: BatchLimits,
    search: BatchSearch,
    *,
    scaling: bool,
    acting: bool,
) -> Tuned:
    """Whether the limits found are applied now, and if not, why not."""
    best = search.best
    if _alike(best, current):
        return Tuned(
            decision=_decision(frame, current, current, Reason.BATCHING_IN_SYNC), memory=memory
        )
    reason = _obstacle(frame, memory, search, scaling=scaling, acting=acting)
    decision = _decision(
        frame,
        current,
        best,
        reason or Reason.BATCHING_CHANGED,
        apply=reason is None,
        replicas_saved=search.replicas_saved,
    )
    if reason is not None:
        return Tuned(decision=decision, memory=memory)
    change = BatchChange(
        at_seconds=frame.now_seconds,
        before=current,
        after=best,
        observed_before=_observed(frame),
    )
    memory = replace(memory, last_change_seconds=frame.now_seconds, verifying=change)
    return Tuned(decision=decision, memory=memory, steps=(_step(change, decision.reason),))


def _obstacle(
    frame: Frame, memory: BatchingMemory, search: BatchSearch, *, scaling: bool, acting: bool
) -> Reason | None:
    """Why a better limit is only recommended at this tick; None when it may be applied."""
    targets = frame.targets.batching
    refused = frame.observation.batching_change_refused
    last = memory.last_change_seconds
    checks = (
        (targets.mode is not BatchingMode.AUTO or not acting, Reason.BATCHING_RECOMMENDED),
        (not frame.limits.batching_apply_enabled, Reason.NOT_PERMITTED),
        (refused is not None, refused.reason if refused else Reason.NOT_PERMITTED),
        (
            search.replicas_saved < 1 and not search.objectives_gained,
            Reason.BATCHING_GAIN_TOO_SMALL,
        ),
        (_was_refused(frame, memory, search.best), Reason.BATCHING_ROLLED_BACK),
        (frame.observation.rollout_in_progress, Reason.ROLLOUT_IN_PROGRESS),
        (scaling or frame.coming > 0, Reason.PENDING_PODS),
        (
            memory.verifying is not None
            or (last is not None and frame.now_seconds - last < targets.min_interval_seconds),
            Reason.BATCHING_TOO_SOON,
        ),
    )
    return next((reason for holds, reason in checks if holds), None)


def _was_refused(frame: Frame, memory: BatchingMemory, best: BatchLimits) -> bool:
    until = memory.refused_until_seconds
    if memory.refused is None or until is None or frame.now_seconds >= until:
        return False
    return _alike(best, memory.refused)


def _verified(
    frame: Frame, memory: BatchingMemory, current: BatchLimits
) -> tuple[BatchingMemory, BatchChange | None]:
    """The memory after judging an open change, and the change to take back, if any."""
    change = memory.verifying
    if change is None or frame.observation.rollout_in_progress or frame.coming:
        return memory, None
    age = frame.now_seconds - change.at_seconds
    if current != change.after:
        gone = replace(memory, verifying=None)
        return (gone, None) if age > VERIFY_WITHIN_SECONDS else (memory, None)
    youngest = min((pod.ready_for_seconds or 0.0 for pod in frame.serving), default=0.0)
    if min(age, youngest) < VERIFY_AFTER_SECONDS:
        return memory, None
    closed = replace(memory, verifying=None)
    return (closed, change) if not change.rollback and _worse(frame, change) else (closed, None)


def _worse(frame: Frame, change: BatchChange) -> bool:
    """Whether an objective is missed by more than before the change."""
    now = _observed(frame)
    for objective in frame.targets.objectives:
        key = objective_key(objective)
        before, after = change.observed_before.get(key), now.get(key)
        if before is None or after is None:
            continue
        if after > objective.threshold_seconds and after > WORSE_RATIO * before:
            return True
    return False


def _rolled_back(
    frame: Frame,
    memory: BatchingMemory,
    current: BatchLimits,
    change: BatchChange,
    *,
    scaling: bool,
    acting: bool,
) -> Tuned:
    """The limits from before a change that made it worse, applied where changes may be applied."""
    allowed = acting and not scaling and frame.limits.batching_apply_enabled
    if not allowed or frame.observation.batching_change_refused is not None:
        decision = _decision(frame, current, change.before, Reason.BATCHING_ROLLED_BACK)
        return Tuned(decision=decision, memory=replace(memory, verifying=change))
    back = BatchChange(
        at_seconds=frame.now_seconds,
        before=change.after,
        after=change.before,
        observed_before=_observed(frame),
        rollback=True,
    )
    memory = replace(
        memory,
        last_change_seconds=frame.now_seconds,
        verifying=back,
        refused=change.after,
        refused_until_seconds=frame.now_seconds + REFUSED_SECONDS,
    )
    decision = _decision(
        frame, current, change.before, Reason.BATCHING_ROLLED_BACK, apply=True, replicas_saved=0
    )
    return Tuned(decision=decision, memory=memory, steps=(_step(back, decision.reason),))


def _step(change: BatchChange, reason: Reason) -> DecisionStep:
    return DecisionStep(
        stage="batching",
        knob="max_num_seqs",
        before=change.before.max_num_seqs,
        after=change.after.max_num_seqs,
        reason=reason,
        inputs={
            "max_num_batched_tokens_before": change.before.max_num_batched_tokens,
            "max_num_batched_tokens_after": change.after.max_num_batched_tokens,
        },
    )


def _observed(frame: Frame) -> dict[str, float]:
    """Each objective's measured percentile, by its key, where there is one."""
    found = {}
    for objective in frame.targets.objectives:
        latency = frame.estimate.observed.get(objective.metric.value)
        seconds = None if latency is None else latency.quantile(objective.percentile)
        if seconds is not None:
            found[objective_key(objective)] = seconds
    return found


def _alike(one: BatchLimits, other: BatchLimits) -> bool:
    """Whether two limits behave alike."""
    ratio = abs(one.max_num_seqs - other.max_num_seqs) / max(other.max_num_seqs, 1)
    return ratio <= SAME_LIMIT_RATIO and one.max_num_batched_tokens == other.max_num_batched_tokens
