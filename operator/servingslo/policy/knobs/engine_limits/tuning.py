"""Batch limits: the largest batch that meets the inter-token objective and fits memory.

A change restarts every pod. So it is recommended first, applied only if it is worth a rollout, to
one pod before the others, and taken back if the measured latency is worse.
"""

from dataclasses import replace

from servingslo.estimation.law.trust import LawSource
from servingslo.models.engine.service_time import EngineLimits
from servingslo.policy.context import TickContext
from servingslo.policy.inputs import LIMIT_FIELDS, BatchingMode, BatchingRollout
from servingslo.policy.knobs.decisions import BatchingDecision, CanaryAct, LimitsPlan
from servingslo.policy.knobs.engine_limits.aftermath import (
    judge,
    judged_up_to_per_second,
    observed_seconds,
    with_load,
)
from servingslo.policy.knobs.engine_limits.canary import refused_limits
from servingslo.policy.knobs.engine_limits.memory import (
    REFUSED_SECONDS,
    BatchChange,
    BatchingMemory,
    BatchLimits,
    BatchSearch,
    BatchWrite,
)
from servingslo.policy.knobs.engine_limits.outcome import (
    Tuned,
    batching_decision,
    change_step,
    rollout_cost,
)
from servingslo.policy.knobs.engine_limits.put_back import (
    left_to_reverter,
    told_of_reverts,
    with_reverts,
)
from servingslo.policy.knobs.engine_limits.search import BatchCase, FoundLimits, best_limits
from servingslo.policy.knobs.engine_limits.watch import no_canary, standing_limits, watched
from servingslo.policy.knobs.in_flight.engines import engine_queue
from servingslo.policy.replicas.behavior import SelectPolicy
from servingslo.policy.replicas.prepared_model import PreparedModel
from servingslo.policy.replicas.requirement import Requirement, sizing_case
from servingslo.policy.replicas.sizing import Load
from servingslo.policy.replicas.step_down import warming_up
from servingslo.reasons import Reason

# The search costs hundreds of predictions; once a minute is enough to follow changes of the mix.
SEARCH_INTERVAL_SECONDS = 60.0
# Neighbouring limits behave alike: a smaller change is not recommended.
SAME_LIMIT_RATIO = 0.1
# A rollout is worth it if its savings pay for it within this time. The limits fit the mix of
# requests of this hour; later, others may be better.
PAYBACK_SECONDS = 3600.0


def tune_batching(
    context: TickContext,
    requirement: Requirement,
    memory: BatchingMemory,
    *,
    scaling: bool,
    acting: bool,
) -> Tuned:
    """Find the batch limits in force and the better ones, and decide whether to change them now.

    scaling: the replica count changes at this tick. acting: decisions are carried out.
    """
    memory = with_load(context, memory)
    if context.targets.batching.mode is BatchingMode.OFF:
        return Tuned(decision=BatchingDecision(reason=Reason.BATCHING_OFF), memory=memory)
    memory = with_reverts(context, memory)
    tuned = _tune(context, requirement, memory, scaling=scaling, acting=acting)
    return told_of_reverts(context, tuned, acting=acting)


def _tune(
    context: TickContext,
    requirement: Requirement,
    memory: BatchingMemory,
    *,
    scaling: bool,
    acting: bool,
) -> Tuned:
    """The same as `tune_batching`, without regard to other clients that put limits back."""
    targets = context.targets.batching
    under_way = watched(context, memory, acting=acting)
    if under_way is not None:
        return under_way
    limits = context.estimate.limits
    if limits is None or limits.batcher is not None:
        decision = BatchingDecision(reason=Reason.LIMITS_UNKNOWN, container=targets.container)
        return Tuned(decision=decision, memory=memory)
    current = _limits_of(limits)
    if (
        context.prepared is None
        or not context.trusted
        or context.signals.no_metrics is not None
        or requirement.sized is None
    ):
        decision = batching_decision(context, current, None, context.model_reason)
        return Tuned(decision=decision, memory=memory)
    verdict = judge(context, memory, current)
    memory = verdict.memory
    if verdict.rollback is not None:
        return _roll_back(
            context, memory, current, verdict.rollback, scaling=scaling, acting=acting
        )
    search = memory.search
    if (
        search is None
        or search.current != current
        or (
            search.mix_at_seconds != context.prepared.at_seconds
            and context.now_seconds - search.at_seconds >= SEARCH_INTERVAL_SECONDS
        )
    ):
        search = _search(context, context.prepared, requirement.sized.load, current)
        memory = replace(memory, search=search)
    moving = scaling or context.coming > 0
    tuned = _choose_change(
        context,
        memory,
        search,
        leaving=_is_leaving(context, requirement),
        moving=moving,
        acting=acting,
    )
    return replace(tuned, steps=(*verdict.steps, *tuned.steps))


def _limits_of(limits: EngineLimits) -> BatchLimits:
    return BatchLimits(
        max_num_seqs=limits.max_num_seqs, max_num_batched_tokens=limits.max_num_batched_tokens
    )


