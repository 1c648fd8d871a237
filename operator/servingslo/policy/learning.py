"""What a tick teaches, beside the estimates: calibration of the laws."""

from dataclasses import replace

from servingslo.estimation import estimator
from servingslo.estimation.observed import RECENT_SECONDS
from servingslo.models.latency import metric_seconds
from servingslo.policy.context import TickContext
from servingslo.policy.state import PlannerState, Steadiness


def calibrated(context: TickContext, state: PlannerState) -> PlannerState:
    """The memory after comparing the model's percentiles for the present load with those seen.

    Only while the same replicas have served for as long as latencies are observed over, and
    without a queue from before: otherwise two different loads would be compared. Once for each
    such time: windows that overlap would count the same requests again.
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
        # A mix that has just been renewed has tables to make as well: it is compared at the next.
        return state
    engines = serving * context.estimate.engines_per_pod
    present = context.prepared.model.predict(rate, engines, context.estimate.routing)
    if not present.stable:
        return state
    predicted: dict[str, dict[float, float]] = {}
    for objective in context.targets.objectives:
        seconds = metric_seconds(present, objective.metric, objective.percentile)
        predicted.setdefault(objective.metric.value, {})[objective.percentile] = seconds
    learnt = estimator.calibrate(state.estimator, predicted, context.estimate)
    compared = replace(fleet, since_seconds=context.now_seconds)
    return replace(state, estimator=learnt, fleet=compared)
