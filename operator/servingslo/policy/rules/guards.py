"""Guards: checks between the count that the models want and the count that is ordered.

Each is a pure function from a proposal to a proposal, and notes a step when it changes something.
The tuples say in which order they stand; running one on its own output changes nothing more.
"""

from collections.abc import Callable
from dataclasses import replace

from servingslo.policy.decision_parts import StepValue
from servingslo.policy.hpa_behavior import normalize
from servingslo.policy.inputs import Actuation, FallbackBehavior, Grant
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.ownership import refused_pods
from servingslo.policy.replicas.pods import Condition
from servingslo.policy.replicas.proposal import STEP_DOWN_STAGE, Proposal
from servingslo.policy.rules.requirement import YOUNG_SECONDS
from servingslo.policy.rules.step_down import step_down_blocks
from servingslo.policy.rules.zero import put_to_sleep
from servingslo.reasons import Reason

Guard = Callable[[TickContext, Proposal], Proposal]


def block_step_down(context: TickContext, proposal: Proposal) -> Proposal:
    """Allow no fewer replicas than now while anything forbids it; report every reason."""
    if proposal.replicas >= context.current:
        return proposal
    blocks = step_down_blocks(context)
    for block in blocks[1:]:
        proposal = proposal.noted(STEP_DOWN_STAGE, context.current, block.reason, **block.inputs)
    for block in blocks[:1]:
        proposal = proposal.moved(STEP_DOWN_STAGE, context.current, block.reason, **block.inputs)
    return proposal


def check_step_down(context: TickContext, proposal: Proposal) -> Proposal:
    """Step down only as far as every constraint holds until a new replica could be ready.

    That is the N−1 check, or N−k.
    """
    if proposal.replicas >= context.current:
        return proposal
    safe = proposal.requirement.safe_replicas
    allowed = max(proposal.replicas, min(context.current, safe))
    return proposal.moved(
        STEP_DOWN_STAGE,
        allowed,
        Reason.STEP_DOWN_UNSAFE,
        safe_replicas=safe,
        lead_seconds=context.lead_seconds,
    )


def clamp(context: TickContext, proposal: Proposal) -> Proposal:
    """Move the count into the bounds of tenant and administrator."""
    bounds = context.bounds
    if proposal.replicas > bounds.maximum:
        return proposal.moved(
            "bounds", bounds.maximum, bounds.maximum_reason, max_replicas=bounds.maximum
        )
    return raise_to_minimum(context, proposal)


def raise_to_minimum(context: TickContext, proposal: Proposal) -> Proposal:
    """At least the stated minimum."""
    least = context.bounds.minimum
    return proposal.moved(
        "bounds",
        max(proposal.replicas, least),
        Reason.MIN_REPLICAS_REACHED,
        min_replicas=least,
    )


def apply_behavior(context: TickContext, proposal: Proposal) -> Proposal:
    """Apply stabilization and rate policies, and keep their memory.

    A workload is young until latencies of its requests were observed for five minutes in all,
    restarts of the operator included.
    """
    young = context.state.promise.seconds < YOUNG_SECONDS
    behavior = context.targets.behavior
    outcome, memory = normalize(
        context.state.behavior,
        behavior=behavior.of_young() if young else behavior,
        current=context.current,
        desired=proposal.replicas,
        min_replicas=context.bounds.minimum,
        max_replicas=context.bounds.maximum,
        now_seconds=context.now_seconds,
    )
    reason = outcome.limited_by or Reason.STABILIZED
    moved = proposal.moved(
        "behavior", outcome.replicas, reason, stabilized_replicas=outcome.stabilized
    )
    return replace(moved, behavior=memory)


def limit_step(context: TickContext, proposal: Proposal) -> Proposal:
    """Limit the change in one decision to the administrator's largest."""
    current, most = context.current, context.limits.max_step
    if most is None:
        return proposal
    limited = min(max(proposal.replicas, current - most), current + most)
    return proposal.moved("administrator", limited, Reason.ADMINISTRATOR_LIMIT, max_step=most)


def order_no_more(context: TickContext, proposal: Proposal) -> Proposal:
    """Order no more replicas while pods wait in a queue, or most fail: so would new ones."""
    most = max(context.current, context.bounds.minimum)
    if proposal.replicas <= most:
        return proposal
    pods = context.pods
    for condition in Condition:
        counts = condition.value
        forbids = condition is not Condition.FAILING or pods.mostly_failing
        if counts.stage and counts.stops and forbids and pods.of(condition):
            return proposal.moved(counts.stage, most, counts.stops, **pods.inputs(condition))
    return proposal


def stay_within_grant(context: TickContext, proposal: Proposal) -> Proposal:
    """Order no more than what is granted has GPUs for, and step down to it.

    With unknown GPUs nothing grows. Without metrics an outage removes no capacity.
    """
    grant, current = context.observation.grant, context.current
    if grant is None:
        return proposal
    if grant.priority_bounded:
        proposal = proposal.noted(
            "budget",
            proposal.replicas,
            Reason.PRIORITY_BOUNDED,
            priority=context.targets.priority,
            max_priority=context.limits.max_priority,
        )
    if grant.unknown:
        most = min(proposal.replicas, current)
        return proposal.moved("budget", most, Reason.GPUS_UNKNOWN, detail=grant.unknown)
    if not grant.budget:
        return proposal  # the pools are bounded together
    most = grant.gpus // grant.gpus_per_replica
    if context.signals.no_metrics is not None:
        most = max(most, current)
    if proposal.replicas <= most:
        return proposal
    wanted = proposal.replicas * grant.gpus_per_replica
    lacking = wanted - most * grant.gpus_per_replica
    return proposal.moved(
        "budget",
        most,
        Reason.BUDGET_MOVED if most < current else Reason.BUDGET_REACHED,
        granted_gpus=grant.gpus,
        wanted_gpus=wanted,
        lost_per_second=lacking * grant.kept_per_gpu,
        detail=shortage(grant, wanted, lacking),
    )