def _search(
    context: TickContext, prepared: PreparedModel, load: Load, current: BatchLimits
) -> BatchSearch:
    """The cheapest plan for the demand planned for, compared with the limits in force."""
    found = best_limits(
        BatchCase(
            workload=prepared.workload,
            law=prepared.law,
            limits=prepared.limits,
            case=sizing_case(context, prepared),
            load=load,
            objectives=context.targets.objectives,
            targets=context.targets.batching,
            wait_budget_seconds=context.wait_budget_seconds,
        ),
        current,
    )
    today, better = _within_bounds(context, found.today), _within_bounds(context, found.better)
    return BatchSearch(
        at_seconds=context.now_seconds,
        mix_at_seconds=prepared.at_seconds,
        current=current,
        best=BatchLimits(
            max_num_seqs=better.max_num_seqs, max_num_batched_tokens=better.max_num_batched_tokens
        ),
        today=today,
        better=better,
        held_per_replica_per_second=load.rate_per_second / max(found.better.replicas, 1)
        if found.better.meets_objectives
        else 0.0,
        objectives_gained=not today.meets_objectives
        and (better.meets_objectives or _shortage_pays(context, found)),
    )


def _shortage_pays(context: TickContext, found: FoundLimits) -> bool:
    """Whether added capacity alone pays for a rollout, if both plans exceed the maximum."""
    if found.today.replicas <= context.bounds.maximum:
        return False
    spared_ratio = 1.0 - 1.0 / found.gain_ratio
    return spared_ratio * PAYBACK_SECONDS >= context.cold_start_seconds


def _within_bounds(context: TickContext, plan: LimitsPlan) -> LimitsPlan:
    """The plan with spare replicas, within the counts that may be ordered.

    A plan beyond those counts misses an objective, whatever it saves.
    """
    wanted = plan.replicas + context.targets.replicas.tolerated_failures + context.excluded
    bounds = context.bounds
    return replace(
        plan,
        replicas=max(min(wanted, bounds.maximum), bounds.minimum),
        meets_objectives=plan.meets_objectives and plan.replicas <= bounds.maximum,
    )


def _choose_change(
    context: TickContext,
    memory: BatchingMemory,
    search: BatchSearch,
    *,
    leaving: bool,
    moving: bool,
    acting: bool,
) -> Tuned:
    """Decide whether the limits found are applied now, and if not, why not.

    moving: the count changes or pods are starting. leaving: the count is about to fall.
    """
    current, best = search.current, search.best
    queue, not_worth = engine_queue(context, search), _not_worth_it(context, search)
    alone = queue is not None and queue.is_due
    if alone and (_alike(best, current) or any(holds for holds, _ in not_worth)):
        best, not_worth = current, ()
    elif _alike(best, current):
        decision = batching_decision(
            context, current, current, Reason.BATCHING_IN_SYNC, search=search
        )
        return Tuned(decision=decision, memory=memory)
    checks = (
        *_forbidden(context, acting=acting),
        (left_to_reverter(context, memory), Reason.BATCHING_REVERTED),
        *not_worth,
        (_was_refused(context, memory, current, best), Reason.BATCHING_ROLLED_BACK),
        (no_canary(context) is not None, Reason.BATCHING_CANARY_NOT_POSSIBLE),
        (context.observation.rollout_in_progress, Reason.ROLLOUT_IN_PROGRESS),
        (moving, Reason.PENDING_PODS),
        # Pods that are about to be removed need no restart, and a rollout blocks a scale-down.
        (leaving, Reason.STABILIZED),
        (_too_soon(context, memory), Reason.BATCHING_TOO_SOON),
    )
    reason = next((reason for holds, reason in checks if holds), None)
    first = context.targets.batching.rollout is BatchingRollout.CANARY
    change = Reason.BATCHING_CANARY_STARTED if first else Reason.BATCHING_CHANGED
    decision = batching_decision(
        context, current, best, reason or change, apply=reason is None, search=search
    )
    if reason is not None:
        refused = no_canary(context)
        told = reason is Reason.BATCHING_CANARY_NOT_POSSIBLE and refused is not None
        decision = replace(decision, detail=refused if refused is not None and told else "")
        return Tuned(decision=decision, memory=memory)
    added = _flags_absent(context)
    act = CanaryAct.START if first else None
    decision = replace(decision, canary=act, flags_added=added)
    if queue is not None:
        bound = queue.today if best == current else queue.better
        decision = replace(decision, queue=(queue.before, bound))
    ordered = BatchChange(
        at_seconds=context.now_seconds,
        before=current,
        after=best,
        observed_before=observed_seconds(context),
        judged_up_to_per_second=judged_up_to_per_second(context, search),
        replicas_saved=max(search.replicas_saved, 0),
        flags_added=added,
    )
    memory = replace(
        memory,
        last_change_seconds=context.now_seconds,
        verifying=ordered,
        written=BatchWrite(
            at_seconds=context.now_seconds, before=current, after=best, queue=decision.queue
        ),
        before_write=replace(memory, before_write=None),
    )
    step = change_step(ordered, decision.reason, decision)
    return Tuned(decision=decision, memory=memory, steps=(step,))


