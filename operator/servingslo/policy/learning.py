"""What a tick teaches, beside the estimates: calibration of the laws, and the margin of demand."""

from dataclasses import replace

from servingslo.estimation import estimator, margin
from servingslo.estimation.observed import RECENT_SECONDS
from servingslo.models.latency import metric_seconds
from servingslo.policy.context import TickContext
from servingslo.policy.inputs import Actuation
from servingslo.policy.state import PlannerState, Steadiness

# More likely than not, demand moves as in a surge.
SURGE_PROBABILITY = 0.5
# Capacity for a surge is there one lead time after it; what waited for it has left one later.
SURGE_LEADS = 2.0


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


def margin_tracked(context: TickContext, state: PlannerState) -> PlannerState:
    """The memory after this tick's requests were held against the error budget.

    Only where the margin is what decides: misses while nothing can be seen, while the model is not
    trusted, at the maximum, during a rollout, while cards are short, while somebody else sets the
    count, or behind a surge, say nothing about it.
    """
    state = _with_surge(context, state)
    surge = state.margin.surge_seconds
    if surge is not None and context.now_seconds - surge < SURGE_LEADS * context.lead_seconds:
        return state
    if (
        context.acting_limit is not None
        or context.targets.actuation is Actuation.NONE
        or not context.trusted
        or context.signals.no_metrics is not None
        or context.unschedulable
        or context.observation.rollout_in_progress
        or context.current >= context.bounds.maximum
    ):
        return state
    seconds, observed = state.estimator.observed.latest(context.now_seconds)
    offered = context.estimate.offered_rate_per_second or 0.0
    rejected = context.estimate.rejected_per_second / offered if offered > 0 else 0.0
    burn = margin.burn_ratio(context.targets.objectives, observed, min(rejected, 1.0))
    return replace(state, margin=margin.learn(state.margin, burn, seconds))


def _with_surge(context: TickContext, state: PlannerState) -> PlannerState:
    if context.estimate.forecast.surge_probability < SURGE_PROBABILITY:
        return state
    return replace(state, margin=replace(state.margin, surge_seconds=context.now_seconds))
