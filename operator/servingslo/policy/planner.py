"""The planner: one observation in, one decision out, everything else carried as state.

Stages, in order: what was set since the last tick, what can be seen, what is estimated, the demand
to plan for, the count it needs, the guards, batch limits, admission. Each says what it did as a
`DecisionStep`. Nothing here reads a clock or keeps anything outside `PlannerState`, so the same
observations give the same decisions, live, in a replay and in a backtest.
"""

from dataclasses import dataclass, replace

from servingslo.estimation import estimator
from servingslo.estimation.estimator import Estimate, FleetSample
from servingslo.policy import guards, zero
from servingslo.policy.admission import admission_decision
from servingslo.policy.batch_tuning import tune_batching
from servingslo.policy.behavior import BehaviorState
from servingslo.policy.context import TickContext, tick_context
from servingslo.policy.decision import (
    Decision,
    DecisionStep,
    HandOver,
    ReplicaView,
    RuntimeSource,
    RuntimeUse,
)
from servingslo.policy.findings import findings, with_unreliable
from servingslo.policy.gateway_limit import limit_decision
from servingslo.policy.guards import Proposal
from servingslo.policy.inputs import (
    Actuation,
    ForecastMode,
    Limits,
    Observation,
    SignalProblem,
    Targets,
)
from servingslo.policy.learning import calibrated, margin_tracked
from servingslo.policy.report import (
    cold_start_report,
    cost_report,
    demand_report,
    finite,
    finite_needs,
    finite_steps,
    limits_use,
    model_use,
    objective_reports,
    predicted_counts,
)
from servingslo.policy.requirement import Requirement, required_replicas
from servingslo.policy.signals import Signals, doubted, read_signals, without_families
from servingslo.policy.state import HandEdit, PendingWrite, PlannerState, observe_count
from servingslo.policy.step_down import step_down_blocks
from servingslo.reasons import BOUND_REASON, Action, Constraint, Reason