def _flags_absent(context: TickContext) -> tuple[str, ...]:
    """Limits whose flags no serving container's command line has; none if that is unknown."""
    launches = [pod.launch for pod in context.serving if pod.launch is not None]
    if not launches:
        return ()
    had = {name for launch in launches for name in launch.flags}
    return tuple(name for name in LIMIT_FIELDS if name not in had)


def _forbidden(context: TickContext, *, acting: bool) -> tuple[tuple[bool, Reason], ...]:
    """The facts that forbid any change."""
    refused = context.observation.batching_change_refused
    return (
        (context.targets.batching.mode is not BatchingMode.AUTO or not acting,
         Reason.BATCHING_RECOMMENDED),
        (not context.limits.pod_templates_patched, Reason.NOT_PERMITTED),
        (refused is not None, refused.reason if refused else Reason.NOT_PERMITTED),
        # Stated limits override the command line: a change there would have no effect on the plan.
        (_stated(context), Reason.LIMITS_STATED),
        # Do not restart pods because of a law that may still be refuted.
        (context.estimate.law.source is LawSource.STATED, Reason.LAW_FROM_SPEC),
    )  # fmt: skip


def _stated(context: TickContext) -> bool:
    stated = context.targets.stated_limits
    return stated.max_num_seqs is not None or stated.max_num_batched_tokens is not None


def _not_worth_it(context: TickContext, search: BatchSearch) -> tuple[tuple[bool, Reason], ...]:
    """Whether the gain does not outweigh the rollout."""
    payback = rollout_cost(context, search).payback_seconds
    too_dear = payback is None or payback > PAYBACK_SECONDS
    return ((too_dear and not search.objectives_gained, Reason.BATCHING_GAIN_TOO_SMALL),)


def _too_soon(context: TickContext, memory: BatchingMemory) -> bool:
    """Whether the last change is too recent, or not judged yet."""
    last = memory.last_change_seconds
    least = context.targets.batching.min_interval_seconds
    return memory.verifying is not None or (last is not None and context.now_seconds - last < least)


def _is_leaving(context: TickContext, requirement: Requirement) -> bool:
    """Whether the count is about to fall, after its window or once demand is known."""
    if context.targets.behavior.scale_down.select_policy is SelectPolicy.DISABLED:
        return False
    unknown = warming_up(context) is not None and requirement.proposal.replicas < context.current
    return unknown or max(requirement.safe_replicas, context.bounds.minimum) < context.current


def _was_refused(
    context: TickContext, memory: BatchingMemory, current: BatchLimits, best: BatchLimits
) -> bool:
    """Whether a limit would move in the direction of a change that was taken back."""
    refused, until = memory.refused, memory.refused_until_seconds
    if refused is None or until is None or context.now_seconds >= until:
        refused = refused_limits(standing_limits(context))
    if refused is None:
        return False
    moves = (
        (best.max_num_seqs - current.max_num_seqs, refused.max_num_seqs - current.max_num_seqs),
        (
            best.max_num_batched_tokens - current.max_num_batched_tokens,
            refused.max_num_batched_tokens - current.max_num_batched_tokens,
        ),
    )
    return any(now * then > 0 for now, then in moves)


def _roll_back(
    context: TickContext,
    memory: BatchingMemory,
    current: BatchLimits,
    change: BatchChange,
    *,
    scaling: bool,
    acting: bool,
) -> Tuned:
    """Take back a change that made latency worse, if changes may be applied."""
    allowed = acting and not scaling and context.limits.pod_templates_patched
    if not allowed or context.observation.batching_change_refused is not None:
        decision = batching_decision(context, current, change.before, Reason.BATCHING_ROLLED_BACK)
        return Tuned(decision=decision, memory=replace(memory, verifying=change))
    back = BatchChange(
        at_seconds=context.now_seconds,
        before=change.after,
        after=change.before,
        observed_before=observed_seconds(context),
        rollback=True,
    )
    # Whether or not the write succeeds, these limits have proved worse.
    judged = replace(
        memory,
        refused=change.after,
        refused_until_seconds=context.now_seconds + REFUSED_SECONDS,
        before_write=None,
    )
    memory = replace(
        judged,
        last_change_seconds=context.now_seconds,
        verifying=back,
        written=None,
        before_write=replace(judged, verifying=change),
    )
    decision = batching_decision(
        context, current, change.before, Reason.BATCHING_ROLLED_BACK, apply=True
    )
    decision = replace(decision, flags_removed=change.flags_added)
    step = change_step(back, decision.reason, decision)
    return Tuned(decision=decision, memory=memory, steps=(step,))


def _alike(one: BatchLimits, other: BatchLimits) -> bool:
    """Whether two limits behave alike."""
    ratio = abs(one.max_num_seqs - other.max_num_seqs) / max(other.max_num_seqs, 1)
    return ratio <= SAME_LIMIT_RATIO and one.max_num_batched_tokens == other.max_num_batched_tokens
