"""Scale-downs: what forbids one, and the least count that holds until a new replica is ready.

Lengths and service times are known only for requests that have ended. If requests become longer,
the running ones show it first: by Little's law there are more of them than the rate and the present
model explain. The fleet is not reduced against that evidence, however far its rate falls. Source:
J. D. C. Little, "A proof for the queuing formula L = λW", Operations Research 1961.
"""

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter

from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.demand import Demand, step_down_load
from servingslo.policy.replicas.pods import Condition
from servingslo.policy.replicas.prepared_model import PreparedModel
from servingslo.policy.replicas.proposal import StepDownBlock
from servingslo.policy.replicas.saturation import saturation_need
from servingslo.policy.replicas.sizing import SizingCase, least_safe_count
from servingslo.reasons import Reason

# The first requests to finish are the short ones. So lengths, and all values from them, are too low
# until the long ones have ended: several residences of a mean request, within bounds.
WARM_UP_RESIDENCES = 3.0
LEAST_WARM_UP_SECONDS = 120.0
LONGEST_WARM_UP_SECONDS = 600.0
# Standard deviations that the number of running requests exceeds in one window in a thousand.
SURE_DEVIATIONS = 3.0
# One window in forty, and misses in groups of two.
MISS_DEVIATIONS, MISS_GROUP = 2.0, 2.0
# Error of lengths and law at any moment, without a change of the requests.
LEAST_RATIO = 1.25
# Requests three times as long at the same rate; beyond, it is a backlog that was not observed yet.
LARGEST_RATIO = 3.0


def step_down_blocks(context: TickContext) -> tuple[StepDownBlock, ...]:
    """What forbids fewer replicas than now, whatever the demand."""
    rollout = context.observation.rollout_in_progress and context.own_rollout is None
    plain = (Reason.ROLLOUT_IN_PROGRESS if rollout else None, context.facts.no_step_down)
    blocks = (
        context.signals.step_down_block,
        *(StepDownBlock(reason=reason, inputs={}) for reason in plain if reason is not None),
        warming_up(context),
        *(
            StepDownBlock(reason=reason, inputs=context.pods.inputs(one))
            for one in Condition
            if (reason := one.value.forbids_fewer)
            and any(name not in context.facts.on_call for name, _ in context.pods.of(one))
        ),
        _backlog(context),
        _model_block(context),
    )
    return tuple(block for block in blocks if block is not None)


def _backlog(context: TickContext) -> StepDownBlock | None:
    """Block while pods start and the serving ones are too few for the arrivals or the queue.

    The starting pods will serve them. Once all have started, little work may be left. But if some
    were released for that reason, they would be ordered again a moment later. The more pods start,
    the sooner the first of them are ready.
    """
    if context.prepared is None or not context.pods.starting:
        return None
    engines = len(context.serving) * context.estimate.engines_per_pod
    capacity = engines * context.prepared.model.saturation_rate_per_second
    waiting = context.estimate.backlog_requests * context.estimate.keeping_ratio
    started = capacity * context.wait_budget_seconds
    arriving = context.estimate.arrival_rate_per_second or 0.0
    if waiting <= started and arriving <= capacity:
        return None
    return StepDownBlock(
        reason=Reason.BACKLOG_BOUND,
        inputs={
            "backlog_requests": waiting,
            "started_in_time_requests": started,
            "arrival_rate_per_second": arriving,
            "serving_rate_per_second": capacity,
        },
    )


def warming_up(context: TickContext) -> StepDownBlock | None:
    """Block while it was observed without a gap for less than a few residences of its requests."""
    since = context.state.watched_since_seconds
    seen = 0.0 if since is None else context.now_seconds - since
    rate, running = context.estimate.load_per_second, context.estimate.running_requests
    residence = running / rate if rate and running is not None else 0.0
    needed = min(
        max(WARM_UP_RESIDENCES * residence, LEAST_WARM_UP_SECONDS), LONGEST_WARM_UP_SECONDS
    )
    if seen >= needed:
        return None
    return StepDownBlock(
        reason=Reason.WARMING_UP, inputs={"seen_seconds": seen, "needed_seconds": needed}
    )


def _model_block(context: TickContext) -> StepDownBlock | None:
    """Block a law that is not proven from reducing a fleet, unless objectives are seen as met."""
    if (
        context.prepared is None
        or context.proven
        or (context.demand is not None and context.demand.idle)
    ):
        return None
    missed = missed_objective(context)
    if missed is None:
        return None
    metric, share = missed
    return StepDownBlock(
        reason=context.estimate.law.reason, inputs={"metric": metric.value, "share_ratio": share}
    )


def missed_objective(context: TickContext) -> tuple[LatencyMetric, float | None] | None:
    """The first metric not observed to keep its objective, with the share of requests that does."""
    for objective in context.targets.objectives:
        share = context.estimate.observed_share(objective)
        if share is None or share[0] < objective.percentile / 100.0:
            return objective.metric, None if share is None else share[0]
    return None