def plan(
    observation: Observation,
    targets: Targets,
    limits: Limits,
    state: PlannerState,
    now_seconds: float,
) -> tuple[Decision, PlannerState]:
    """The decision for this tick of one workload, and the memory for the next.

    now_seconds: seconds since the epoch (virtual in a simulation), never earlier than the last:
    who reads a clock that may be set sees to that (`SteadyClock`).
    """
    state, edit = observe_count(
        state,
        observation,
        behavior=targets.behavior,
        now_seconds=now_seconds,
        actuation=targets.actuation,
    )
    signals = read_signals(
        observation,
        targets.fallback.stale_after_seconds,
        state.estimator.scrape_seconds,
    )
    state, estimate = _estimated(observation, targets, state, signals, now_seconds)
    signals = without_families(doubted(signals, estimate.doubts), estimate.lost_families)
    if asleep := zero.sleeps(observation, targets):
        signals = zero.sleeping_signals(signals, estimate)
        seen = state.fresh_seconds if signals.no_metrics else now_seconds
        state = replace(state, fresh_seconds=seen)
    context = tick_context(
        observation, targets, limits, state, now_seconds, signals=signals, estimate=estimate
    )
    state = replace(state, quiet_since_seconds=zero.quiet_since(context, state.quiet_since_seconds))
    state = calibrated(context, state)
    notes = _notes(context, edit)
    owner = guards.ownership_problem(
        observation, targets.actuation, may_sleep=targets.replicas.may_sleep
    )
    acting = _acting_limit(context, owner) is None and targets.actuation is not Actuation.NONE
    state = margin_tracked(context, state, acting=acting)
    if owner is not None and owner.reason not in guards.CONFLICTS:
        return _hands_off(context, state, owner, notes)
    if signals.no_metrics is not None:
        return _without_metrics(context, state, signals.no_metrics, owner, notes)
    if asleep:
        return _asleep(context, state, owner, notes)
    return _with_metrics(context, state, owner, notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The count on its way into a decision.

    acting_limit: why it is only reported, None when it is carried out. detail: for people.
    """

    proposal: Proposal
    requirement: Requirement
    acting_limit: Reason | None
    detail: str = ""


def _estimated(
    observation: Observation,
    targets: Targets,
    state: PlannerState,
    signals: Signals,
    now_seconds: float,
) -> tuple[PlannerState, Estimate]:
    """The memory and the estimate after this tick's sample."""
    sample = FleetSample(
        time_seconds=now_seconds,
        pods=observation.pods,
        gateway=observation.gateway,
        stale_after_seconds=targets.fallback.stale_after_seconds,
        history=observation.history,
        season_days=targets.forecast.season_days,
        cold_start_seconds=targets.cold_start_seconds,
        service_law=targets.service_law,
        stated_limits=targets.stated_limits,
        runtime=observation.runtime,
    )
    estimator_state, estimate = estimator.update(state.estimator, sample)
    if targets.forecast.mode is ForecastMode.OFF:
        present = replace(
            estimate.forecast, season=None, furthest_lead_seconds=0.0, recurrence=None
        )
        estimate = replace(estimate, forecast=present)
    if signals.no_metrics is not None:
        return replace(state, estimator=estimator_state), estimate
    sighted = now_seconds if state.first_fresh_seconds is None else state.first_fresh_seconds
    since = state.idle_since_seconds
    busy = bool(
        estimate.arrival_rate_per_second or estimate.running_requests or estimate.waiting_requests
    )
    idle_since = None if busy else now_seconds if since is None else since
    return replace(
        state,
        estimator=estimator_state,
        first_fresh_seconds=sighted,
        fresh_seconds=now_seconds - (signals.age_seconds or 0.0),
        idle_since_seconds=idle_since,
    ), estimate


def _notes(context: TickContext, edit: HandEdit | None) -> tuple[DecisionStep, ...]:
    """Steps about what was found, before anything is decided."""
    notes = []
    ours = context.targets.actuation is Actuation.SCALE
    if edit is not None and ours and guards.acting_limit(context.targets, context.limits) is None:
        notes.append(
            DecisionStep(
                stage="observed",
                knob=guards.REPLICAS_KNOB,
                before=edit.before,
                after=edit.after,
                reason=Reason.REPLICAS_CHANGED_BY_USER,
            )
        )
    return (*notes, *findings(context))


def _hands_off(
    context: TickContext,
    state: PlannerState,
    problem: SignalProblem,
    notes: tuple[DecisionStep, ...],
) -> tuple[Decision, PlannerState]:
    """The decision for a count that is not ours to set."""
    proposal = replace(
        Proposal(replicas=context.current, steps=notes).noted(
            "ownership", context.current, problem.reason, detail=problem.detail or None
        ),
        limited_by=problem.reason,
    )
    requirement = Requirement(proposal=proposal, safe_replicas=context.current)
    verdict = Verdict(
        proposal=proposal,
        requirement=requirement,
        acting_limit=problem.reason,
        detail=problem.detail,
    )
    return _decided(context, state, verdict)


def _without_metrics(
    context: TickContext,
    state: PlannerState,
    problem: SignalProblem,
    owner: SignalProblem | None,
    notes: tuple[DecisionStep, ...],
) -> tuple[Decision, PlannerState]:
    """The decision while nothing can be concluded from metrics."""
    fresh = state.fresh_seconds if state.fresh_seconds is not None else state.started_seconds
    proposal = guards.hold_without_metrics(
        current=context.current,
        bounds=context.bounds,
        fallback=context.targets.fallback,
        problem=problem,
        without_metrics_seconds=None if fresh is None else context.now_seconds - fresh,
        max_step=context.limits.max_step,
    )
    proposal = _unless_reverted(context, proposal)
    proposal = replace(proposal, steps=(*notes, *proposal.steps))
    verdict = Verdict(
        proposal=proposal,
        requirement=Requirement(
            proposal=Proposal(replicas=context.current), safe_replicas=context.current
        ),
        acting_limit=_acting_limit(context, owner),
        # Another owner is what a person must act on; the outage has a step of its own.
        detail=problem.detail if owner is None else owner.detail,
    )
    return _decided(context, state, verdict)


def _with_metrics(
    context: TickContext,
    state: PlannerState,
    owner: SignalProblem | None,
    notes: tuple[DecisionStep, ...],
) -> tuple[Decision, PlannerState]:
    """The decision from estimates: the requirement, then every guard."""
    requirement = required_replicas(context)
    proposal = replace(requirement.proposal, steps=(*notes, *requirement.proposal.steps))
    proposal = guards.block_step_down(
        proposal, current=context.current, blocks=step_down_blocks(context)
    )
    proposal = guards.check_step_down(
        proposal,
        current=context.current,
        safe_replicas=requirement.safe_replicas,
        lead_seconds=context.lead_seconds,
    )
    proposal = guards.clamp(proposal, context.bounds)
    proposal, behavior = guards.apply_behavior(
        proposal,
        _without_refuted(context, state.behavior),
        behavior=context.targets.behavior,
        current=context.current,
        bounds=context.bounds,
        now_seconds=context.now_seconds,
    )
    proposal = zero.put_to_sleep(context, requirement, proposal, state.quiet_since_seconds)
    proposal = guards.limit_step(
        proposal, current=context.current, max_step=context.limits.max_step
    )
    proposal = _unless_reverted(context, proposal)
    proposal = _with_pending(context, proposal)
    verdict = Verdict(
        proposal=proposal,
        requirement=requirement,
        acting_limit=_acting_limit(context, owner),
        detail="" if owner is None else owner.detail,
    )
    return _decided(context, state, verdict, behavior)


def _without_refuted(context: TickContext, state: BehaviorState) -> BehaviorState:
    """The memory without what was recommended for a crowd that turned out to be none.

    Demand has not fallen since, so that there is no swing to be smoothed.
    """
    onset = context.estimate.forecast.onset
    if onset is None or not onset.refuted:
        return state
    kept = tuple(r for r in state.recommendations if r[0] < onset.since_seconds)
    return replace(state, recommendations=kept)


def _asleep(
    context: TickContext,
    state: PlannerState,
    owner: SignalProblem | None,
    notes: tuple[DecisionStep, ...],
) -> tuple[Decision, PlannerState]:
    """The decision for a target without replicas, from what a gateway tells."""
    requirement = zero.asleep_or_woken(context)
    proposal = guards.clamp(
        replace(requirement.proposal, steps=(*notes, *requirement.proposal.steps)), context.bounds
    )
    proposal = guards.limit_step(proposal, current=0, max_step=context.limits.max_step)
    verdict = Verdict(
        proposal=_unless_reverted(context, proposal),
        requirement=requirement,
        acting_limit=_acting_limit(context, owner),
        detail="" if owner is None else owner.detail,
    )
    return _decided(context, state, verdict)


def _acting_limit(context: TickContext, owner: SignalProblem | None) -> Reason | None:
    """Why the count is only reported: somebody else owns it, or the mode says so."""
    if owner is not None:
        return owner.reason
    return guards.acting_limit(context.targets, context.limits)


def _unless_reverted(context: TickContext, proposal: Proposal) -> Proposal:
    """The count, left to whoever puts it back."""
    if context.targets.actuation is not Actuation.SCALE:
        return proposal
    return guards.leave_to_reverter(
        proposal, context.state.reverts, current=context.current, now_seconds=context.now_seconds
    )


def _with_pending(context: TickContext, proposal: Proposal) -> Proposal:
    """What is ordered and not yet there: told, and the first limit where it cannot come."""
    refused = guards.refused_pods(context.observation)
    wants_more = proposal.replicas > len(context.signals.serving_pods)
    if refused is not None and wants_more:
        noted = proposal.noted("pending", proposal.replicas, refused.reason, detail=refused.detail)
        return replace(noted, limited_by=refused.reason)
    if context.unschedulable:
        noted = proposal.noted(
            "pending",
            proposal.replicas,
            Reason.UNSCHEDULABLE_PODS,
            unschedulable_pods=len(context.unschedulable),
            detail=context.unschedulable[0].unschedulable_reason,
        )
        limit = Reason.UNSCHEDULABLE_PODS if wants_more else proposal.limited_by
        return replace(noted, limited_by=limit)
    if context.coming:
        return proposal.noted(
            "pending", proposal.replicas, Reason.PENDING_PODS, pending_pods=context.coming
        )
    return proposal


def _decided(
    context: TickContext,
    state: PlannerState,
    verdict: Verdict,
    behavior: BehaviorState | None = None,
) -> tuple[Decision, PlannerState]:
    """The decision with batching, admission and what they are explained by.

    behavior: its memory where a count was required; else that of the state stays.
    """
    proposal, requirement = verdict.proposal, verdict.requirement
    known = context.observation.desired_replicas is not None
    before = context.current if known else None
    wanted = proposal.replicas if known else None
    limit = verdict.acting_limit
    given = None
    if limit is None:
        known = context.signals.no_metrics is None or zero.wakes(context)
        given = guards.hand_over(context.targets, context.observation, wanted, known=known)
    after = before if limit is not None or given is not None else wanted
    steps = with_unreliable(context, proposal.steps)
    if limit is not None and limit not in {step.reason for step in steps}:
        steps = (*steps, *proposal.noted("mode", before, limit).steps[-1:])
    apply = after != before
    scaling = apply or (given is not None and wanted != before)
    tuned = tune_batching(context, requirement, scaling=scaling, acting=limit is None)
    admission = admission_decision(context, requirement)
    bound, limit_memory = limit_decision(context, admission, acting=limit is None)
    decision = Decision(
        time_seconds=context.now_seconds,
        namespace=context.observation.namespace,
        name=context.observation.name,
        action=_action(before, after),
        reason=_reason(context, verdict, before, wanted),
        replicas_before=before,
        replicas_after=after,
        recommended_replicas=wanted,
        apply_replicas=apply,
        replicas=ReplicaView(
            current=context.observation.current_replicas,
            ready=len(context.signals.serving_pods),
            pending=context.coming,
            excluded=context.excluded,
        ),
        binding=_binding(context, verdict),
        limited_by=limit or proposal.limited_by or _not_carried_out(given, before, wanted),
        needs=finite_needs(requirement.needs),
        steps=finite_steps((*steps, *tuned.steps)),
        demand=demand_report(context),
        objectives=objective_reports(context, requirement, wanted),
        predicted_counts=predicted_counts(context, requirement, wanted),
        model=model_use(context),
        batching=tuned.decision,
        admission=admission,
        metrics=context.signals.reason,
        metrics_age_seconds=finite(context.signals.age_seconds),
        cost=cost_report(context, after, tuned.decision),
        cold_start=cold_start_report(context),
        limits=limits_use(context),
        runtime=_runtime(context),
        gateway_limit=bound,
        handed_over=given,
        error_budget=context.error_budget,
        detail=verdict.detail,
    )
    order = state.pending_write
    if apply and before is not None and after is not None:
        order = PendingWrite(before=before, after=after, at_seconds=context.now_seconds)
    return decision, replace(
        state,
        pending_write=order,
        behavior=behavior or state.behavior,
        batching=tuned.memory,
        limit=limit_memory,
        prepared=context.prepared or state.prepared,
        sized=requirement.sized,
    )


def _not_carried_out(
    given: HandOver | None, before: int | None, wanted: int | None
) -> Reason | None:
    """That nobody sets the count that is wanted; None where somebody does."""
    if given is None or given.reason is Reason.HANDED_OVER or before == wanted:
        return None
    return given.reason


def _runtime(context: TickContext) -> RuntimeUse:
    name = context.observation.runtime
    if name is None:
        return RuntimeUse()
    stated = context.targets.runtime is not None
    source = RuntimeSource.STATED if stated else RuntimeSource.RECOGNIZED
    return RuntimeUse(name=name, source=source)


def _action(before: int | None, after: int | None) -> Action:
    if before is None or after is None or after == before:
        return Action.HOLD
    return Action.SCALE_UP if after > before else Action.SCALE_DOWN


def _binding(context: TickContext, verdict: Verdict) -> Constraint | None:
    """The constraint behind the count; the minimum where demand alone needs fewer."""
    requirement = verdict.requirement
    at_minimum = verdict.proposal.replicas == context.bounds.minimum
    if (
        requirement.binding is not None
        and at_minimum
        and requirement.proposal.replicas <= context.bounds.minimum
    ):
        return Constraint.MIN_REPLICAS
    return requirement.binding


def _reason(
    context: TickContext, verdict: Verdict, before: int | None, wanted: int | None
) -> Reason:
    """The one reason of the decision: who forbade it, what binds, or that all is well.

    Where acting is merely switched off it is that of what would be done; the mode stands beside it.
    """
    proposal, requirement = verdict.proposal, verdict.requirement
    limit = verdict.acting_limit
    if limit is not None and limit not in guards.ADVICE_ONLY:
        return limit
    action = _action(before, wanted)
    if (own := zero.own_reason(proposal)) is not None:
        return own
    against_requirement = {
        Action.SCALE_UP: requirement.proposal.replicas <= context.current,
        Action.SCALE_DOWN: requirement.proposal.replicas >= context.current,
        Action.HOLD: True,
    }[action]
    if against_requirement and proposal.limited_by is not None:
        return proposal.limited_by
    if action is Action.SCALE_UP:
        return (
            Reason.DEMAND_MET if requirement.binding is None else BOUND_REASON[requirement.binding]
        )
    return _content(context, requirement, action)


def _content(context: TickContext, requirement: Requirement, action: Action) -> Reason:
    """Why no more replicas are needed."""
    if action is Action.HOLD and requirement.infeasible:
        return Reason.INFEASIBLE_OBJECTIVE
    if requirement.idle:
        return Reason.IDLE
    if action is Action.HOLD and context.coming:
        return Reason.PENDING_PODS
    return Reason.DEMAND_MET
