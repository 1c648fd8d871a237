"""Whether a further replica can be had, and which share of the requests the ready ones cannot take.

The law decides the share while it is trusted: one minus what ready replicas carry within the
objectives, divided by what arrives: the filtered rate, because counts of one scrape are noise that
would move the share to and fro. If an objective is missed all the same, or without a trusted
law, the share moves by one first step in each time over which latencies are observed.
"""

from servingslo.estimation.requests.observed import RECENT_SECONDS
from servingslo.models.engine.admission import shed_ratio
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.ownership import refused_pods
from servingslo.policy.replicas.pods import Condition
from servingslo.policy.replicas.proposal import Proposal, Requirement
from servingslo.policy.replicas.sizing import carried_rate_per_second
from servingslo.policy.rules.guards import stay_within_grant
from servingslo.policy.rules.requirement import sizing_case
from servingslo.reasons import Reason

# The first step to a fallback, and the least one: with 10 requests/s it brings 15 in the two
# scrapes that verify it. Judgement; measured by requests that a bad fallback spoils before it is
# left.
FIRST_STEP_RATIO = 0.05
# How far ahead a step looks: the time until it is verified and the next one begins. A share for the
# load of now would always be a step behind a crowd that grows.
LEAD_SECONDS = 60.0
# Without a trusted law requests come back while every objective is met with this much room: at half
# of its threshold, a percentile of a queue leaves room for a tenth more load.
ROOM_RATIO = 0.5


def nothing_more(context: TickContext) -> Reason | None:
    """Why no further replica can be had; None if one can.

    Every replica that can be had is ordered: the maximum, a budget's GPUs, or the cluster's room.
    """
    current = context.current
    if current >= context.bounds.maximum:
        return context.bounds.maximum_reason
    granted = stay_within_grant(context, Proposal.of(current + 1))
    if granted.replicas <= current:
        return granted.limited_by or Reason.BUDGET_REACHED
    if (refused := refused_pods(context.observation)) is not None:
        return refused.reason
    waiting = (Condition.UNSCHEDULABLE, Condition.QUEUED)
    return next((one.value.stops for one in waiting if context.pods.of(one)), None)


def wanted_share_ratio(
    context: TickContext, requirement: Requirement, share: float, steady_seconds: float
) -> float:
    """The share of all requests that should go to the fallback, 0 to 1, before any bound.

    share: that goes there now. steady_seconds: for how long it has.
    """
    by_law = _by_law(context, requirement)
    missed = misses_objective(context)
    # What was observed before the last step says nothing about this share.
    observed = steady_seconds >= RECENT_SECONDS
    if by_law is not None and not (missed and by_law <= share):
        return by_law
    if missed:
        return share + FIRST_STEP_RATIO if observed else share
    return share - FIRST_STEP_RATIO if observed and _has_room(context) else share


def misses_objective(context: TickContext) -> bool:
    """Whether any objective is missed at its percentile, as observed over the last minutes."""
    for objective in context.targets.objectives:
        share = context.estimate.observed_share(objective)
        # The most favourable end: a threshold between two buckets proves no miss.
        if share is not None and 100.0 * share[1] < objective.percentile:
            return True
    return False


def _by_law(context: TickContext, requirement: Requirement) -> float | None:
    """The share beyond what ready replicas carry; None without a trusted law or a rate."""
    arriving = _arriving_per_second(context)
    if context.prepared is None or not context.proven or not arriving:
        return None
    if not context.prepared.limits.share_steps:
        return None
    serving = len(context.serving)
    if not serving:
        return None
    case = sizing_case(context, context.prepared)
    carried = carried_rate_per_second(case, requirement.infeasible, serving)
    return shed_ratio(arriving, carried)


def _arriving_per_second(context: TickContext) -> float | None:
    """The filtered rate, with retries as in the last window; None while it is unknown.

    Of a crowd that grows, the rate at which the next step comes; back only by that of now.
    """
    estimate = context.estimate
    rate, offered = estimate.arrival_rate_per_second, estimate.offered_rate_per_second
    if not rate or offered is None or not estimate.forecast.known:
        return offered
    now, ahead = (estimate.forecast.mean_per_second(lead) for lead in (0.0, LEAD_SECONDS))
    return max(now, ahead) * offered / rate


def _has_room(context: TickContext) -> bool:
    """Whether every objective is observed to be met far within its threshold."""
    told = []
    for objective in context.targets.objectives:
        observed = context.estimate.observed.get(objective.metric)
        if observed is None:
            return False
        share = observed.share_within(ROOM_RATIO * objective.threshold_seconds)
        told.append(share is not None and 100.0 * share[0] >= objective.percentile)
    return all(told)
