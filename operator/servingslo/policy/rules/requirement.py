"""The count that demand needs, before any guard: the greatest need of the rules."""

from collections.abc import Sequence
from dataclasses import replace

from servingslo.estimation.estimator import STEADY_PROBABILITY
from servingslo.estimation.requests.observed import RECENT_SECONDS
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.demand import Demand
from servingslo.policy.replicas.pods import Condition
from servingslo.policy.replicas.prepared_model import PreparedModel
from servingslo.policy.replicas.proposal import DEMAND_STAGE, Proposal, Requirement
from servingslo.policy.replicas.sizing import Sized, SizingCase, size, size_of_serving
from servingslo.policy.rules.needs import (
    NEEDS,
    Case,
    Need,
    Rule,
    adapter_slots_need,
    growth_in_flight,
    in_flight_need,
    load_need,
    measured_need,
    utilization_ceiling_ratio,
)
from servingslo.policy.rules.reserve import reserve_need
from servingslo.policy.rules.step_down import (
    count_tried,
    is_overloaded,
    is_seen_to_serve,
    pods_behind,
    safe_count,
)
from servingslo.reasons import BOUND_REASON, Constraint, Reason

# Ceiling of utilization while the latency model is not trusted: beyond this knee, waits of every
# queueing law grow faster than load.
# Source: Machine Learning Systems (V. J. Reddi), chapter "Model Serving", replicas at ρ* = 0.7.
KNEE_UTILIZATION = 0.7
# The search ends at twice the greatest allowed count, so that it can still report a larger need.
SEARCH_FACTOR = 2
LEAST_SEARCH = 64
# Two scrapes: the first window of a workload may be incomplete. A law fitted to that window alone
# attributes all time to the step or all to the tokens.
FIRST_SIGHT_SECONDS = 30.0
# Twice the warm-up of a scale-down. A law from a few windows, at a rate from as few, orders
# replicas that are removed again within minutes (one workload in six at constant demand).
YOUNG_SECONDS = 300.0
# Without a model, only idleness is evidence for fewer replicas, and only if it lasts.
IDLE_SECONDS = 300.0

RULES: tuple[Rule, ...] = (
    load_need,
    measured_need,
    in_flight_need,
    adapter_slots_need,
    reserve_need,
)


def required_replicas(context: TickContext) -> Proposal:
    """The count that demand needs at this tick."""
    demand = context.demand
    if demand is None:
        # Requests whose counting has only begun say nothing about too few or too many replicas.
        return Proposal.of(context.current).held(
            DEMAND_STAGE, context.current, Reason.WARMING_UP, detail="no request was counted yet"
        )
    if context.prepared is not None:
        return _by_model(context, context.prepared, demand)
    return _idle_without_model(context) if demand.idle else _by_saturation(context)


def sizing_case(context: TickContext, prepared: PreparedModel) -> SizingCase:
    """The constraints on counts at this tick: fewer objectives while the model is not trusted."""
    targets = context.targets
    ceiling = utilization_ceiling_ratio(context)
    widest = SEARCH_FACTOR * max(context.bounds.maximum, context.current)
    bounded = targets.replicas.maximum is not None
    return SizingCase(
        frontier=prepared.frontier,
        routing=context.estimate.routing,
        objectives=targets.objectives if context.trusted else (),
        utilization_target_ratio=ceiling if context.trusted else min(ceiling, KNEE_UTILIZATION),
        kv_cache_target_ratio=targets.kv_cache_target_ratio,
        largest_count=widest if bounded else max(SEARCH_FACTOR * context.current, LEAST_SEARCH),
        engines_per_replica=context.estimate.engines_per_pod,
        calibration=context.estimate.calibration,
        slowness=context.slowness,
        capacity_ratio=context.state.shortage.ratio,
        length_error_ratio=context.estimate.length_error_ratio,
        tried=count_tried(context, prepared),
    )


def _asked(context: TickContext, case: Case | None) -> tuple[Need, ...]:
    rules = (*RULES, *NEEDS.parts())
    return tuple(need for rule in rules if (need := rule(context, case)) is not None)


def _greatest(needs: Sequence[Need]) -> Need:
    return max(needs, key=lambda need: need.replicas)