def shortage(grant: Grant, wanted_gpus: int, lacking_gpus: int) -> str:
    """What a resource lacks, what that costs in requests, and who has it, in words."""
    noun = "GPU" if lacking_gpus == 1 else "GPUs"
    wanted = "1 GPU" if wanted_gpus == 1 else f"{wanted_gpus} GPUs"
    said = f"{grant.kind} {grant.budget} grants {grant.gpus} of {wanted}"
    if grant.kept_per_gpu > 0.0:
        # Two digits, because a condition is written whenever it changes.
        lost = f"{lacking_gpus * grant.kept_per_gpu:.2g}"
        said = f"{said}; the {noun} it lacks would keep {lost} requests/s"
    return f"{said}; {grant.holders}" if grant.holders else said


def leave_to_reverter(context: TickContext, proposal: Proposal) -> Proposal:
    """Keep the current count while another client reverts each change of it.

    This limits the count as long as the pause lasts, whatever the demand requires meanwhile.
    """
    reverts = context.state.reverts
    if context.targets.actuation is not Actuation.SCALE or reverts is None:
        return proposal
    if not reverts.pauses(context.now_seconds):
        return proposal
    reason = Reason.REPLICAS_REVERTED
    return proposal.held("reverts", context.current, reason, **reverts.inputs())


def report_pending(context: TickContext, proposal: Proposal) -> Proposal:
    """Report ordered pods that are not ready; if they cannot start, that is the first limit.

    But a client that puts the count back limits it before them.
    """
    refused = refused_pods(context.observation)
    ready = len(context.signals.serving_pods) + len(context.signals.nodes)
    wants_more = proposal.replicas > ready
    if refused is not None and wants_more:
        return _stopped(proposal, refused.reason, limits=True, detail=refused.detail)
    for condition in (Condition.UNSCHEDULABLE, Condition.QUEUED):
        if (reason := condition.value.stops) and context.pods.of(condition):
            inputs = context.pods.inputs(condition)
            return _stopped(proposal, reason, limits=wants_more, **inputs)
    starting = context.pods.coming - len(context.pods.of(Condition.FAILING))
    if starting > 0:
        return _stopped(proposal, Reason.PENDING_PODS, limits=False, pending_pods=starting)
    return proposal


def hold_nodes(context: TickContext, proposal: Proposal) -> Proposal:
    """Keep the current count if pods of the target are nodes of an engine: none is a replica."""
    nodes, current = context.signals.nodes, context.current
    if not nodes:
        return proposal
    detail = f"{nodes[0]} runs no server"
    held = proposal.limited_by if proposal.replicas == current else None
    found = proposal.held("nodes", current, Reason.NODES_OF_AN_ENGINE, detail=detail)
    return replace(found, limited_by=held or Reason.NODES_OF_AN_ENGINE)


def raise_to_fallback(context: TickContext, proposal: Proposal) -> Proposal:
    """After a while without metrics at least the fallback's floor, never fewer than now.

    Metrics that never were good count as long missing.
    """
    fallback, without = context.targets.fallback, context.without_metrics_seconds
    away = without is None or without >= fallback.stale_after_seconds
    if fallback.behavior is not FallbackBehavior.FLOOR or fallback.replicas is None or not away:
        return proposal
    return proposal.moved(
        "fallback",
        max(proposal.replicas, min(fallback.replicas, context.bounds.maximum)),
        Reason.FALLBACK_FLOOR,
        fallback_replicas=fallback.replicas,
        without_metrics_seconds=without,
    )


GUARDS: tuple[Guard, ...] = (
    block_step_down,
    check_step_down,
    clamp,
    apply_behavior,
    put_to_sleep,
    limit_step,
    order_no_more,
    stay_within_grant,
    leave_to_reverter,
    report_pending,
    hold_nodes,
)
# At zero replicas there is nothing to step down from.
ASLEEP_GUARDS: tuple[Guard, ...] = (
    clamp,
    limit_step,
    stay_within_grant,
    leave_to_reverter,
    hold_nodes,
)
# Raising to the minimum needs no metrics. A count above the maximum stays until there are metrics
# again: an outage never removes capacity.
BLIND_GUARDS: tuple[Guard, ...] = (
    raise_to_fallback,
    raise_to_minimum,
    limit_step,
    stay_within_grant,
    leave_to_reverter,
    hold_nodes,
)


def _stopped(proposal: Proposal, reason: Reason, *, limits: bool, **inputs: StepValue) -> Proposal:
    """The proposal with a note about ordered pods, which limit the count unless a client does."""
    noted = proposal.noted("pending", proposal.replicas, reason, **inputs)
    if not limits or proposal.limited_by is Reason.REPLICAS_REVERTED:
        return noted
    return replace(noted, limited_by=reason)