def misses_surely(observed: Mapping[str, HistogramDelta], objectives: Sequence[Objective]) -> bool:
    """Whether more of the observed requests missed an objective than chance explains.

    Misses come in groups, so their number varies more than that of independent misses. An objective
    without observations is not missed.
    """
    for objective in objectives:
        latency = observed.get(objective.metric)
        share = None if latency is None else latency.share_within(objective.threshold_seconds)
        if latency is None or share is None:
            continue
        count = latency.count
        allowed = count * (1.0 - objective.percentile / 100.0)
        missed = count * (1.0 - share[1])
        if missed > allowed + MISS_DEVIATIONS * math.sqrt(MISS_GROUP * max(allowed, 1.0)):
            return True
    return False


def count_tried(context: TickContext, prepared: PreparedModel) -> int | None:
    """The count to try from while the law does not reach saturation; None if it does.

    Measured, the count serves: then utilization by the law alone neither orders more than one at
    each decision nor forbids one fewer. At the first sign of a shortage the law decides again.
    """
    reach = context.estimate.law.reach_sequences
    if reach is None or not context.trusted or reach >= prepared.model.cap:
        return None
    if not is_seen_to_serve(context):
        return None
    return context.current - context.excluded - context.targets.replicas.tolerated_failures


def is_seen_to_serve(context: TickContext) -> bool:
    """Whether the present count is observed to keep every objective, with nothing at its limit.

    Its capacity is then known without a law. An untrusted or young law is no reason for more
    replicas. The knee ceiling is used only if nothing else can show a shortage.
    """
    known = all(_is_resolved(context, objective) for objective in context.targets.objectives)
    return known and not is_overloaded(context)


def _is_resolved(context: TickContext, objective: Objective) -> bool:
    """Whether observations of the metric can show that an objective is kept.

    They cannot if more requests than it lets miss lie in the histogram bucket of its threshold.
    """
    share = context.estimate.observed_share(objective)
    return share is not None and share[1] - share[0] <= 1.0 - objective.percentile / 100.0


def is_overloaded(context: TickContext) -> bool:
    """Whether a measured signal is beyond its limit, or misses exceed what chance explains."""
    measured = saturation_need(context.estimate, context.targets, context.serving)
    return measured.full or misses_surely(context.estimate.observed, context.targets.objectives)


def safe_count(
    context: TickContext,
    case: SizingCase,
    demand: Demand,
    infeasible: tuple[Objective, ...],
    wanted: int,
    spare: int,
) -> int:
    """The least count that holds until a new replica is ready; without trust, at most one fewer."""
    if wanted >= context.current:
        return context.current
    implied = implied_arrival_rate_per_second(context, case, demand)
    load = step_down_load(context.estimate, demand, implied)
    spare += pods_behind(context, context.wait_budget_seconds, context.estimate.keeping_ratio)
    least = least_safe_count(
        case, load, infeasible, lowest=wanted, current=context.current, spare=spare
    )
    least = within_reach(context, case, load.rate_per_second, least, spare)
    return least if context.proven else max(least, context.current - 1)


def within_reach(
    context: TickContext, case: SizingCase, rate_per_second: float, least: int, spare: int
) -> int:
    """The least count at which no more sequences run at once than the law is known for."""
    reach = context.estimate.law.reach_sequences
    if reach is None or not context.trusted:
        return least
    running = attrgetter("running_mean")
    rate = case.load_factor * rate_per_second
    while least < context.current:
        if case.frontier.reading(running, rate, case.fleet(max(least - spare, 1))) <= reach:
            break
        least += 1
    return least


def pods_behind(context: TickContext, seconds: float, ratio: float) -> int:
    """Pods with more in their queue than they start within this time; 0 without a model.

    They serve earlier requests, which are late already, and their queue stays with them; new
    arrivals depend on the other pods. ratio: of the requests that count.
    """
    if context.prepared is None:
        return 0
    most = context.prepared.model.saturation_rate_per_second * seconds
    return sum(
        any((engine.waiting or 0.0) * ratio > most for engine in pod.engines)
        for pod in context.serving
    )


def implied_arrival_rate_per_second(
    context: TickContext, case: SizingCase, demand: Demand
) -> float:
    """The arrival rate that would explain the running requests, requests per second.

    Only a significant excess counts. Engines whose requests wait are left out: they serve earlier
    requests. 0 if about the expected number runs, if nothing arrives, or if the present count is
    beyond saturation.
    """
    rate = demand.rate_per_second
    load = rate + context.estimate.sheddable_per_second
    fleet = case.fleet(len(context.serving))
    running = [
        engine.running
        for pod in context.serving
        for engine in pod.engines
        if engine.running is not None and not engine.waiting
    ]
    if rate <= 0.0 or not running:
        return 0.0

    def expected(name: str) -> float:
        return case.frontier.reading(attrgetter(name), case.load_factor * load, fleet)

    if load >= case.saturation_per_second * len(context.serving):
        return 0.0
    sure = sum(running) / len(running) - SURE_DEVIATIONS * math.sqrt(expected("running_variance"))
    if sure <= LEAST_RATIO * expected("running_floor"):
        return 0.0
    ratio = sure / expected("running_mean")
    return rate * min(ratio, LARGEST_RATIO) if ratio > LEAST_RATIO else 0.0
