"""Learning of a tick in addition to the estimates: calibration of the laws, planned quantile."""

from dataclasses import replace

from servingslo.estimation import estimator
from servingslo.estimation.requests.observed import RECENT_SECONDS
from servingslo.models.fleet.objective_metrics import metric_seconds
from servingslo.policy.context import TickContext
from servingslo.policy.replicas.promise import misses_of, period_seconds, steer
from servingslo.policy.state import PlannerState, Steadiness


def calibrated(context: TickContext, state: PlannerState) -> PlannerState:
    """Compare the model's percentiles for the present load with the observed ones.

    Only while the same replicas have served for the whole time over which latencies are observed,
    and without an earlier queue: otherwise two different loads would be compared. Once for each
    such time: overlapping windows would count the same requests again.
    """
    serving = len(context.serving)
    fleet = state.fleet
    if fleet is None or fleet.serving != serving:
        fleet = Steadiness(serving=serving, since_seconds=context.now_seconds)
        state = replace(state, fleet=fleet)
    steady = context.now_seconds - fleet.since_seconds >= RECENT_SECONDS
    rate = context.estimate.arrival_rate_per_second
    if not steady or not rate or not serving or context.prepared is None or not context.trusted:
        return state
    if context.signals.no_metrics is not None or context.prepared.at_seconds == context.now_seconds:
        # A mix that has just been renewed also has to make its tables: it is compared at the next
        # tick.
        return state
    engines = serving * context.estimate.engines_per_pod
    routing, slowness = context.estimate.routing, context.slowness
    present = context.prepared.model.predict(slowness.load_factor(routing) * rate, engines, routing)
    if not present.stable:
        return state
    predicted: dict[str, dict[float, float]] = {}
    for objective in context.targets.objectives:
        percentile = slowness.percentile(objective.percentile, routing)
        seconds = slowness.ratio * metric_seconds(present, objective.metric, percentile)
        predicted.setdefault(objective.metric.value, {})[objective.percentile] = seconds
    learnt = estimator.calibrate(state.estimator, predicted, context.estimate)
    compared = replace(fleet, since_seconds=context.now_seconds)
    return replace(state, estimator=learnt, fleet=compared)


def steered(context: TickContext, state: PlannerState) -> PlannerState:
    """Update the planned quantile from the attained share of this tick's requests.

    Refused requests missed every objective.
    """
    windows = context.state.estimator.observed.windows
    if not windows or windows[-1].time_seconds != context.now_seconds:
        return state
    targets, before = context.targets, state.promise.at_seconds
    seconds = 0.0 if before is None else context.now_seconds - before
    refused = context.estimate.rejected_per_second * seconds
    seen = misses_of(windows[-1].deltas, targets.objectives, refused)
    if seen is None:
        return state
    promise = steer(
        state.promise,
        seen,
        target_ratio=targets.error_budget_target_ratio,
        period_seconds=period_seconds(targets),
        now_seconds=context.now_seconds,
    )
    return replace(state, promise=promise)