def _by_model(context: TickContext, prepared: PreparedModel, demand: Demand) -> Proposal:
    """The least count that satisfies every rule, with spare ones for failures."""
    targets, sizing_for = context.targets, sizing_case(context, prepared)
    sizing_for, sizing = size_of_serving(sizing_for, demand.scale_up_load, len(context.serving))
    carrying = context.current - targets.replicas.tolerated_failures - context.excluded
    young = _is_young(context)
    unproven = young or not context.proven
    served = unproven and sizing.replicas > carrying and is_seen_to_serve(context)
    if served and not context.trusted:
        ceiling = utilization_ceiling_ratio(context)
        sizing_for = replace(sizing_for, utilization_target_ratio=ceiling)
        sizing = size(sizing_for, demand.scale_up_load)
    case = Case(sizing_case=sizing_for, demand=demand, sizing=sizing)
    needs = _asked(context, case)
    if served:
        greatest = _greatest(_beyond_served(case, needs, carrying, believed=not young))
    else:
        greatest = _greatest(needs)
    proposal = Proposal.of(context.current).required(
        "sizing",
        greatest.replicas,
        BOUND_REASON[greatest.constraint],
        **{name: value for need in needs for name, value in need.inputs.items()},
    )
    proposal = _at_first_sight(context, proposal)
    reported = tuple(one for need in needs for one in need.reported)
    for need in reported:
        objective = need.objective
        if objective is None or not need.infeasible:
            continue
        proposal = proposal.noted(
            "sizing",
            proposal.replicas,
            Reason.INFEASIBLE_OBJECTIVE,
            metric=objective.metric.value,
            percentile=objective.percentile,
            threshold_seconds=objective.threshold_seconds,
            least_feasible_seconds=need.least_feasible,
        )
    proposal, spare = _with_spare(context, proposal)
    wanted = proposal.replicas
    requirement = Requirement(
        replicas=wanted,
        safe_replicas=safe_count(context, sizing_for, demand, sizing.infeasible, wanted, spare),
        binding=greatest.constraint,
        needs=reported,
        infeasible=sizing.infeasible,
        sized=Sized(case=sizing_for, load=demand.scale_up_load),
        idle=demand.idle and all(need.constraint is not Constraint.DEADLINE for need in needs),
    )
    return replace(proposal, requirement=requirement)


def _is_young(context: TickContext) -> bool:
    """Whether the workload was observed so briefly that its law and rate are guesses.

    Demand that moves as in a surge is followed at any age.
    """
    since = context.state.first_fresh_seconds
    settled = context.estimate.forecast.unsettled_probability < STEADY_PROBABILITY
    return settled and (since is None or context.now_seconds - since < YOUNG_SECONDS)


def _beyond_served(
    case: Case, needs: Sequence[Need], carrying: int, *, believed: bool
) -> tuple[Need, ...]:
    """The needs if `carrying` replicas are observed to keep objectives: the one exception.

    If the law says that they are too few for the present load, it is wrong: what is not sure grows
    only with the forecast, and never below them. believed: the law is used for a larger load.
    """
    demand = case.demand
    unsure = _greatest([need for need in needs if not need.sure])
    present = replace(demand.scale_up_load, rate_per_second=demand.rate_per_second)
    kept = max(unsure.replicas, carrying)
    enough = unsure.replicas <= carrying
    if not enough and not (believed and size(case.sizing_case, present).replicas <= carrying):
        # If requests still run, and none arrive, there is nothing to grow with.
        rate = demand.rate_per_second
        growth = demand.mean_at_lead_per_second / rate if rate else 0.0
        kept = max(round(carrying * growth), carrying)
    return (replace(unsure, replicas=kept), *(need for need in needs if need.sure))


