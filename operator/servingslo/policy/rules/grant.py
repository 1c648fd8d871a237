"""The guard of a budget: no more replicas than the grant has GPUs for, whatever the demand."""

from servingslo.policy.inputs import Grant
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.guards import Proposal
from servingslo.reasons import Reason

STAGE = "budget"


def within_grant(context: TickContext, proposal: Proposal, *, seen: bool = True) -> Proposal:
    """The proposal within the grant of the resource; unchanged if no budget bounds it.

    With unknown GPUs nothing grows. seen: metrics allow a step down; without them an outage removes
    no capacity.
    """
    grant, current = context.observation.grant, context.current
    if grant is None:
        return proposal
    if grant.priority_bounded:
        proposal = proposal.noted(
            STAGE,
            proposal.replicas,
            Reason.PRIORITY_BOUNDED,
            priority=context.targets.priority,
            max_priority=context.limits.max_priority,
        )
    if grant.unknown:
        most = min(proposal.replicas, current)
        return proposal.moved(STAGE, most, Reason.GPUS_UNKNOWN, detail=grant.unknown)
    if not grant.budget:
        return proposal  # the pools are bounded together
    most = grant.gpus // grant.gpus_per_replica
    if not seen:
        most = max(most, current)
    if proposal.replicas <= most:
        return proposal
    wanted = proposal.replicas * grant.gpus_per_replica
    lacking = wanted - most * grant.gpus_per_replica
    lost_per_second = lacking * grant.kept_per_gpu
    return proposal.moved(
        STAGE,
        most,
        Reason.BUDGET_MOVED if most < current else Reason.BUDGET_REACHED,
        granted_gpus=grant.gpus,
        wanted_gpus=wanted,
        lost_per_second=lost_per_second,
        detail=shortage(grant, wanted, lacking),
    )


def shortage(grant: Grant, wanted_gpus: int, lacking_gpus: int) -> str:
    """What a resource lacks, what that costs in requests, and who has it, in words."""
    noun = "GPU" if lacking_gpus == 1 else "GPUs"
    wanted = "1 GPU" if wanted_gpus == 1 else f"{wanted_gpus} GPUs"
    said = f"ServingBudget {grant.budget} grants {grant.gpus} of {wanted}"
    if grant.kept_per_gpu > 0.0:
        # Two digits, because a condition is written whenever it changes.
        lost = f"{lacking_gpus * grant.kept_per_gpu:.2g}"
        said = f"{said}; the {noun} it lacks would keep {lost} requests/s"
    return f"{said}; {grant.holders}" if grant.holders else said
