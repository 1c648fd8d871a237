"""From the count that passed the guards to the decision, with the knobs' decisions and a report."""

from collections.abc import Sequence
from dataclasses import replace

from servingslo.policy import insights
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import (
    DecisionStep,
    HandOver,
    ReplicaView,
    RuntimeSource,
    RuntimeUse,
)
from servingslo.policy.knobs.catalogue import decide_knobs
from servingslo.policy.knobs.protocol import Knob, Turn
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.findings import with_unreliable
from servingslo.policy.replicas.ownership import ADVICE_ONLY, advises, hand_over
from servingslo.policy.replicas.pods import Condition
from servingslo.policy.replicas.promise import promise_report
from servingslo.policy.replicas.proposal import Proposal, Requirement
from servingslo.policy.replicas.state import PendingWrite, PlannerState
from servingslo.policy.report import (
    cold_start_report,
    cost_report,
    demand_report,
    finite,
    finite_steps,
    limits_use,
    metrics_missing,
    model_use,
    models_report,
    objective_reports,
    predicted_counts,
    with_finite,
)
from servingslo.policy.rules import zero
from servingslo.policy.rules.reserve import reserve_report
from servingslo.reasons import BOUND_REASON, Action, Constraint, Reason


def assemble_decision(
    context: TickContext,
    state: PlannerState,
    proposal: Proposal,
    notes: tuple[DecisionStep, ...],
    knobs: Sequence[Knob],
) -> tuple[Decision, PlannerState]:
    """The decision with the knobs' decisions and its explanation.

    notes: steps about facts found before any decision.
    """
    requirement = proposal.requirement
    known = context.observation.desired_replicas is not None
    before = context.current if known else None
    wanted = proposal.replicas if known else None
    limit = context.acting_limit
    given = None
    if limit is None:
        known = context.signals.no_metrics is None or zero.wakes(context)
        given = hand_over(
            context.targets,
            context.observation,
            wanted,
            known=known,
            scaler_served=context.limits.scaler_served,
        )
    after = before if limit is not None or given is not None else wanted
    steps = with_unreliable(context, (*notes, *proposal.steps))
    if limit is not None and limit not in {step.reason for step in steps}:
        steps = (*steps, *proposal.noted("mode", before, limit).steps[-1:])
    apply = after != before
    scaling = apply or (given is not None and wanted != before)
    turn = Turn(
        context=context,
        requirement=requirement,
        scaling=scaling,
        acting=limit is None,
        earlier={},
    )
    decisions, memories, knob_steps = decide_knobs(knobs, turn, context.state)
    decision = Decision(
        time_seconds=context.now_seconds,
        namespace=context.observation.namespace,
        name=context.observation.name,
        pool=context.observation.pool,
        action=_action(before, after),
        reason=_reason(context, proposal, before, wanted),
        replicas_before=before,
        replicas_after=after,
        recommended_replicas=wanted,
        apply_replicas=apply,
        replicas=ReplicaView(
            current=context.observation.current_replicas,
            ready=len(context.signals.serving_pods) + len(context.signals.nodes),
            pending=context.pods.coming,
            excluded=context.excluded,
            partly_asleep=context.pods.partly_asleep,
        ),
        binding=_binding(context, proposal),
        limited_by=limit or proposal.limited_by or _not_carried_out(given, before, wanted),
        needs=tuple(map(with_finite, requirement.needs)),
        steps=finite_steps((*steps, *knob_steps)),
        demand=demand_report(context),
        objectives=objective_reports(context, requirement, wanted),
        predicted_counts=predicted_counts(context, requirement, wanted),
        model=model_use(context),
        knobs=decisions,
        metrics=context.signals.reason,
        metrics_age_seconds=finite(context.signals.age_seconds),
        metrics_missing=metrics_missing(context),
        cost=cost_report(context, wanted if advises(limit, given) else after, decisions.values()),
        cold_start=cold_start_report(context),
        limits=limits_use(context),
        runtime=_runtime(context),
        gpus=context.estimate.gpus,
        models=models_report(context),
        handed_over=given,
        promise=promise_report(context.targets, state.promise),
        reserve=reserve_report(state.reserve, requirement.needs),
        features=insights.reports(context, state.features),
        detail=_detail(context),
    )
    order = state.pending_write
    if apply and before is not None and after is not None:
        order = PendingWrite(before=before, after=after, at_seconds=context.now_seconds)
    return decision, replace(
        state,
        pending_write=order,
        behavior=proposal.behavior or context.state.behavior,
        knobs=memories,
        prepared=context.prepared or state.prepared,
        sized=requirement.sized,
    )


def _not_carried_out(
    given: HandOver | None, before: int | None, wanted: int | None
) -> Reason | None:
    """Why no client sets the wanted count; None if one does."""
    if given is None or given.reason is Reason.HANDED_OVER:
        return None
    if before == wanted and given.reason is not Reason.SCALER_NOT_SERVED:
        return None
    return given.reason


def _runtime(context: TickContext) -> RuntimeUse:
    name = context.observation.runtime
    if name is None:
        return RuntimeUse()
    stated = context.targets.runtime is not None
    source = RuntimeSource.STATED if stated else RuntimeSource.RECOGNIZED
    return RuntimeUse(name=name, source=source)


def _detail(context: TickContext) -> str:
    """For people: another owner comes first, as it needs action; an outage has its own step."""
    problem = context.owner or context.signals.no_metrics
    return "" if problem is None else problem.detail


def _action(before: int | None, after: int | None) -> Action:
    if before is None or after is None or after == before:
        return Action.HOLD
    return Action.SCALE_UP if after > before else Action.SCALE_DOWN


def _binding(context: TickContext, proposal: Proposal) -> Constraint | None:
    """The constraint behind the count; the minimum if demand alone needs fewer."""
    requirement = proposal.requirement
    at_minimum = proposal.replicas == context.bounds.minimum
    if (
        requirement.binding is not None
        and at_minimum
        and requirement.replicas <= context.bounds.minimum
    ):
        return Constraint.MIN_REPLICAS
    return requirement.binding


def _reason(
    context: TickContext, proposal: Proposal, before: int | None, wanted: int | None
) -> Reason:
    """The one reason of the decision: what forbids it, what binds, or that all is well.

    If acting is merely switched off, it is the reason of the advised change; the mode is reported
    separately.
    """
    requirement = proposal.requirement
    limit = context.acting_limit
    if limit is not None and limit not in ADVICE_ONLY:
        return limit
    action = _action(before, wanted)
    if (own := zero.own_reason(proposal)) is not None:
        return own
    against_requirement = {
        Action.SCALE_UP: requirement.replicas <= context.current,
        # A budget takes replicas that nothing else would remove now.
        Action.SCALE_DOWN: requirement.replicas >= context.current
        or proposal.limited_by is Reason.BUDGET_MOVED,
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
    if action is Action.HOLD and context.pods.coming:
        starts = context.pods.coming > len(context.pods.of(Condition.FAILING))
        return Reason.PENDING_PODS if starts else Reason.PODS_FAILING
    return Reason.DEMAND_MET
