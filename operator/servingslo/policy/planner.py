"""The planner: one observation in, one decision out, everything else carried as state.

In order: changes since the last tick, signals, estimate, the demand to plan for, learning, the
count that demand needs, the guards, the knobs. Each reports its effect as a `DecisionStep`. Nothing
here reads a clock or keeps anything outside `PlannerState`, so the same observations give the same
decisions, live, in a replay and in a backtest. `pools.planner` plans a fleet: with `plan` a single
target, with its three parts each of several pools.
"""

from dataclasses import dataclass, replace

from servingslo.estimation import estimator
from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.policy.budget.guard import within_grant
from servingslo.policy.context import TickContext, tick_context
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.facts import Facts
from servingslo.policy.findings import findings
from servingslo.policy.inputs import (
    Actuation,
    ForecastMode,
    Limits,
    Observation,
    SignalProblem,
    Targets,
)
from servingslo.policy.knobs.catalogue import observe_knobs
from servingslo.policy.replicas import guards, zero
from servingslo.policy.replicas.guards import Proposal
from servingslo.policy.replicas.requirement import Requirement, required_replicas
from servingslo.policy.replicas.saturation import Shortage
from servingslo.policy.replicas.signals import Signals, add_doubts, drop_families, read_signals
from servingslo.policy.stages import STAGES, Draft, Stages, leave_to_reverter
from servingslo.policy.state import HandEdit, PlannerState, observe_count
from servingslo.policy.verdict import assemble_decision
from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One tick of a workload before its count is decided.

    state: the memory with this tick's sample. edit: a count set by another client, if any. asleep:
    the target has no replicas and may have none.
    """

    context: TickContext
    state: PlannerState
    edit: HandEdit | None
    asleep: bool

    @property
    def planned(self) -> bool:
        """Whether metrics decide the count: nobody else owns it, and the engines were observed."""
        owner = self.context.owner
        owned = owner is not None and owner.reason not in guards.CONFLICTS
        return not owned and self.context.signals.no_metrics is None and not self.asleep


def plan(
    observation: Observation,
    targets: Targets,
    limits: Limits,
    state: PlannerState,
    now_seconds: float,
    *,
    stages: Stages = STAGES,
) -> tuple[Decision, PlannerState]:
    """The decision for this tick of one workload, and the memory for the next.

    now_seconds: seconds since the epoch (virtual in a simulation), never earlier than the last: a
    caller whose clock may be set ensures that (`SteadyClock`).
    """
    seen = observe(observation, targets, limits, state, now_seconds, stages=stages)
    return finish(seen, draft_count(seen, stages=stages), stages=stages)


def observe(
    observation: Observation,
    targets: Targets,
    limits: Limits,
    state: PlannerState,
    now_seconds: float,
    *,
    stages: Stages = STAGES,
) -> Seen:
    """What is known of a workload at this tick, with everything learnt from it."""
    state, edit = observe_count(
        state,
        observation,
        behavior=targets.behavior,
        now_seconds=now_seconds,
        actuation=targets.actuation,
        tick_seconds=limits.tick_seconds,
    )
    signals = read_signals(
        observation,
        targets.fallback.stale_after_seconds,
        state.estimator.scrape_seconds,
        state.estimator.behind_seconds,
    )
    facts = observe_knobs(stages.knobs, observation, state, now_seconds)
    before = state.estimator.calibration.stated
    state, estimate = _update_estimate(
        observation, targets, state, signals, facts, now_seconds, held_up=stages.held_up
    )
    if state.estimator.calibration.stated != before:
        # What another law was wrong by no longer applies.
        state = replace(state, shortage=Shortage())
    estimate = facts.mark_pods(estimate)
    if stages.view is not None:
        estimate = stages.view(estimate)
    signals = drop_families(add_doubts(signals, estimate.doubts), estimate.lost_families)
    if asleep := zero.sleeps(observation, targets):
        signals = zero.sleeping_signals(signals, observation, estimate)
        fresh_seconds = state.fresh_seconds if signals.no_metrics else now_seconds
        state = replace(state, fresh_seconds=fresh_seconds)
    context = tick_context(
        observation,
        targets,
        limits,
        state,
        now_seconds,
        signals=signals,
        estimate=estimate,
        facts=facts,
    )
    for learn in stages.learners:
        state = learn(context, state)
    # What was measured at this tick decides at this tick.
    now = replace(context.state, reserve=state.reserve, shortage=state.shortage)
    context = replace(context, state=now)
    return Seen(context=context, state=state, edit=edit, asleep=asleep)


def draft_count(
    seen: Seen, requirement: Requirement | None = None, *, stages: Stages = STAGES
) -> Draft:
    """The count of a workload after all guards.

    requirement: what demand needs, if that was decided together with other pools.
    """
    context = seen.context
    if context.owner is not None and context.owner.reason not in guards.CONFLICTS:
        return _leave_to_owner(context, context.owner)
    if context.signals.no_metrics is not None:
        draft = _plan_without_metrics(context, context.signals.no_metrics)
    elif seen.asleep:
        draft = _plan_asleep(context)
    else:
        draft = _plan_with_metrics(context, requirement or required_replicas(context), stages)
    held = guards.hold_nodes(draft.proposal, context.signals.nodes, current=context.current)
    return replace(draft, proposal=held)


def finish(seen: Seen, draft: Draft, *, stages: Stages = STAGES) -> tuple[Decision, PlannerState]:
    """The decision of a drafted count, with its knobs and its explanation."""
    notes = _found_steps(seen.context, seen.edit)
    return assemble_decision(seen.context, seen.state, draft, notes, stages.knobs)


def _update_estimate(  # noqa: PLR0913 - what a sample is made of
    observation: Observation,
    targets: Targets,
    state: PlannerState,
    signals: Signals,
    facts: Facts,
    now_seconds: float,
    *,
    held_up: bool,
) -> tuple[PlannerState, Estimate]:
    """The memory and the estimate after this tick's sample."""
    batcher = facts.batcher or targets.stated_limits.batcher
    named_only = targets.law_assumed and batcher is not None
    sample = FleetSample(
        time_seconds=now_seconds,
        pods=observation.pods,
        gateway=observation.gateway,
        classes=observation.classes,
        held_up=held_up,
        sheddable=frozenset(one.name for one in targets.classes if not one.orders),
        fallback=observation.fallback,
        stale_after_seconds=targets.fallback.stale_after_seconds,
        history=observation.history,
        season_days=targets.forecast.season_days,
        # Names tell nothing of batches of whole requests.
        service_law=None if named_only else targets.service_law,
        law_assumed=targets.law_assumed,
        stated_limits=replace(targets.stated_limits, batcher=batcher),
        runtime=observation.runtime,
        batches=facts.batches,
        metrics=signals.metrics,
    )
    estimator_state, estimate = estimator.update(state.estimator, sample)
    if targets.forecast.mode is ForecastMode.OFF:
        present = replace(estimate.forecast, season=None, furthest_lead_seconds=0.0)
        estimate = replace(estimate, forecast=present)
    if signals.no_metrics is not None:
        return replace(state, estimator=estimator_state), estimate
    sighted = now_seconds if state.first_fresh_seconds is None else state.first_fresh_seconds
    fresh, before = now_seconds - (signals.age_seconds or 0.0), state.fresh_seconds
    broken = before is None or fresh - before > targets.fallback.stale_after_seconds
    since = state.idle_since_seconds
    busy = bool(
        estimate.arrival_rate_per_second or estimate.running_requests or estimate.waiting_requests
    )
    idle_since = None if busy else now_seconds if since is None else since
    return replace(
        state,
        estimator=estimator_state,
        first_fresh_seconds=sighted,
        fresh_seconds=fresh,
        watched_since_seconds=now_seconds if broken else state.watched_since_seconds,
        idle_since_seconds=idle_since,
    ), estimate


