"""Batch limits as a knob: the largest batch that meets the inter-token objective and fits memory.

A change restarts every pod. So it is recommended first, applied only if it is worth a rollout, to
one pod before the others, and taken back if that pod serves worse.
"""

from dataclasses import replace

from servingslo.estimation.law.trust import OF_SPEC
from servingslo.features.batch_limits import canary
from servingslo.features.batch_limits.canary import (
    Tuned,
    batching_decision,
    change_step,
    rollout_cost,
)
from servingslo.features.batch_limits.decision import (
    TEMPLATE_LIMITS,
    CanaryAct,
    TemplateDecision,
)
from servingslo.features.batch_limits.engine_bound import engine_queue
from servingslo.features.batch_limits.memory import (
    BatchChange,
    BatchingMemory,
    BatchSearch,
    SearchBasis,
    dump_batching,
    load_batching,
)
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.facts import Facts, LimitsChange
from servingslo.policy.hpa_behavior import SelectPolicy
from servingslo.policy.inputs import LIMIT_FIELDS, BatchingMode, InForce
from servingslo.policy.knobs.decisions import BATCH_LIMITS
from servingslo.policy.knobs.in_flight.engines import standing_limits
from servingslo.policy.knobs.protocol import Look, Outcome, PlainKnob, Turn
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.prepared_model import (
    RENEWAL_SECONDS,
    PreparedModel,
    mix_moved_ratio,
)
from servingslo.policy.replicas.proposal import Requirement
from servingslo.policy.replicas.sizing import Load
from servingslo.policy.rules.batch_search import (
    BatchCase,
    BatchLimits,
    FoundLimits,
    LimitsPlan,
    best_limits,
    plans_with,
    within_reach,
)
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


class EngineLimitsKnob(PlainKnob):
    """Running sequences and tokens of one step, changed by a rollout."""

    name, key = BATCH_LIMITS, TEMPLATE_LIMITS
    stored_as = "batching"

    def observe(self, _look: Look, _standing: InForce | None, memory: object) -> Facts | None:
        """The change that a rollout may be carrying out: until it ends, both limits serve."""
        change = _known(memory).under_way
        if change is None:
            return None
        return Facts(rollout=LimitsChange(before=change.before, after=change.after))

    def decide(self, turn: Turn, memory: object) -> Outcome:
        """Decide the limits in force and the better ones, and whether to change them now."""
        return Outcome(*tune_batching(turn, _known(memory)))

    def on_trial(self, memory: object) -> bool:
        """Whether new limits are on one pod, or on their way to all."""
        return _known(memory).under_way is not None

    def changed_seconds(self, memory: object) -> float | None:
        """When the last canary was begun or ended."""
        return _known(memory).last_change_seconds

    def put_back(self, memory: object) -> object:
        """Who puts limits back, and ours in the template."""
        return _known(memory).reverted, _known(memory).written

    def dump(self, memory: object) -> object:
        """The last change, our limits, and who puts them back."""
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
    under_way = canary.standing_canary(standing_limits(context))
    memory = canary.note_standing(context, memory, under_way)
    if context.targets.batching.mode is BatchingMode.OFF:
        return Tuned(TemplateDecision(reason=Reason.BATCHING_OFF), memory)
    if under_way is not None:
        return canary.watch(turn, memory, under_way)
    tuned = _tune(turn, memory)
    reverted = memory.reverted_lately(context.now_seconds)
    if reverted is None or not turn.acting:
        return tuned
    told = replace(tuned.decision, reason=Reason.BATCHING_REVERTED, detail=reverted.detail)
    return tuned._replace(decision=told)


def _tune(turn: Turn, memory: BatchingMemory) -> Tuned:
    """The same while no canary is in progress."""
    context, requirement = turn.context, turn.requirement
    limits, prepared = context.estimate.limits, context.prepared
    if limits is None or not limits.share_steps:
        container = context.targets.batching.container
        return Tuned(TemplateDecision(reason=Reason.LIMITS_UNKNOWN, container=container), memory)
    current = BatchLimits(limits.max_num_seqs, limits.max_num_batched_tokens)
    if (
        prepared is None
        or not context.trusted
        or context.signals.no_metrics is not None
        or requirement.sized is None
    ):
        return Tuned(batching_decision(context, current, None, context.model_reason), memory)
    search = memory.search
    if search is None or search.current != current or _is_outdated(search, prepared, context):
        search = _searched(context, prepared, requirement.sized.load, current, search)
        memory = replace(memory, search=search)
    return _choose_change(turn, memory, search)


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
        (memory.reverted_lately(context.now_seconds) is not None, Reason.BATCHING_REVERTED),
        (not worth, Reason.BATCHING_GAIN_TOO_SMALL),
        (canary.is_refused(context, current, best), Reason.BATCHING_ROLLED_BACK),
        (not_first is not None, Reason.BATCHING_CANARY_NOT_POSSIBLE),
        (context.observation.rollout_in_progress, Reason.ROLLOUT_IN_PROGRESS),
        (turn.scaling or context.pods.coming > 0, Reason.PENDING_PODS),
        # Pods that are about to be removed need no restart, and a rollout blocks a scale-down.
        (_is_leaving(context, turn.requirement), Reason.STABILIZED),
        (_too_soon(context, memory), Reason.BATCHING_TOO_SOON),
        (context.facts.trial_elsewhere, Reason.BATCHING_TOO_SOON),
    )
    reason = next((reason for holds, reason in checks if holds), None)
    decision = batching_decision(
        context,
        current,
        best,
        reason or Reason.BATCHING_CANARY_STARTED,
        apply=reason is None,
        search=search,
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
        canary=CanaryAct.START,
        flags_added=_flags_absent(context),
        queue=() if queue is None else (queue.before, bound),
    )
    # If the write is refused, no canary stands at the next tick, and nothing is under way.
    change = BatchChange(
        at_seconds=context.now_seconds, before=current, after=best, queue=decision.queue
    )
    memory = replace(memory, under_way=change)
    return Tuned(decision, memory, (change_step(change, decision.reason, decision),))


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
    """Whether the last change is too recent, or still under way."""
    last = memory.last_change_seconds
    least = context.targets.batching.min_interval_seconds
    return memory.under_way is not None or (last is not None and context.now_seconds - last < least)


def _is_leaving(context: TickContext, requirement: Requirement) -> bool:
    """Whether the count is about to fall, after its window or once demand is known."""
    if context.targets.behavior.scale_down.select_policy is SelectPolicy.DISABLED:
        return False
    unknown = warming_up(context) is not None and requirement.replicas < context.current
    return unknown or max(requirement.safe_replicas, context.bounds.minimum) < context.current


def _alike(one: BatchLimits, other: BatchLimits) -> bool:
    """Whether two limits behave alike."""
    ratio = abs(one.max_num_seqs - other.max_num_seqs) / max(other.max_num_seqs, 1)
    return ratio <= SAME_LIMIT_RATIO and one.max_num_batched_tokens == other.max_num_batched_tokens


PART = EngineLimitsKnob()
