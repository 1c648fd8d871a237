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
from servingslo.policy import insights
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.facts import Facts
from servingslo.policy.inputs import (
    Actuation,
    ForecastMode,
    Limits,
    Observation,
    Targets,
)
from servingslo.policy.knobs.catalogue import observe_knobs
from servingslo.policy.replicas.bounds_in_force import with_bounds_in_force
from servingslo.policy.replicas.context import TickContext, tick_context
from servingslo.policy.replicas.demand import lead_seconds
from servingslo.policy.replicas.findings import findings
from servingslo.policy.replicas.ownership import CONFLICTS, acting_limit
from servingslo.policy.replicas.proposal import REPLICAS_KNOB, Proposal
from servingslo.policy.replicas.saturation import Shortage
from servingslo.policy.replicas.signals import Signals, add_doubts, drop_families, read_signals
from servingslo.policy.replicas.state import HandEdit, PlannerState, observe_count
from servingslo.policy.rules import zero
from servingslo.policy.rules.guards import ASLEEP_GUARDS, BLIND_GUARDS
from servingslo.policy.rules.requirement import required_replicas
from servingslo.policy.stages import STAGES, Stages
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
        owned = owner is not None and owner.reason not in CONFLICTS
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
    lead = lead_seconds(estimate, targets, limits)
    targets = with_bounds_in_force(targets, lead, now_seconds)
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
    context = insights.looked(context)
    for learn in stages.learners:
        state = learn(context, state)
    # What was measured at this tick decides at this tick.
    now = replace(context.state, reserve=state.reserve, shortage=state.shortage)
    context = replace(context, state=now)
    return Seen(context=context, state=state, edit=edit, asleep=asleep)


def draft_count(
    seen: Seen, required: Proposal | None = None, *, stages: Stages = STAGES
) -> Proposal:
    """The count of a workload after all guards.

    required: what demand needs, if that was decided together with other pools.
    """
    context = seen.context
    owner, problem = context.owner, context.signals.no_metrics
    present = Proposal.of(context.current)
    if owner is not None and owner.reason not in CONFLICTS:
        return present.held("ownership", context.current, owner.reason, detail=owner.detail or None)
    if problem is not None:
        names_cause = {"names_cause": True} if problem.names_cause else {}
        proposal = present.held(
            "signals", context.current, problem.reason, detail=problem.detail or None, **names_cause
        )
        guards = BLIND_GUARDS
    elif seen.asleep:
        proposal, guards = zero.sleep_or_wake(context), ASLEEP_GUARDS
    else:
        proposal, guards = required or required_replicas(context), stages.guards
    for guard in guards:
        proposal = guard(context, proposal)
    return proposal


def finish(
    seen: Seen, proposal: Proposal, *, stages: Stages = STAGES
) -> tuple[Decision, PlannerState]:
    """The decision of a count that passed the guards, with its knobs and its explanation."""
    notes = _found_steps(seen.context, seen.edit)
    return assemble_decision(seen.context, seen.state, proposal, notes, stages.knobs)


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
    gap = before is None or fresh - before > targets.fallback.stale_after_seconds
    # Without pods a gateway's count alone is fresh.
    broken = gap or state.watched_since_seconds is None
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
    if edit is not None and ours and acting_limit(context.targets, context.limits) is None:
        notes.append(
            DecisionStep(
                stage="observed",
                knob=REPLICAS_KNOB,
                before=edit.before,
                after=edit.after,
                reason=Reason.REPLICAS_CHANGED_BY_USER,
            )
        )
    return (*notes, *findings(context), *insights.steps(context))