def _found_steps(context: TickContext, edit: HandEdit | None) -> tuple[DecisionStep, ...]:
    """Steps about facts found before any decision."""
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


def _leave_to_owner(context: TickContext, problem: SignalProblem) -> Draft:
    """Keep the current count, because another client owns it."""
    proposal = Proposal(replicas=context.current).noted(
        "ownership", context.current, problem.reason, detail=problem.detail or None
    )
    proposal = replace(proposal, limited_by=problem.reason)
    return _plain_draft(context, proposal)


def _plan_without_metrics(context: TickContext, problem: SignalProblem) -> Draft:
    """The count while metrics allow no conclusion."""
    proposal = guards.hold_without_metrics(
        current=context.current,
        bounds=context.bounds,
        fallback=context.targets.fallback,
        problem=problem,
        without_metrics_seconds=context.without_metrics_seconds,
        max_step=context.limits.max_step,
    )
    proposal = within_grant(context, proposal, seen=False)
    return leave_to_reverter(context, _plain_draft(context, proposal))


def _plain_draft(context: TickContext, proposal: Proposal) -> Draft:
    """A draft without a demand."""
    nothing = Requirement(
        proposal=Proposal(replicas=context.current), safe_replicas=context.current
    )
    return Draft(proposal=proposal, requirement=nothing, behavior=context.state.behavior)


def _plan_asleep(context: TickContext) -> Draft:
    """The count of a target without replicas, from the gateway's signal."""
    requirement = zero.sleep_or_wake(context)
    proposal = guards.clamp(requirement.proposal, context.bounds)
    proposal = guards.limit_step(proposal, current=0, max_step=context.limits.max_step)
    proposal = within_grant(context, proposal)
    draft = Draft(proposal=proposal, requirement=requirement, behavior=context.state.behavior)
    return leave_to_reverter(context, draft)


def _plan_with_metrics(context: TickContext, requirement: Requirement, stages: Stages) -> Draft:
    """The required count, through every guard."""
    draft = Draft(
        proposal=requirement.proposal,
        requirement=requirement,
        behavior=context.state.behavior,
    )
    for guard in stages.guards:
        draft = guard(context, draft)
    return draft
