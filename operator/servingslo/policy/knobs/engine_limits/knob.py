"""Batch limits as a knob: the largest batch that meets the inter-token objective and fits memory.

A change restarts every pod. So it is recommended first, applied only if it is worth a rollout, to
one pod before the others, and taken back if the measured latency is worse.
"""

from dataclasses import replace

from servingslo.estimation.law.trust import OF_SPEC
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.facts import Facts, LimitsChange
from servingslo.policy.hpa_behavior import SelectPolicy
from servingslo.policy.inputs import LIMIT_FIELDS, BatchingMode, BatchingRollout, InForce
from servingslo.policy.knobs.decisions import BATCH_LIMITS, BatchingDecision, CanaryAct, LimitsPlan
from servingslo.policy.knobs.engine_limits import aftermath, canary, put_back
from servingslo.policy.knobs.engine_limits.memory import (
    BatchChange,
    BatchingMemory,
    BatchLimits,
    BatchSearch,
    SearchBasis,
    dump_batching,
    load_batching,
)
from servingslo.policy.knobs.engine_limits.outcome import (
    Tuned,
    batching_decision,
    change_step,
    rollout_cost,
)
from servingslo.policy.knobs.engine_limits.search import (
    BatchCase,
    FoundLimits,
    best_limits,
    plans_with,
    within_reach,
)
from servingslo.policy.knobs.in_flight.engines import engine_queue
from servingslo.policy.knobs.protocol import Look, Outcome, Turn
from servingslo.policy.knobs.trial.stages import refuse
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.prepared_model import (
    RENEWAL_SECONDS,
    PreparedModel,
    mix_moved_ratio,
)
from servingslo.policy.replicas.proposal import Requirement
from servingslo.policy.replicas.sizing import Load
from servingslo.policy.rules.requirement import sizing_case
from servingslo.policy.rules.step_down import warming_up
from servingslo.reasons import Reason

# The search costs hundreds of predictions. It is repeated after a minute if what the limits follow
# from has moved as far as they must to be recommended, else after PAYBACK_SECONDS.
SEARCH_INTERVAL_SECONDS = 60.0
# Neighbouring limits behave alike: a smaller change is not recommended.
SAME_LIMIT_RATIO = 0.1
# A mix of few requests that moved by less may not have moved at all: standard errors of its means.
MIX_DEVIATIONS = 3.0
# A rollout is worth it if its savings pay for it within this time. The limits fit the mix of
# requests of this hour; later, others may be better.
PAYBACK_SECONDS = 3600.0


class EngineLimitsKnob:
    """Running sequences and tokens of one step, changed by a rollout."""

    name = BATCH_LIMITS
    stored_as = "batching"

    def observe(self, _look: Look, _standing: InForce | None, memory: object) -> Facts | None:
        """The change that a rollout may be carrying out: until it ends, both limits serve."""
        change = _known(memory).verifying
        if change is None or change.rollback:
            return None
        return Facts(rollout=LimitsChange(before=change.before, after=change.after))

    def decide(self, turn: Turn, memory: object) -> Outcome:
        """Decide the limits in force and the better ones, and whether to change them now."""
        return Outcome(*tune_batching(turn, _known(memory)))

    def on_trial(self, memory: object) -> bool:
        """Whether new limits are on a pod, or everywhere and not judged yet."""
        return _known(memory).verifying is not None

    def reconcile(self, memory: object, written: bool) -> object:
        """The memory after the ordered limits were written or refused.

        A refused write is no change: the former memory is kept, and the limits may be tried again.
        """
        return _known(memory).settle(written=written)

    def dump(self, memory: object) -> object:
        """An open change, refused limits, and who puts ours back."""
        return dump_batching(_known(memory))

    def load(self, stored: object, now_seconds: float) -> object:
        """Restore the well-formed part of that."""
        found = load_batching(stored, now_seconds)
        return None if found == BatchingMemory() else found


def _known(memory: object) -> BatchingMemory:
    return memory if isinstance(memory, BatchingMemory) else BatchingMemory()


