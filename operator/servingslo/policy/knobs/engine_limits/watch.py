"""Watch the canary of batch limits on the cluster, and end it."""

from dataclasses import replace

from servingslo.policy.context import TickContext
from servingslo.policy.inputs import BatchingRollout, InForce
from servingslo.policy.knobs.decisions import BATCH_LIMITS, BatchingDecision, CanaryAct
from servingslo.policy.knobs.engine_limits.canary import (
    Canary,
    CanaryVerdict,
    judge_canary,
    standing_canary,
    stuck_pods,
)
from servingslo.policy.knobs.engine_limits.memory import (
    REFUSED_SECONDS,
    BatchChange,
    BatchingMemory,
)
from servingslo.policy.knobs.engine_limits.outcome import Tuned, batching_decision, change_step
from servingslo.reasons import Reason


def standing_limits(context: TickContext) -> InForce | None:
    """The values that the actuator of batch limits found, in addition to the pods'."""
    return context.observation.in_force.get(BATCH_LIMITS)


def no_canary(context: TickContext) -> str | None:
    """Why one pod cannot go first, if it should; None if it can."""
    standing = standing_limits(context)
    if standing is None or standing.refused is None:
        return None
    asked = context.targets.batching.rollout is BatchingRollout.CANARY
    return standing.refused.detail if asked else None


def watched(context: TickContext, memory: BatchingMemory, *, acting: bool) -> Tuned | None:
    """What to do about a canary in progress, or about its remains; None without either."""
    standing = standing_limits(context)
    canary = standing_canary(standing)
    if canary is not None:
        return _watch_canary(context, memory, canary, acting=acting)
    return _free_pods(context, memory, acting=acting) if stuck_pods(standing) else None


def _watch_canary(
    context: TickContext, memory: BatchingMemory, canary: Canary, *, acting: bool
) -> Tuned:
    """The canary in progress, and what to do about it now."""
    change = memory.verifying
    if change is None or change.after != canary.after:
        # Ordered before a restart of the operator.
        change = BatchChange(
            at_seconds=canary.since_seconds,
            before=canary.before,
            after=canary.after,
            observed_before={},
            flags_added=canary.flags_added,
        )
        memory = replace(memory, verifying=change)
    verdict = judge_canary(context, canary, memory.canary)
    memory = replace(memory, canary=verdict.memory)
    act = verdict.act if acting and context.limits.pod_templates_patched else None
    back = act is CanaryAct.TAKE_BACK
    now, wanted = (canary.after, canary.before) if back else (canary.before, canary.after)
    decision = replace(
        batching_decision(context, now, wanted, verdict.reason, apply=act is not None),
        canary=act,
        detail=verdict.detail,
        flags_removed=canary.flags_added if back else (),
        queue=canary.queue[::-1] if back else canary.queue,
    )
    if act is None:
        return Tuned(decision=decision, memory=memory)
    ended = _end_canary(context, memory, change, verdict)
    steps = () if act is CanaryAct.HOLD else (change_step(change, decision.reason, decision),)
    return Tuned(decision=decision, memory=ended, steps=steps)


def _free_pods(context: TickContext, memory: BatchingMemory, *, acting: bool) -> Tuned:
    """Evict pods whose limits were taken back and that never become ready.

    A StatefulSet that starts its pods in order waits for them for ever, even if its template has
    changed since (kubernetes#67250).
    """
    apply = acting and context.limits.pod_templates_patched
    decision = BatchingDecision(
        reason=Reason.BATCHING_CANARY_FAILED,
        apply=apply,
        canary=CanaryAct.FREE if apply else None,
        container=context.targets.batching.container,
        detail="the StatefulSet waits for pods whose limits were taken back",
    )
    return Tuned(decision=decision, memory=memory)


def _end_canary(
    context: TickContext, memory: BatchingMemory, change: BatchChange, verdict: CanaryVerdict
) -> BatchingMemory:
    """The memory once the canary's act is written; unchanged if the write is refused."""
    before = replace(memory, before_write=None)
    if verdict.act is CanaryAct.HOLD:
        return replace(before, before_write=before)
    now = context.now_seconds
    memory = replace(before, last_change_seconds=now, before_write=before)
    if verdict.act is CanaryAct.COMPLETE:
        return replace(memory, verifying=replace(change, at_seconds=now))
    return replace(
        memory,
        verifying=None,
        written=None,
        refused=change.after,
        refused_until_seconds=now + REFUSED_SECONDS,
    )
