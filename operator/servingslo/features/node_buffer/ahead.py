"""The count that will be asked for when a node that is ordered now can serve, by the same rules.

Node lead and pod lead after now the forecast is read at the quantile of the plan. What waits now is
served by then, so that the difference to the present plan is growth alone. Bounds are those of the
tick at which the pods of these nodes are ordered, a pod lead earlier.
"""

from dataclasses import replace

from servingslo.policy.replicas.bounds_in_force import with_bounds_in_force
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.demand import Demand
from servingslo.policy.replicas.proposal import bounds_of
from servingslo.policy.replicas.sizing import Load
from servingslo.policy.rules.guards import clamp, stay_within_grant
from servingslo.policy.rules.requirement import required_replicas


def required_ahead(context: TickContext, ahead_seconds: float) -> int | None:
    """The count that demand needs so far ahead, within bounds and grant; None if unknown."""
    if context.demand is None or context.signals.no_metrics is not None:
        return None
    ordered_seconds = context.now_seconds + ahead_seconds - context.lead_seconds
    targets = with_bounds_in_force(context.targets, context.lead_seconds, ordered_seconds)
    later = replace(
        context,
        targets=targets,
        bounds=bounds_of(targets, context.limits, current=context.observation.desired_replicas),
        lead_seconds=ahead_seconds,
        demand=_demand_ahead(context, context.demand, ahead_seconds),
    )
    return stay_within_grant(later, clamp(later, required_replicas(later))).replicas


def _demand_ahead(context: TickContext, demand: Demand, ahead_seconds: float) -> Demand:
    forecast = context.estimate.forecast
    high = max(
        forecast.quantile_per_second(ahead_seconds, demand.probability),
        forecast.risen_per_second(ahead_seconds),
    )
    return replace(
        demand,
        lead_seconds=ahead_seconds,
        mean_at_lead_per_second=forecast.mean_per_second(ahead_seconds),
        backlog_at_lead_requests=0.0,
        scale_up_load=Load(rate_per_second=high, drain_per_second=0.0),
    )
