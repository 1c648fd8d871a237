"""The count that demand needs, before any guard: from the model, or from measured saturation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from servingslo.estimation.estimator import STEADY_PROBABILITY
from servingslo.estimation.requests.observed import RECENT_SECONDS
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.classes.demand import count_with_shares
from servingslo.policy.context import TickContext
from servingslo.policy.decision_parts import ConstraintNeed, StepValue
from servingslo.policy.findings import unreliable_inputs
from servingslo.policy.replicas.adapter_slots import adapter_slots_need
from servingslo.policy.replicas.demand import Demand
from servingslo.policy.replicas.guards import DEMAND_STAGE, Proposal
from servingslo.policy.replicas.prepared_model import PreparedModel
from servingslo.policy.replicas.reserve import reserve_need
from servingslo.policy.replicas.saturation import SaturationNeed, growth_need, saturation_need
from servingslo.policy.replicas.sizing import Sized, SizingCase, size, size_of_serving
from servingslo.policy.replicas.step_down import (
    count_tried,
    is_overloaded,
    is_seen_to_serve,
    safe_count,
)
from servingslo.reasons import BOUND_REASON, Constraint, Reason

# Ceiling of utilization while the latency model is not trusted: beyond this knee, waits of every
# queueing law grow faster than load.
# Source: Machine Learning Systems (V. J. Reddi), chapter "Model Serving", replicas at ρ* = 0.7.
KNEE_UTILIZATION = 0.7
# Ceiling of utilization: it leaves room for a rise beyond the forecast, which no law of a constant
# rate includes. Chosen on simulated fleets: on the Azure trace 0.9 costs a point of requests in
# SLO.
UTILIZATION_CEILING = 0.85
# The ceiling if engines accept no more than they serve in time. A shortage then costs only the
# refused requests; without a bound, nearly every request is late.
BOUNDED_CEILING = 0.9
# Name of the ceiling among the inputs of the sizing step.
UTILIZATION_INPUT = "utilization_target_ratio"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """The count that demand needs, and the reasons for it.

    safe_replicas: the least count that also holds until a new replica could be ready. sized: the
    case and load of the sizing, None without a model. idle: no requests arrive and none are served.
    """

    proposal: Proposal
    safe_replicas: int
    binding: Constraint | None = None
    needs: tuple[ConstraintNeed, ...] = ()
    infeasible: tuple[Objective, ...] = ()
    sized: Sized | None = None
    idle: bool = False


def required_replicas(context: TickContext) -> Requirement:
    """The count that demand needs at this tick."""
    demand = context.demand
    if demand is None:
        # Requests whose counting has only begun say nothing about too few or too many replicas.
        proposal = Proposal(replicas=context.current, limited_by=Reason.WARMING_UP).noted(
            DEMAND_STAGE, context.current, Reason.WARMING_UP, detail="no request was counted yet"
        )
        return Requirement(proposal=proposal, safe_replicas=context.current)
    if context.prepared is not None:
        return _by_model(context, context.prepared, demand)
    if demand.idle:
        return _idle_without_model(context)
    return _by_saturation(context)


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


def utilization_ceiling_ratio(context: TickContext) -> float:
    """The utilization that no plan exceeds: as stated, else with room for forecast errors."""
    stated = context.targets.utilization_target_ratio
    if stated is not None:
        return stated
    targets = context.targets
    # Only an inter-token objective bounds the batch.
    bounded = any(o.metric is LatencyMetric.TPOT for o in targets.objectives)
    held = context.facts.bound_holds
    enforced = (targets.admission_enforced or held) and bounded
    return BOUNDED_CEILING if enforced else UTILIZATION_CEILING


def _by_model(context: TickContext, prepared: PreparedModel, demand: Demand) -> Requirement:
    """The least count that satisfies every constraint, with spare ones for failures."""
    targets, case = context.targets, sizing_case(context, prepared)
    case, sizing = size_of_serving(case, demand.scale_up_load, len(context.serving))
    carrying = context.current - targets.replicas.tolerated_failures - context.excluded
    young = _is_young(context)
    unproven = young or not context.proven
    served = unproven and sizing.replicas > carrying and is_seen_to_serve(context)
    if served and not context.trusted:
        case = replace(case, utilization_target_ratio=utilization_ceiling_ratio(context))
        sizing = size(case, demand.scale_up_load)
    binding, needs, wanted = sizing.binding, sizing.needs, sizing.replicas
    shared = count_with_shares(context, wanted, lambda more: _with_more(case, demand, more))
    inputs: dict[str, StepValue] = {
        "rate_per_second": demand.scale_up_load.rate_per_second,
        "backlog_requests": demand.backlog_at_lead_requests,
        "lead_seconds": demand.lead_seconds,
        UTILIZATION_INPUT: case.utilization_target_ratio,
        **({"measured_capacity_ratio": case.capacity_ratio} if case.capacity_ratio < 1.0 else {}),
    }
    if shared > wanted and context.trusted:
        inputs["sheddable_replicas"] = shared - wanted
        wanted = shared
    if not context.proven:
        measured = _measured_need(context)
        needs = (
            *needs,
            ConstraintNeed(constraint=Constraint.SATURATION, replicas=measured.replicas),
        )
        inputs |= {"saturation_ratio": measured.ratio, "saturation_signal": measured.signal}
        if measured.ratio > 1.0 and measured.replicas > wanted:
            binding, wanted = Constraint.SATURATION, measured.replicas
    if served:
        wanted = _beyond_served(case, demand, wanted, carrying, believed=not young)
        binding, wanted = _with_growth(context, binding, wanted)
    for need, numbers in _further_needs(context, case):
        needs, inputs = (*needs, need), inputs | numbers
        if (need.replicas or 0) > wanted:
            binding, wanted = need.constraint, need.replicas or 0
    proposal = Proposal(replicas=context.current).required(
        "sizing", wanted, BOUND_REASON[binding], **inputs
    )
    proposal = _at_first_sight(context, proposal)
    wanted = proposal.replicas
    for need in needs:
        objective = need.objective
        if objective is None or not need.infeasible:
            continue
        proposal = proposal.noted(
            "sizing",
            wanted,
            Reason.INFEASIBLE_OBJECTIVE,
            metric=objective.metric.value,
            percentile=objective.percentile,
            threshold_seconds=objective.threshold_seconds,
            least_feasible_seconds=need.least_feasible,
        )
    proposal, spare = _with_spare(context, proposal)
    return Requirement(
        proposal=proposal,
        safe_replicas=safe_count(
            context, case, demand, sizing.infeasible, proposal.replicas, spare
        ),
        binding=binding,
        needs=needs,
        infeasible=sizing.infeasible,
        sized=Sized(case=case, load=demand.scale_up_load),
        idle=demand.idle,
    )


def _with_more(case: SizingCase, demand: Demand, more_per_second: float) -> int:
    """The count at the demand planned for and this much more."""
    load = demand.scale_up_load
    return size(
        case, replace(load, rate_per_second=load.rate_per_second + more_per_second)
    ).replicas


def _is_young(context: TickContext) -> bool:
    """Whether the workload was observed so briefly that its law and rate are guesses.

    Demand that moves as in a surge is followed at any age.
    """
    since = context.state.first_fresh_seconds
    settled = context.estimate.forecast.unsettled_probability < STEADY_PROBABILITY
    return settled and (since is None or context.now_seconds - since < YOUNG_SECONDS)


def _beyond_served(
    case: SizingCase, demand: Demand, wanted: int, carrying: int, *, believed: bool
) -> int:
    """The count wanted if `carrying` replicas are observed to keep objectives; never fewer.

    If the law says that they are too few for the present load, it is wrong: replicas grow only with
    the forecast. believed: the law is used for a larger load.
    """
    present = replace(demand.scale_up_load, rate_per_second=demand.rate_per_second)
    if wanted <= carrying or (believed and size(case, present).replicas <= carrying):
        return max(wanted, carrying)
    if not demand.rate_per_second:
        # Requests still run, and none arrive: there is nothing to grow with.
        return carrying
    growth = demand.mean_at_lead_per_second / demand.rate_per_second
    return max(round(carrying * growth), carrying)


def _with_growth(context: TickContext, binding: Constraint, wanted: int) -> tuple[Constraint, int]:
    """The count and what binds it, if more are in flight than latencies were observed of."""
    growing = _growth_need(context)
    if context.proven or growing.ratio <= 1.0 or growing.replicas <= wanted:
        return binding, wanted
    return Constraint.SATURATION, growing.replicas


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
    lost = context.excluded
    if context.demand is not None and context.demand.idle:
        # While nothing arrives, no engine that sleeps needs a replacement.
        lost -= len(context.sleeping)
    proposal = _with_lost(context, proposal, lost)
    behind = _behind_at_lead(context)
    if behind:
        proposal = proposal.required(
            "redundancy", proposal.replicas + behind, Reason.BACKLOG_BOUND, behind_pods=behind
        )
    return proposal, failures + lost


def _with_lost(context: TickContext, proposal: Proposal, lost: int) -> Proposal:
    """Add replicas for this many pods that do not serve."""
    if not lost:
        return proposal
    wanted, inputs = proposal.replicas + lost, unreliable_inputs(context)
    return proposal.required("redundancy", wanted, Reason.UNRELIABLE_PODS, **inputs)


def _behind_at_lead(context: TickContext) -> int:
    """Pods whose present queue will still be there when a replica ordered now is ready.

    Queued requests stay at their pod, so other pods must serve new arrivals.
    """
    if context.prepared is None:
        return 0
    seconds = context.lead_seconds + context.wait_budget_seconds
    most = context.prepared.model.saturation_rate_per_second * seconds
    ordering = context.estimate.ordering_ratio
    return sum(
        any((e.waiting or 0.0) * ordering > most for e in pod.engines) for pod in context.serving
    )


def _further_needs(
    context: TickContext, case: SizingCase | None = None
) -> Iterator[tuple[ConstraintNeed, dict[str, StepValue]]]:
    """Needs beside those of the present load, each with its numbers.

    case: None without a law. No reserve follows then, nor from an assumed law.
    """
    reserve = reserve_need(context, case) if case is not None and context.proven else None
    yield from (found for found in (adapter_slots_need(context), reserve) if found is not None)


def _by_saturation(context: TickContext) -> Requirement:
    """The count that the measured signals need, and never fewer than now.

    They count replicas that serve, so those that do not come on top.
    """
    measured = _measured_need(context)
    need = ConstraintNeed(constraint=Constraint.SATURATION, replicas=measured.replicas)
    carrying = context.current - context.excluded
    wanted = max(measured.replicas, carrying) if measured.ratio > 1.0 else carrying
    needs: tuple[ConstraintNeed, ...] = (need,)
    inputs: dict[str, StepValue] = {
        "saturation_ratio": measured.ratio,
        "saturation_signal": measured.signal,
    }
    binding = Constraint.SATURATION
    for further, numbers in _further_needs(context):
        needs, inputs = (*needs, further), inputs | numbers
        if (further.replicas or 0) > wanted:
            binding, wanted = further.constraint, further.replicas or 0
    proposal = Proposal(replicas=context.current)
    if wanted > carrying:
        proposal = proposal.required("sizing", wanted, BOUND_REASON[binding], **inputs)
        proposal = _with_lost(context, proposal, context.excluded)
    else:
        proposal = proposal.required("sizing", context.current, context.model_reason, **inputs)
    return Requirement(
        proposal=proposal, safe_replicas=context.current, binding=binding, needs=needs
    )


def _measured_need(context: TickContext) -> SaturationNeed:
    """What measurements need without a trusted law: of the present, or of what is in flight."""
    present = saturation_need(context.estimate, context.targets, context.serving)
    growing = _growth_need(context)
    return growing if growing.ratio > present.ratio else present


def _growth_need(context: TickContext) -> SaturationNeed:
    demand = context.demand
    forecast_ratio = 1.0
    if demand is not None and demand.rate_per_second:
        forecast_ratio = demand.scale_up_load.rate_per_second / demand.rate_per_second
    return growth_need(
        context.estimate,
        context.targets,
        context.serving,
        ceiling_ratio=utilization_ceiling_ratio(context),
        forecast_ratio=forecast_ratio,
    )


def _idle_without_model(context: TickContext) -> Requirement:
    """The minimum, after a long enough time without requests."""
    least = context.bounds.minimum + context.targets.replicas.tolerated_failures
    since = context.state.idle_since_seconds
    idle_seconds = 0.0 if since is None else context.now_seconds - since
    proposal = Proposal(replicas=context.current).required(
        "sizing", least, Reason.IDLE, idle_seconds=idle_seconds
    )
    return Requirement(
        proposal=proposal,
        safe_replicas=least if idle_seconds >= IDLE_SECONDS else context.current,
        binding=Constraint.MIN_REPLICAS,
        idle=True,
    )


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
    most = min(max(_growth_need(context).replicas, carrying), proposal.replicas)
    return proposal.moved("sizing", most, Reason.WARMING_UP, seen_seconds=min(seen, here))
