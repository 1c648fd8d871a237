"""The planner: one observation in, one decision out, everything else carried as state.

Stages, in order: what was set since the last tick, what can be seen, what is estimated, the demand
to plan for, the count it needs, the guards, batch limits, admission. Each says what it did as a
`DecisionStep`. Nothing here reads a clock or keeps anything outside `PlannerState`, so the same
observations give the same decisions, live, in a replay and in a backtest.
"""

from dataclasses import dataclass, replace

from servingslo.estimation import estimator
from servingslo.estimation.estimator import Estimate, FleetSample
from servingslo.estimation.observed import RECENT_SECONDS
from servingslo.models.latency import metric_seconds
from servingslo.policy import guards
from servingslo.policy.admission import admission_decision
from servingslo.policy.batch_tuning import tune_batching
from servingslo.policy.behavior import BehaviorState
from servingslo.policy.decision import (
    Decision,
    DecisionStep,
    HandOver,
    ReplicaView,
    RuntimeSource,
    RuntimeUse,
)
from servingslo.policy.found import found_steps
from servingslo.policy.frame import Frame, frame_of
from servingslo.policy.gateway_limit import limit_decision
from servingslo.policy.guards import Proposal
from servingslo.policy.hand_over import hand_over
from servingslo.policy.inputs import (
    Actuation,
    ForecastMode,
    Limits,
    Observation,
    SignalProblem,
    Targets,
)
from servingslo.policy.left_out import with_left_out
from servingslo.policy.limits_use import limits_use
from servingslo.policy.margin import tracked
from servingslo.policy.onset import without_refuted
from servingslo.policy.outlook import (
    cold_start_outlook,
    cost_outlook,
    count_outlooks,
    demand_outlook,
    finite,
    finite_needs,
    finite_steps,
    model_use,
    objective_outlooks,
)
from servingslo.policy.signals import Signals, doubted, read_signals, without_families
from servingslo.policy.state import HandEdit, Order, PlannerState, Steadiness, observe_count
from servingslo.policy.wish import Wish, step_down_blocks, wished_count
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
    frame = frame_of(
        observation, targets, limits, state, now_seconds, signals=signals, estimate=estimate
    )
    state = _calibrated(frame, state)
    notes = _notes(frame, edit)
    owner = guards.ownership_problem(observation, targets.actuation)
    acting = _acting_limit(frame, owner) is None and targets.actuation is not Actuation.NONE
    state = tracked(frame, state, acting=acting)
    if owner is not None and owner.reason not in guards.CONFLICTS:
        return _hands_off(frame, state, owner, notes)
    if signals.blind is not None:
        return _without_sight(frame, state, signals.blind, owner, notes)
    return _with_sight(frame, state, owner, notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The count on its way into a decision.

    acting_limit: why it is only reported, None when it is carried out. detail: for people.
    """

    proposal: Proposal
    wish: Wish
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
    if signals.blind is not None:
        return replace(state, estimator=estimator_state), estimate
    sighted = now_seconds if state.sighted_seconds is None else state.sighted_seconds
    since = state.idle_since_seconds
    busy = bool(
        estimate.arrival_rate_per_second or estimate.running_requests or estimate.waiting_requests
    )
    idle_since = None if busy else now_seconds if since is None else since
    return replace(
        state,
        estimator=estimator_state,
        sighted_seconds=sighted,
        fresh_seconds=now_seconds - (signals.age_seconds or 0.0),
        idle_since_seconds=idle_since,
    ), estimate


def _calibrated(frame: Frame, state: PlannerState) -> PlannerState:
    """The memory after comparing the model's percentiles for the present load with those seen.

    Only while the same replicas have served for as long as latencies are observed over, and
    without a queue from before: otherwise two different loads would be compared. Once for each
    such time: windows that overlap would count the same requests again.
    """
    serving = len(frame.serving)
    fleet = state.fleet
    if fleet is None or fleet.serving != serving:
        fleet = Steadiness(serving=serving, since_seconds=frame.now_seconds)
        state = replace(state, fleet=fleet)
    steady = frame.now_seconds - fleet.since_seconds >= RECENT_SECONDS
    rate = frame.estimate.arrival_rate_per_second
    if not steady or not rate or not serving or frame.mix is None or not frame.trusted:
        return state
    if frame.signals.blind is not None or frame.mix.at_seconds == frame.now_seconds:
        # A mix that has just been renewed has tables to make as well: it is compared at the next.
        return state
    engines = serving * frame.estimate.engines_per_pod
    present = frame.mix.model.predict(rate, engines, frame.estimate.routing)
    if not present.stable:
        return state
    predicted: dict[str, dict[float, float]] = {}
    for objective in frame.targets.objectives:
        seconds = metric_seconds(present, objective.metric, objective.percentile)
        predicted.setdefault(objective.metric.value, {})[objective.percentile] = seconds
    learnt = estimator.calibrate(state.estimator, predicted, frame.estimate)
    compared = replace(fleet, since_seconds=frame.now_seconds)
    return replace(state, estimator=learnt, fleet=compared)


def _notes(frame: Frame, edit: HandEdit | None) -> tuple[DecisionStep, ...]:
    """Steps about what was found, before anything is decided."""
    notes = []
    ours = frame.targets.actuation is Actuation.SCALE
    if edit is not None and ours and guards.acting_limit(frame.targets, frame.limits) is None:
        notes.append(
            DecisionStep(
                stage="observed",
                knob=guards.REPLICAS_KNOB,
                before=edit.before,
                after=edit.after,
                reason=Reason.REPLICAS_CHANGED_BY_USER,
            )
        )
    return (*notes, *found_steps(frame))


def _hands_off(
    frame: Frame, state: PlannerState, problem: SignalProblem, notes: tuple[DecisionStep, ...]
) -> tuple[Decision, PlannerState]:
    """The decision for a count that is not ours to set."""
    proposal = replace(
        Proposal(replicas=frame.current, steps=notes).noted(
            "ownership", frame.current, problem.reason, detail=problem.detail or None
        ),
        limited_by=problem.reason,
    )
    wish = Wish(proposal=proposal, safe_replicas=frame.current)
    verdict = Verdict(
        proposal=proposal, wish=wish, acting_limit=problem.reason, detail=problem.detail
    )
    return _decided(frame, state, verdict)


def _without_sight(
    frame: Frame,
    state: PlannerState,
    problem: SignalProblem,
    owner: SignalProblem | None,
    notes: tuple[DecisionStep, ...],
) -> tuple[Decision, PlannerState]:
    """The decision while nothing can be concluded from metrics."""
    fresh = state.fresh_seconds if state.fresh_seconds is not None else state.started_seconds
    proposal = guards.hold_blind(
        current=frame.current,
        bounds=frame.bounds,
        fallback=frame.targets.fallback,
        problem=problem,
        blind_for_seconds=None if fresh is None else frame.now_seconds - fresh,
        max_step=frame.limits.max_step,
    )
    proposal = _unless_reverted(frame, proposal)
    proposal = replace(proposal, steps=(*notes, *proposal.steps))
    verdict = Verdict(
        proposal=proposal,
        wish=Wish(proposal=Proposal(replicas=frame.current), safe_replicas=frame.current),
        acting_limit=_acting_limit(frame, owner),
        # Another owner is what a person must act on; the outage has a step of its own.
        detail=problem.detail if owner is None else owner.detail,
    )
    return _decided(frame, state, verdict)


def _with_sight(
    frame: Frame,
    state: PlannerState,
    owner: SignalProblem | None,
    notes: tuple[DecisionStep, ...],
) -> tuple[Decision, PlannerState]:
    """The decision from estimates: the wish, then every guard."""
    wish = wished_count(frame)
    proposal = replace(wish.proposal, steps=(*notes, *wish.proposal.steps))
    proposal = guards.block_step_down(
        proposal, current=frame.current, blocks=step_down_blocks(frame)
    )
    proposal = guards.check_step_down(
        proposal,
        current=frame.current,
        safe_replicas=wish.safe_replicas,
        lead_seconds=frame.lead_seconds,
    )
    proposal = guards.clamp(proposal, frame.bounds)
    proposal, behavior = guards.apply_behavior(
        proposal,
        without_refuted(frame, state.behavior),
        behavior=frame.targets.behavior,
        current=frame.current,
        bounds=frame.bounds,
        now_seconds=frame.now_seconds,
    )
    proposal = guards.limit_step(proposal, current=frame.current, max_step=frame.limits.max_step)
    proposal = _unless_reverted(frame, proposal)
    proposal = _with_pending(frame, proposal)
    verdict = Verdict(
        proposal=proposal,
        wish=wish,
        acting_limit=_acting_limit(frame, owner),
        detail="" if owner is None else owner.detail,
    )
    return _decided(frame, state, verdict, behavior)


def _acting_limit(frame: Frame, owner: SignalProblem | None) -> Reason | None:
    """Why the count is only reported: somebody else owns it, or the mode says so."""
    if owner is not None:
        return owner.reason
    return guards.acting_limit(frame.targets, frame.limits)


def _unless_reverted(frame: Frame, proposal: Proposal) -> Proposal:
    """The count, left to whoever puts it back."""
    if frame.targets.actuation is not Actuation.SCALE:
        return proposal
    return guards.leave_to_reverter(
        proposal, frame.state.reverts, current=frame.current, now_seconds=frame.now_seconds
    )


def _with_pending(frame: Frame, proposal: Proposal) -> Proposal:
    """What is ordered and not yet there: told, and the first limit where it cannot come."""
    refused = guards.refused_pods(frame.observation)
    wants_more = proposal.replicas > len(frame.signals.serving_pods)
    if refused is not None and wants_more:
        noted = proposal.noted("pending", proposal.replicas, refused.reason, detail=refused.detail)
        return replace(noted, limited_by=refused.reason)
    if frame.unschedulable:
        noted = proposal.noted(
            "pending",
            proposal.replicas,
            Reason.UNSCHEDULABLE_PODS,
            unschedulable_pods=len(frame.unschedulable),
            detail=frame.unschedulable[0].unschedulable_reason,
        )
        limit = Reason.UNSCHEDULABLE_PODS if wants_more else proposal.limited_by
        return replace(noted, limited_by=limit)
    if frame.coming:
        return proposal.noted(
            "pending", proposal.replicas, Reason.PENDING_PODS, pending_pods=frame.coming
        )
    return proposal


def _decided(
    frame: Frame, state: PlannerState, verdict: Verdict, behavior: BehaviorState | None = None
) -> tuple[Decision, PlannerState]:
    """The decision with batching, admission and what they are explained by.

    behavior: its memory where a count was wished for; else that of the state stays.
    """
    proposal, wish = verdict.proposal, verdict.wish
    known = frame.observation.desired_replicas is not None
    before = frame.current if known else None
    wanted = proposal.replicas if known else None
    limit = verdict.acting_limit
    given = None
    if limit is None:
        known = frame.signals.blind is None
        given = hand_over(frame.targets, frame.observation, wanted, known=known)
    after = before if limit is not None or given is not None else wanted
    steps = with_left_out(frame, proposal.steps)
    if limit is not None and limit not in {step.reason for step in steps}:
        steps = (*steps, *proposal.noted("mode", before, limit).steps[-1:])
    apply = after != before
    scaling = apply or (given is not None and wanted != before)
    tuned = tune_batching(frame, wish, scaling=scaling, acting=limit is None)
    admission = admission_decision(frame, wish)
    bound, limit_memory = limit_decision(frame, admission, acting=limit is None)
    decision = Decision(
        time_seconds=frame.now_seconds,
        namespace=frame.observation.namespace,
        name=frame.observation.name,
        action=_action(before, after),
        reason=_reason(frame, verdict, before, wanted),
        replicas_before=before,
        replicas_after=after,
        recommended_replicas=wanted,
        apply_replicas=apply,
        replicas=ReplicaView(
            current=frame.observation.current_replicas,
            ready=len(frame.signals.serving_pods),
            pending=frame.coming,
            excluded=frame.excluded,
        ),
        binding=_binding(frame, verdict),
        limited_by=limit or proposal.limited_by or _not_carried_out(given, before, wanted),
        needs=finite_needs(wish.needs),
        steps=finite_steps((*steps, *tuned.steps)),
        demand=demand_outlook(frame),
        objectives=objective_outlooks(frame, wish, wanted),
        outlook=count_outlooks(frame, wish, wanted),
        model=model_use(frame),
        batching=tuned.decision,
        admission=admission,
        metrics=frame.signals.reason,
        metrics_age_seconds=finite(frame.signals.age_seconds),
        cost=cost_outlook(frame, after, tuned.decision),
        cold_start=cold_start_outlook(frame),
        limits=limits_use(frame),
        runtime=_runtime(frame),
        gateway_limit=bound,
        handed_over=given,
        error_budget=frame.error_budget,
        detail=verdict.detail,
    )
    order = state.order
    if apply and before is not None and after is not None:
        order = Order(before=before, after=after, at_seconds=frame.now_seconds)
    return decision, replace(
        state,
        order=order,
        behavior=behavior or state.behavior,
        batching=tuned.memory,
        limit=limit_memory,
        mix=frame.mix or state.mix,
        sized=wish.sized,
    )


def _not_carried_out(
    given: HandOver | None, before: int | None, wanted: int | None
) -> Reason | None:
    """That nobody sets the count that is wanted; None where somebody does."""
    if given is None or given.reason is Reason.HANDED_OVER or before == wanted:
        return None
    return given.reason


def _runtime(frame: Frame) -> RuntimeUse:
    name = frame.observation.runtime
    if name is None:
        return RuntimeUse()
    stated = frame.targets.runtime is not None
    source = RuntimeSource.STATED if stated else RuntimeSource.RECOGNIZED
    return RuntimeUse(name=name, source=source)


def _action(before: int | None, after: int | None) -> Action:
    if before is None or after is None or after == before:
        return Action.HOLD
    return Action.SCALE_UP if after > before else Action.SCALE_DOWN


def _binding(frame: Frame, verdict: Verdict) -> Constraint | None:
    """The constraint behind the count; the minimum where demand alone needs fewer."""
    wish = verdict.wish
    at_minimum = verdict.proposal.replicas == frame.bounds.minimum
    if wish.binding is not None and at_minimum and wish.proposal.replicas <= frame.bounds.minimum:
        return Constraint.MIN_REPLICAS
    return wish.binding


def _reason(frame: Frame, verdict: Verdict, before: int | None, wanted: int | None) -> Reason:
    """The one reason of the decision: who forbade it, what binds, or that all is well.

    Where acting is merely switched off it is that of what would be done; the mode stands beside it.
    """
    proposal, wish = verdict.proposal, verdict.wish
    limit = verdict.acting_limit
    if limit is not None and limit not in guards.ADVICE_ONLY:
        return limit
    action = _action(before, wanted)
    against_the_wish = {
        Action.SCALE_UP: wish.proposal.replicas <= frame.current,
        Action.SCALE_DOWN: wish.proposal.replicas >= frame.current,
        Action.HOLD: True,
    }[action]
    if against_the_wish and proposal.limited_by is not None:
        return proposal.limited_by
    if action is Action.SCALE_UP:
        return Reason.DEMAND_MET if wish.binding is None else BOUND_REASON[wish.binding]
    return _content(frame, wish, action)


def _content(frame: Frame, wish: Wish, action: Action) -> Reason:
    """Why no more replicas are needed."""
    if action is Action.HOLD and wish.infeasible:
        return Reason.INFEASIBLE_OBJECTIVE
    if wish.idle:
        return Reason.IDLE
    if action is Action.HOLD and frame.coming:
        return Reason.PENDING_PODS
    return Reason.DEMAND_MET