def tune_batching(turn: Turn, memory: BatchingMemory) -> Tuned:
    """Find the batch limits in force and the better ones, and decide whether to change them now."""
    context = turn.context
    memory = aftermath.note_load(context, memory)
    if not put_back.is_asked(context):
        # What is on trial goes back by the operator itself, which is no other client's revert.
        memory = replace(memory, written=None)
    if context.targets.batching.mode is BatchingMode.OFF:
        return Tuned(BatchingDecision(reason=Reason.BATCHING_OFF), memory)
    memory = put_back.note_reverts(context, memory)
    tuned = canary.watch(turn, memory) or _tune(turn, memory)
    return put_back.report_reverts(turn, tuned)


def _tune(turn: Turn, memory: BatchingMemory) -> Tuned:
    """The same while no canary is in progress and no other client puts limits back."""
    context, requirement = turn.context, turn.requirement
    limits, prepared = context.estimate.limits, context.prepared
    if limits is None or limits.batcher is not None:
        container = context.targets.batching.container
        return Tuned(BatchingDecision(reason=Reason.LIMITS_UNKNOWN, container=container), memory)
    current = BatchLimits(limits.max_num_seqs, limits.max_num_batched_tokens)
    if (
        prepared is None
        or not context.trusted
        or context.signals.no_metrics is not None
        or requirement.sized is None
    ):
        return Tuned(batching_decision(context, current, None, context.model_reason), memory)
    verdict = aftermath.judge(context, memory, current)
    memory = verdict.memory
    if verdict.rollback is not None:
        return _roll_back(turn, memory, current, verdict.rollback)
    search = memory.search
    if search is None or search.current != current or _is_outdated(search, prepared, context):
        search = _searched(context, prepared, requirement.sized.load, current, search)
        memory = replace(memory, search=search)
    tuned = _choose_change(turn, memory, search)
    return tuned._replace(steps=(*verdict.steps, *tuned.steps))


def _is_outdated(search: BatchSearch, prepared: PreparedModel, context: TickContext) -> bool:
    """Whether the plans are of other requests, or of those of long ago."""
    age_seconds = context.now_seconds - search.at_seconds
    if age_seconds < SEARCH_INTERVAL_SECONDS or search.mix == prepared.mix:
        return False
    return age_seconds >= RENEWAL_SECONDS or not _lasts(search.basis, _basis(context, prepared))


def _basis(context: TickContext, prepared: PreparedModel) -> SearchBasis:
    return SearchBasis(
        at_seconds=context.now_seconds,
        mix=prepared.mix,
        mix_error_ratio=context.estimate.length_error_ratio,
        tpot_ratio=context.estimate.calibration.get(LatencyMetric.TPOT, 1.0),
        stated=(prepared.limits, context.targets.objectives, within_reach(context)),
    )


def _lasts(searched: SearchBasis, present: SearchBasis) -> bool:
    """Whether nothing that the best limits follow from has moved since they were searched for."""
    by_chance = MIX_DEVIATIONS * present.mix_error_ratio
    return (
        present.at_seconds - searched.at_seconds < PAYBACK_SECONDS
        and present.stated == searched.stated
        and mix_moved_ratio(searched.mix, present.mix) <= max(SAME_LIMIT_RATIO, by_chance)
        and abs(present.tpot_ratio / searched.tpot_ratio - 1.0) <= SAME_LIMIT_RATIO
    )


