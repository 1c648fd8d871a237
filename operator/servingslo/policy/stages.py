"""The stages of a tick in order, as tuples of functions; an ablation leaves one out."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from servingslo.policy.context import TickContext
from servingslo.policy.inputs import Actuation
from servingslo.policy.knobs.catalogue import KNOBS
from servingslo.policy.knobs.protocol import Knob
from servingslo.policy.replicas import guards, zero
from servingslo.policy.replicas.behavior import BehaviorState
from servingslo.policy.replicas.calibration import calibrated, steered
from servingslo.policy.replicas.guards import Proposal
from servingslo.policy.replicas.requirement import Requirement
from servingslo.policy.replicas.step_down import step_down_blocks
from servingslo.policy.state import PlannerState
from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The count on its way through the guards.

    behavior: the memory of rate policies and stabilization after them.
    """

    proposal: Proposal
    requirement: Requirement
    behavior: BehaviorState


Learner = Callable[[TickContext, PlannerState], PlannerState]
Guard = Callable[[TickContext, Draft], Draft]


def quiet_tracked(context: TickContext, state: PlannerState) -> PlannerState:
    """The memory with the time for which no request has arrived."""
    since_seconds = zero.quiet_since(context, state.quiet_since_seconds)
    return replace(state, quiet_since_seconds=since_seconds)


def blocked(context: TickContext, draft: Draft) -> Draft:
    """Allow no fewer replicas while anything forbids a scale-down."""
    proposal = guards.block_step_down(
        draft.proposal, current=context.current, blocks=step_down_blocks(context)
    )
    return replace(draft, proposal=proposal)


def safe(context: TickContext, draft: Draft) -> Draft:
    """Step down only as far as the rest carries the demand until a new replica could be ready."""
    proposal = guards.check_step_down(
        draft.proposal,
        current=context.current,
        safe_replicas=draft.requirement.safe_replicas,
        lead_seconds=context.lead_seconds,
    )
    return replace(draft, proposal=proposal)


def within_bounds(context: TickContext, draft: Draft) -> Draft:
    """Keep the count within the bounds of tenant and administrator."""
    return replace(draft, proposal=guards.clamp(draft.proposal, context.bounds))


def behaved(context: TickContext, draft: Draft) -> Draft:
    """Apply stabilization and rate policies."""
    proposal, behavior = guards.apply_behavior(
        draft.proposal,
        draft.behavior,
        behavior=context.targets.behavior,
        current=context.current,
        bounds=context.bounds,
        now_seconds=context.now_seconds,
    )
    return replace(draft, proposal=proposal, behavior=behavior)


def put_to_sleep(context: TickContext, draft: Draft) -> Draft:
    """Set zero, once no request has arrived for the stated time and a gateway would wake it."""
    since_seconds = zero.quiet_since(context, context.state.quiet_since_seconds)
    proposal = zero.put_to_sleep(context, draft.requirement, draft.proposal, since_seconds)
    return replace(draft, proposal=proposal)


def stepped(context: TickContext, draft: Draft) -> Draft:
    """Limit the change to the administrator's largest."""
    proposal = guards.limit_step(
        draft.proposal, current=context.current, max_step=context.limits.max_step
    )
    return replace(draft, proposal=proposal)


def not_beyond_queue(context: TickContext, draft: Draft) -> Draft:
    """Order no more while ordered pods wait in a queue."""
    proposal = guards.behind_queue(
        draft.proposal,
        context.queued,
        current=context.current,
        minimum=context.bounds.minimum,
    )
    return replace(draft, proposal=proposal)


def unless_reverted(context: TickContext, draft: Draft) -> Draft:
    """Leave the count to the client that puts it back."""
    if context.targets.actuation is not Actuation.SCALE:
        return draft
    proposal = guards.leave_to_reverter(
        draft.proposal,
        context.state.reverts,
        current=context.current,
        now_seconds=context.now_seconds,
    )
    return replace(draft, proposal=proposal)


def pending(context: TickContext, draft: Draft) -> Draft:
    """Report ordered pods that are not ready; if they cannot start, that is the first limit."""
    proposal = _with_pending(context, draft.proposal)
    if draft.proposal.limited_by is Reason.REPLICAS_REVERTED:
        # Pods that do not start are noted; the client that puts the count back limits it.
        proposal = replace(proposal, limited_by=Reason.REPLICAS_REVERTED)
    return replace(draft, proposal=proposal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """knobs: what is decided in addition to the count. learners: what updates the memory in a tick.

    guards: what may hold a count back.
    """

    knobs: tuple[Knob, ...] = KNOBS
    learners: tuple[Learner, ...] = (quiet_tracked, calibrated, steered)
    guards: tuple[Guard, ...] = (
        blocked,
        safe,
        within_bounds,
        behaved,
        put_to_sleep,
        stepped,
        not_beyond_queue,
        unless_reverted,
        pending,
    )


STAGES = Stages()


def _with_pending(context: TickContext, proposal: Proposal) -> Proposal:
    """Report ordered pods that are not ready; if they cannot start, that is the first limit."""
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
    if context.queued:
        noted = proposal.noted(
            "pending",
            proposal.replicas,
            Reason.QUEUED,
            **guards.queue_inputs(context.queued),
        )
        limit = Reason.QUEUED if wants_more else proposal.limited_by
        return replace(noted, limited_by=limit)
    if context.coming:
        return proposal.noted(
            "pending", proposal.replicas, Reason.PENDING_PODS, pending_pods=context.coming
        )
    return proposal
