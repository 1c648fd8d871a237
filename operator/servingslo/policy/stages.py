"""The stages of a tick in order, as tuples of functions; an ablation leaves one out."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from servingslo.estimation import estimator
from servingslo.estimation.estimate import Estimate
from servingslo.estimation.requests.observed import RECENT_SECONDS
from servingslo.models.fleet.objective_metrics import metric_seconds
from servingslo.policy import insights
from servingslo.policy.inputs import ForecastMode
from servingslo.policy.knobs.catalogue import KNOBS
from servingslo.policy.knobs.protocol import Knob
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.ownership import refused_pods
from servingslo.policy.replicas.promise import after_window as promise_after
from servingslo.policy.replicas.promise import misses_of, with_degraded
from servingslo.policy.replicas.reserve_state import ReserveState, count_misses
from servingslo.policy.replicas.saturation import MISSED_MARGIN, after_window, settles
from servingslo.policy.replicas.sizing import carried_rate_per_second
from servingslo.policy.replicas.state import PlannerState, Steadiness
from servingslo.policy.rules import zero
from servingslo.policy.rules.guards import GUARDS, Guard
from servingslo.policy.rules.requirement import sizing_case
from servingslo.policy.rules.reserve import renewed_reserve
from servingslo.policy.rules.step_down import misses_surely

Learner = Callable[[TickContext, PlannerState], PlannerState]
# What an estimate says of the pool itself, where the others of its path are known.
View = Callable[[Estimate], Estimate]


def track_quiet(context: TickContext, state: PlannerState) -> PlannerState:
    """The memory with the time for which no request has arrived."""
    since_seconds = zero.quiet_since(context, state.quiet_since_seconds)
    return replace(state, quiet_since_seconds=since_seconds)


def calibrate(context: TickContext, state: PlannerState) -> PlannerState:
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
    rate = context.estimate.load_per_second
    if not steady or not rate or not serving or context.prepared is None or not context.trusted:
        return state
    if _degraded(context):
        # The engines here do not get this rate.
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


def count_promise(context: TickContext, state: PlannerState) -> PlannerState:
    """Count this tick's requests in the attained share, also beside the reserve's own.

    Refused requests missed every objective. Requests without a whole answer for another cause count
    in the share alone: more replicas would not have answered them.
    """
    windows = context.state.estimator.observed.windows
    if not windows or windows[-1].time_seconds != context.now_seconds:
        return state
    targets, before = context.targets, state.promise.at_seconds
    seconds = 0.0 if before is None else context.now_seconds - before
    refused = context.estimate.rejected_per_second * seconds
    ledger = context.estimate.ledger
    failed, aborted = (
        (0.0, 0.0) if ledger is None else (ledger.failed_per_second, ledger.aborted_per_second)
    )
    seen = misses_of(windows[-1].latencies, targets.objectives, refused)
    if seen is None:
        return state
    seen = with_degraded(seen, _degraded(context) * seconds, targets)
    promise = promise_after(
        state.promise,
        seen,
        lost=((failed or 0.0) + (aborted or 0.0)) * seconds,
        period_seconds=targets.promise_period_seconds,
        now_seconds=context.now_seconds,
    )
    if not _may_grow(context):
        # What no order could have served says nothing about the rule that orders.
        return replace(state, promise=promise)
    reserve = count_misses(
        state.reserve, seen, target_ratio=targets.promised_share_ratio, seconds=seconds
    )
    return replace(state, promise=promise, reserve=reserve)


def _may_grow(context: TickContext) -> bool:
    """Whether more replicas can be had: the operator orders them, and nobody refuses them."""
    refused = refused_pods(context.observation) is not None or context.pods.stopped
    grant, most = context.observation.grant, context.bounds.maximum
    if grant is not None:
        most = 0 if grant.unknown else min(most, grant.gpus // grant.gpus_per_replica)
    return not refused and context.acting_limit is None and context.current < most


def measure_capacity(context: TickContext, state: PlannerState) -> PlannerState:
    """Compare what the serving replicas serve with what the law says, where one of them is wrong.

    Not while pods settle: they have not their share yet, and queues of before are at the others.
    """
    windows, signal = state.estimator.observed.windows, context.estimate.saturation_signal
    rate, serving, growth = context.estimate.load_per_second, len(context.serving), signal.growth
    current = windows and windows[-1].time_seconds == context.now_seconds
    engines = [engine for pod in context.serving for engine in pod.engines]
    limits = {(engine.max_num_seqs, engine.max_num_batched_tokens) for engine in engines}
    if context.observation.rollout_in_progress or len(limits) > 1:
        # Pods of two templates serve by two laws.
        return state
    if not current or not rate or not serving or context.prepared is None or not context.proven:
        return state
    case = replace(sizing_case(context, context.prepared), capacity_ratio=1.0)
    late = misses_surely(windows[-1].latencies, context.targets.objectives)
    grows = growth is not None and growth.sure and signal.waiting_sustained
    recovers = growth is not None and growth.after < growth.before
    short = (late or grows) and not recovers and not settles(context.serving)
    carried = math.inf
    if short or state.shortage.ratio < 1.0:
        # Nothing while an objective is infeasible: it is missed at any count.
        carried = carried_rate_per_second(case, (), serving)
    served = None
    if short and rate < carried:
        served = rate / carried / MISSED_MARGIN
        if growth is not None and grows:
            ended = rate * growth.ended / growth.arrived
            served = min(ended / (case.saturation_per_second * serving), 1.0)
    kept = 0.0 if late or grows or carried <= 0.0 else rate / carried
    return replace(state, shortage=after_window(state.shortage, served, kept, context.now_seconds))


def choose_reserve(context: TickContext, state: PlannerState) -> PlannerState:
    """Renew the rule that the past asks for, while a proven law says what a replica carries."""
    if context.targets.forecast.mode is ForecastMode.OFF:
        return replace(state, reserve=ReserveState())
    if context.prepared is None or not context.proven or context.signals.no_metrics is not None:
        return state
    case = replace(sizing_case(context, context.prepared), capacity_ratio=state.shortage.ratio)
    return replace(state, reserve=renewed_reserve(context, case, state.reserve))


def learn_features(context: TickContext, state: PlannerState) -> PlannerState:
    """The memories of features that learn something beside the count."""
    return replace(state, features=insights.learn(context, state.features))


def _degraded(context: TickContext) -> float:
    """Requests per second that a fallback served."""
    ledger = context.estimate.ledger
    return 0.0 if ledger is None else ledger.degraded_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """knobs: what is decided in addition to the count. learners: what updates the memory in a tick.

    guards: what may hold a count back. view: on the estimate, None if it is taken as it is.
    held_up: the engines wait for another pool.
    """

    knobs: tuple[Knob, ...] = KNOBS
    learners: tuple[Learner, ...] = (
        track_quiet,
        calibrate,
        count_promise,
        measure_capacity,
        choose_reserve,
        learn_features,
    )
    guards: tuple[Guard, ...] = GUARDS
    view: View | None = None
    held_up: bool = False


STAGES = Stages()