def _searched(
    context: TickContext,
    prepared: PreparedModel,
    load: Load,
    current: BatchLimits,
    before: BatchSearch | None,
) -> BatchSearch:
    """The cheapest plan for the demand planned for, compared with the limits in force.

    before: the last search; its limits are planned with again while they are the best.
    """
    batch = BatchCase(
        workload=prepared.workload,
        law=prepared.law,
        limits=prepared.limits,
        # Limits are chosen by what the law says of a whole fleet, not of one replica more.
        case=replace(sizing_case(context, prepared), tried=None),
        load=load,
        objectives=context.targets.objectives,
        targets=within_reach(context),
        wait_budget_seconds=context.wait_budget_seconds,
    )
    basis = _basis(context, prepared)
    if before is not None and before.current == current and _lasts(before.basis, basis):
        basis, found = before.basis, plans_with(batch, current, before.best)
    else:
        found = best_limits(batch, current)
    today, better = _within_bounds(context, found.today), _within_bounds(context, found.better)
    return BatchSearch(
        basis=basis,
        at_seconds=context.now_seconds,
        mix=prepared.mix,
        current=current,
        best=BatchLimits(better.max_num_seqs, better.max_num_batched_tokens),
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


def _choose_change(turn: Turn, memory: BatchingMemory, search: BatchSearch) -> Tuned:
    """Decide whether the limits found are applied now, and if not, why not."""
    context, current, best = turn.context, search.current, search.best
    queue, worth = engine_queue(context, search.today, search.better), _is_worth_it(context, search)
    alone = queue is not None and queue.is_due
    if alone and (_alike(best, current) or not worth):
        best, worth = current, True
    elif _alike(best, current):
        same = Reason.BATCHING_IN_SYNC
        return Tuned(batching_decision(context, current, current, same, search=search), memory)
    not_first = canary.no_canary(context)
    checks = (
        *_forbidden(turn),
        (put_back.is_left_to_reverter(context, memory), Reason.BATCHING_REVERTED),
        (not worth, Reason.BATCHING_GAIN_TOO_SMALL),
        (_was_refused(context, memory, current, best), Reason.BATCHING_ROLLED_BACK),
        (not_first is not None, Reason.BATCHING_CANARY_NOT_POSSIBLE),
        (context.observation.rollout_in_progress, Reason.ROLLOUT_IN_PROGRESS),
        (turn.scaling or context.coming > 0, Reason.PENDING_PODS),
        # Pods that are about to be removed need no restart, and a rollout blocks a scale-down.
        (_is_leaving(context, turn.requirement), Reason.STABILIZED),
        (_too_soon(context, memory), Reason.BATCHING_TOO_SOON),
        (context.facts.trial_elsewhere, Reason.BATCHING_TOO_SOON),
    )
    reason = next((reason for holds, reason in checks if holds), None)
    first = context.targets.batching.rollout is BatchingRollout.CANARY
    change = Reason.BATCHING_CANARY_STARTED if first else Reason.BATCHING_CHANGED
    decision = batching_decision(
        context, current, best, reason or change, apply=reason is None, search=search
    )
    if reason is not None:
        why = not_first if reason is Reason.BATCHING_CANARY_NOT_POSSIBLE else None
        refused = context.observation.batching_change_refused
        if refused is not None and reason is refused.reason:
            why = refused.detail
        return Tuned(replace(decision, detail=why or ""), memory)
    bound = None if queue is None else queue.today if best == current else queue.better
    decision = replace(
        decision,
        canary=CanaryAct.START if first else None,
        flags_added=_flags_absent(context),
        queue=() if queue is None else (queue.before, bound),
    )
    written = BatchChange(
        at_seconds=context.now_seconds, before=current, after=best, queue=decision.queue
    )
    ordered = replace(
        written,
        observed_before=aftermath.greatest_seconds(context),
        judged_up_to_per_second=aftermath.judged_up_to_per_second(context, search),
        replicas_saved=max(search.replicas_saved, 0),
        flags_added=decision.flags_added,
    )
    memory = replace(
        memory,
        last_change_seconds=context.now_seconds,
        verifying=ordered,
        written=written,
        before_write=replace(memory, before_write=None),
    )
    return Tuned(decision, memory, (change_step(ordered, decision.reason, decision),))


def _flags_absent(context: TickContext) -> tuple[str, ...]:
    """Limits whose flags no serving container's command line has; none if that is unknown."""
    launches = [pod.launch for pod in context.serving if pod.launch is not None]
    had = {name for launch in launches for name in launch.flags}
    return tuple(name for name in LIMIT_FIELDS if launches and name not in had)


def _forbidden(turn: Turn) -> tuple[tuple[bool, Reason], ...]:
    """The facts that forbid any change."""
    context = turn.context
    refused, stated = context.observation.batching_change_refused, context.targets.stated_limits
    asked = turn.acting and context.targets.batching.mode is BatchingMode.AUTO
    return (
        (not asked, Reason.BATCHING_RECOMMENDED),
        (not context.limits.pod_templates_patched, Reason.NOT_PERMITTED),
        (refused is not None, refused.reason if refused else Reason.NOT_PERMITTED),
        # Stated limits override the command line: a change there would have no effect on the plan.
        (
            stated.max_num_seqs is not None or stated.max_num_batched_tokens is not None,
            Reason.LIMITS_STATED,
        ),
        # Do not restart pods because of a law that may still be refuted.
        (context.estimate.law.source in OF_SPEC, context.estimate.law.reason),
    )


def _is_worth_it(context: TickContext, search: BatchSearch) -> bool:
    """Whether the gain outweighs the rollout."""
    payback = rollout_cost(context, search).payback_seconds
    return search.objectives_gained or (payback is not None and payback <= PAYBACK_SECONDS)


def _too_soon(context: TickContext, memory: BatchingMemory) -> bool:
    """Whether the last change is too recent, or not judged yet."""
    last = memory.last_change_seconds
    least = context.targets.batching.min_interval_seconds
    return memory.verifying is not None or (last is not None and context.now_seconds - last < least)


def _is_leaving(context: TickContext, requirement: Requirement) -> bool:
    """Whether the count is about to fall, after its window or once demand is known."""
    if context.targets.behavior.scale_down.select_policy is SelectPolicy.DISABLED:
        return False
    unknown = warming_up(context) is not None and requirement.replicas < context.current
    return unknown or max(requirement.safe_replicas, context.bounds.minimum) < context.current


def _was_refused(
    context: TickContext, memory: BatchingMemory, current: BatchLimits, best: BatchLimits
) -> bool:
    """Whether a limit would move in the direction of a change that was taken back."""
    refusal = memory.refusal
    if refusal is None or context.now_seconds >= refusal.until_seconds:
        refusal = canary.standing_refusal(canary.standing_limits(context))
    return refusal is not None and refusal.forbids(current, best, context.now_seconds)


def _roll_back(
    turn: Turn, memory: BatchingMemory, current: BatchLimits, change: BatchChange
) -> Tuned:
    """Take back a change that made latency worse, if changes may be applied."""
    context, now = turn.context, turn.context.now_seconds
    allowed = turn.acting and not turn.scaling and context.limits.pod_templates_patched
    allowed = allowed and context.observation.batching_change_refused is None
    reason = Reason.BATCHING_ROLLED_BACK
    decision = batching_decision(context, current, change.before, reason, apply=allowed)
    if not allowed:
        return Tuned(decision, replace(memory, verifying=change))
    back = BatchChange(
        at_seconds=now,
        before=change.after,
        after=change.before,
        observed_before=aftermath.greatest_seconds(context),
        rollback=True,
    )
    # Whether or not the write succeeds, these limits have proved worse.
    judged = replace(memory, refusal=refuse(change.after, now), before_write=None)
    memory = replace(
        judged,
        last_change_seconds=now,
        verifying=back,
        written=None,
        before_write=replace(judged, verifying=change),
    )
    decision = replace(decision, flags_removed=change.flags_added)
    return Tuned(decision, memory, (change_step(back, reason, decision),))


def _alike(one: BatchLimits, other: BatchLimits) -> bool:
    """Whether two limits behave alike."""
    ratio = abs(one.max_num_seqs - other.max_num_seqs) / max(other.max_num_seqs, 1)
    return ratio <= SAME_LIMIT_RATIO and one.max_num_batched_tokens == other.max_num_batched_tokens