def _with_spare(context: TickContext, proposal: Proposal) -> tuple[Proposal, int]:
    """Add replicas for tolerated failures and for pods that do not serve; return both counts."""
    failures = context.targets.replicas.tolerated_failures
    if failures:
        proposal = proposal.required(
            "redundancy",
            proposal.replicas + failures,
            Reason.TOLERATED_FAILURES,
            tolerated_failures=failures,
        )
    lost = context.excluded - context.on_call
    if context.demand is not None and context.demand.idle:
        # While nothing arrives, no engine that sleeps needs a replacement.
        asleep = context.pods.of(Condition.ASLEEP)
        lost -= sum(name not in context.facts.on_call for name, _ in asleep)
    proposal = _with_lost(context, proposal, lost)
    # Their queue will still be there when a replica ordered now is ready.
    seconds = context.lead_seconds + context.wait_budget_seconds
    behind = pods_behind(context, seconds, context.estimate.ordering_ratio)
    if behind:
        proposal = proposal.required(
            "redundancy", proposal.replicas + behind, Reason.BACKLOG_BOUND, behind_pods=behind
        )
    return proposal, failures + lost


def _with_lost(context: TickContext, proposal: Proposal, lost: int) -> Proposal:
    """Add replicas for this many pods that do not serve."""
    if not lost:
        return proposal
    wanted, inputs = proposal.replicas + lost, context.pods.inputs(Condition.UNRELIABLE)
    return proposal.required("redundancy", wanted, Reason.UNRELIABLE_PODS, **inputs)


def _by_saturation(context: TickContext) -> Proposal:
    """The count that the measured signals need, and never fewer than now.

    They count replicas that serve, so those that do not come on top.
    """
    carrying = context.current - context.excluded
    needs = _asked(context, None)
    present = Need(constraint=Constraint.SATURATION, replicas=carrying)
    greatest = _greatest((present, *needs))
    inputs = {name: value for need in needs for name, value in need.inputs.items()}
    proposal = Proposal.of(context.current)
    if greatest.replicas > carrying:
        reason = BOUND_REASON[greatest.constraint]
        wanted = max(greatest.replicas, carrying + context.on_call)
        proposal = proposal.required("sizing", wanted, reason, **inputs)
        proposal = _with_lost(context, proposal, context.excluded - context.on_call)
    else:
        proposal = proposal.required("sizing", context.current, context.model_reason, **inputs)
    requirement = Requirement(
        replicas=proposal.replicas,
        safe_replicas=context.current,
        binding=greatest.constraint,
        needs=tuple(one for need in needs for one in need.reported),
    )
    return replace(proposal, requirement=requirement)


def _idle_without_model(context: TickContext) -> Proposal:
    """One replica and the spare ones, at least the minimum, after a long time without requests."""
    least = max(context.bounds.minimum, 1 + context.targets.replicas.tolerated_failures)
    since = context.state.idle_since_seconds
    idle_seconds = 0.0 if since is None else context.now_seconds - since
    requirement = Requirement(
        replicas=least,
        safe_replicas=least if idle_seconds >= IDLE_SECONDS else context.current,
        binding=Constraint.MIN_REPLICAS,
        idle=True,
    )
    proposal = Proposal(replicas=context.current, requirement=requirement)
    return proposal.required("sizing", least, Reason.IDLE, idle_seconds=idle_seconds)


def _at_first_sight(context: TickContext, proposal: Proposal) -> Proposal:
    """At most the current count while data cover one or two windows, unless the fleet is saturated.

    Growth in flight needs no law and is ordered for. The same holds until a latency is observed
    after this memory began, for as long as latencies are averaged. After a restart, learnt state is
    there, but not whether the count keeps its objectives. A trusted law is believed, except over a
    restart in the first minutes: what held it back then, see `is_seen_to_serve`, is not seen yet.
    """
    since, began = context.state.first_fresh_seconds, context.state.started_seconds
    seen = 0.0 if since is None else context.now_seconds - since
    here = 0.0 if began is None else context.now_seconds - began
    unseen = not context.estimate.observed and here < RECENT_SECONDS
    learning = 0.0 < context.state.promise.seconds < YOUNG_SECONDS and _is_young(context)
    believed = context.trusted and not (learning and unseen)
    first = seen < FIRST_SIGHT_SECONDS or unseen
    carrying = context.current - context.excluded
    if believed or proposal.replicas <= carrying or not first or is_overloaded(context):
        return proposal
    most = min(max(growth_in_flight(context).replicas, carrying), proposal.replicas)
    return proposal.moved("sizing", most, Reason.WARMING_UP, seen_seconds=min(seen, here))
