"""Steps down: what forbids one, and the least count that holds until a replica could be had again.

Lengths and times of service are known of requests that have ended. Where requests become longer the
ones in flight tell it first: by Little's law there are more of them than the rate and the model of
now explain. A fleet is not made smaller against that evidence, however far its rate falls.
Source: J. D. C. Little, "A proof for the queuing formula L = λW", Operations Research 1961.
"""

import math
from operator import attrgetter

from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.context import TickContext
from servingslo.policy.findings import suspect_block
from servingslo.policy.replicas.demand import Demand, step_down_load
from servingslo.policy.replicas.guards import StepDownBlock
from servingslo.policy.replicas.sizing import SizingCase, least_safe_count
from servingslo.reasons import Reason

# The first requests to finish are the short ones: lengths, and with them everything, are too low
# until the long ones are through. Several residences of a mean request, within bounds.
WARM_UP_RESIDENCES = 3.0
LEAST_WARM_UP_SECONDS = 120.0
LONGEST_WARM_UP_SECONDS = 600.0
# Standard deviations that the number in flight varies by in one window in a thousand.
SURE_DEVIATIONS = 3.0
# One window in forty, and two misses at a time.
MISS_DEVIATIONS, MISS_GROUP = 2.0, 2.0
# What lengths and the law may be out by at any moment without requests having become others.
LEAST_RATIO = 1.25
# Requests three times as long at the same rate; beyond, it is a backlog that has not been seen yet.
LARGEST_RATIO = 3.0


def step_down_blocks(context: TickContext) -> tuple[StepDownBlock, ...]:
    """What forbids fewer replicas than now, whatever the demand."""
    blocks = []
    if (block := context.signals.step_down_block) is not None:
        blocks.append(block)
    if context.observation.rollout_in_progress and context.own_rollout is None:
        blocks.append(StepDownBlock(reason=Reason.ROLLOUT_IN_PROGRESS, inputs={}))
    if (reason := context.facts.no_step_down) is not None:
        blocks.append(StepDownBlock(reason=reason, inputs={}))
    if (block := warming_up(context)) is not None:
        blocks.append(block)
    if (block := suspect_block(context)) is not None:
        blocks.append(block)
    if (block := _backlog(context)) is not None:
        blocks.append(block)
    if (block := _model_block(context)) is not None:
        blocks.append(block)
    return tuple(blocks)


def _backlog(context: TickContext) -> StepDownBlock | None:
    """While pods come and those that serve are short, for what arrives or for what waits.

    What is on its way will serve them; to give part of it back, because little will be left to do
    once all of it is there, would order it anew a moment later. The more are on their way, the
    sooner the first of them are there.
    """
    if context.prepared is None or not context.starting:
        return None
    engines = len(context.serving) * context.estimate.engines_per_pod
    capacity = engines * context.prepared.model.saturation_rate_per_second
    waiting = context.estimate.backlog_requests
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
    """While the workload has been seen for less than a few residences of its requests."""
    since = context.state.first_fresh_seconds
    seen = 0.0 if since is None else context.now_seconds - since
    rate, running = context.estimate.arrival_rate_per_second, context.estimate.running_requests
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
    """A law that does not predict may shrink a fleet only while it is seen to do well."""
    if (
        context.prepared is None
        or context.trusted
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
    """The first metric that is not seen to keep its objective, with the share that does."""
    for objective in context.targets.objectives:
        observed = context.estimate.observed.get(objective.metric)
        share = None if observed is None else observed.share_within(objective.threshold_seconds)
        if share is None or share[0] < objective.percentile / 100.0:
            return objective.metric, None if share is None else share[0]
    return None


def misses_surely(context: TickContext) -> bool:
    """Whether more requests missed an objective lately than chance explains.

    Misses come in groups, so their number varies by more than that of independent ones. An
    objective of which nothing is observed is not missed.
    """
    for objective in context.targets.objectives:
        observed = context.estimate.observed.get(objective.metric)
        share = None if observed is None else observed.share_within(objective.threshold_seconds)
        if observed is None or share is None:
            continue
        allowed = observed.count * (1.0 - objective.percentile / 100.0)
        missed = observed.count * (1.0 - share[1])
        if missed > allowed + MISS_DEVIATIONS * math.sqrt(MISS_GROUP * max(allowed, 1.0)):
            return True
    return False


def safe_count(
    context: TickContext,
    case: SizingCase,
    demand: Demand,
    infeasible: tuple[Objective, ...],
    wanted: int,
    spare: int,
) -> int:
    """The least count that holds until a replica could be had again; one less without trust."""
    if wanted >= context.current:
        return context.current
    implied = implied_arrival_rate_per_second(context, case, demand)
    least = least_safe_count(
        case,
        step_down_load(context.estimate, demand, implied),
        infeasible,
        lowest=wanted,
        current=context.current,
        spare=spare + _pods_behind(context, case),
    )
    return least if context.trusted else max(least, context.current - 1)


def _pods_behind(context: TickContext, case: SizingCase) -> int:
    """Pods with more in their queue than they start within the wait budget.

    They serve what came before, late already; what arrives meanwhile rests on the others.
    """
    in_time = case.model.saturation_rate_per_second * context.wait_budget_seconds
    return sum(
        any((engine.waiting or 0.0) > in_time for engine in pod.engines) for pod in context.serving
    )


def implied_arrival_rate_per_second(
    context: TickContext, case: SizingCase, demand: Demand
) -> float:
    """The arrival rate at which as many would run as surely run now, requests per second.

    Engines whose requests wait are left out: they serve what came before. 0 where about as many run
    as should, nothing arrives, or the present count is beyond saturation.
    """
    rate = demand.rate_per_second
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
        return case.frontier.reading(attrgetter(name), case.load_factor * rate, fleet)

    if rate >= case.saturation_per_second * len(context.serving):
        return 0.0
    sure = sum(running) / len(running) - SURE_DEVIATIONS * math.sqrt(expected("running_variance"))
    if sure <= LEAST_RATIO * expected("running_floor"):
        return 0.0
    ratio = sure / expected("running_mean")
    return rate * min(ratio, LARGEST_RATIO) if ratio > LEAST_RATIO else 0.0
