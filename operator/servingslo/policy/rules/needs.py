"""Rules of the count: each says by itself how many replicas it needs, or nothing.

The greatest need is the count, and its constraint is what binds; of equal ones the first.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from servingslo.models.engine.adapter_slots import least_engines, waiting_ratio
from servingslo.models.objectives import LatencyMetric
from servingslo.plugins import Aspect
from servingslo.policy.decision_parts import ConstraintNeed, StepValue
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.demand import Demand
from servingslo.policy.replicas.saturation import SaturationNeed, growth_need, saturation_need
from servingslo.policy.replicas.sizing import Sizing, SizingCase, size
from servingslo.reasons import Constraint

# Ceiling of utilization: it leaves room for a rise beyond the forecast, which no law of a constant
# rate includes. Chosen on simulated fleets: on the Azure trace 0.9 costs a point of requests in
# SLO.
UTILIZATION_CEILING = 0.85
# The ceiling if engines accept no more than they serve in time. A shortage then costs only the
# refused requests; without a bound, nearly every request is late.
BOUNDED_CEILING = 0.9
# Name of the ceiling among the inputs of the sizing step.
UTILIZATION_INPUT = "utilization_target_ratio"
# A wait for a slot ends only with the last request of another adapter: a miss of these.
DELAYED = frozenset({LatencyMetric.TTFT, LatencyMetric.LATENCY, LatencyMetric.QUEUE_TIME})
# At most twice the serving replicas at once, as for measured saturation: adapters that wait are in
# flight for longer, so their number is overestimated until they have slots.
LARGEST_RATIO = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The count that one rule asks for.

    reported: what a decision says of it. inputs: its numbers. sure: it holds even where the present
    count is seen to serve.
    """

    constraint: Constraint
    replicas: int
    reported: tuple[ConstraintNeed, ...] = ()
    inputs: Mapping[str, StepValue] = field(default_factory=dict)
    sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What counts are sized for at this tick, if a law and a demand are known.

    sizing: the least counts under that demand, by the law alone.
    """

    sizing_case: SizingCase
    demand: Demand
    sizing: Sizing


# The count that keeps the objectives with this much more load, in requests per second.
CountFor = Callable[[float], int]
# The count with what a feature lets order beyond what the load needs.
MORE: Aspect[Callable[[TickContext, int, CountFor], int]] = Aspect("shares")
Rule = Callable[[TickContext, Case | None], Need | None]
# Rules of features, after those of the kernel.
NEEDS: Aspect[Rule] = Aspect("need")


def load_need(context: TickContext, case: Case | None) -> Need | None:
    """What the law says that the load needs, with what features let order more."""
    if case is None:
        return None
    demand, sizing, ratio = case.demand, case.sizing, case.sizing_case.capacity_ratio
    load, shared = demand.scale_up_load, sizing.replicas

    def count_for(more_per_second: float) -> int:
        more = replace(load, rate_per_second=load.rate_per_second + more_per_second)
        return size(case.sizing_case, more).replicas

    if context.trusted:
        for with_shares in MORE.parts():
            shared = with_shares(context, shared, count_for)
    return Need(
        constraint=sizing.binding,
        replicas=shared,
        reported=sizing.needs,
        inputs={
            "rate_per_second": load.rate_per_second,
            "backlog_requests": demand.backlog_at_lead_requests,
            "lead_seconds": demand.lead_seconds,
            UTILIZATION_INPUT: case.sizing_case.utilization_target_ratio,
            **({"measured_capacity_ratio": ratio} if ratio < 1.0 else {}),
            **({"added_replicas": shared - sizing.replicas} if shared > sizing.replicas else {}),
        },
        sure=False,
    )


def measured_need(context: TickContext, case: Case | None) -> Need | None:
    """What measurements need without a proven law: of the present, or of what is in flight.

    Next to a law it is reported only if it asks for more replicas than serve.
    """
    if case is not None and context.proven:
        return None
    present = saturation_need(context.estimate, context.targets, context.serving)
    growing = growth_in_flight(context)
    found = growing if growing.ratio > present.ratio else present
    asks = found.ratio > 1.0
    told = ConstraintNeed(constraint=Constraint.SATURATION, replicas=found.replicas)
    return Need(
        constraint=Constraint.SATURATION,
        replicas=found.replicas if asks else 0,
        reported=(told,) if asks or case is None else (),
        inputs={"saturation_ratio": found.ratio, "saturation_signal": found.signal},
        sure=False,
    )


def in_flight_need(context: TickContext, case: Case | None) -> Need | None:
    """What is in flight beyond what latencies were observed of, without a proven law."""
    if case is None or context.proven or (growing := growth_in_flight(context)).ratio <= 1.0:
        return None
    return Need(constraint=Constraint.SATURATION, replicas=growing.replicas)


def growth_in_flight(context: TickContext) -> SaturationNeed:
    """What the requests in flight will need, see `growth_need`."""
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


def utilization_ceiling_ratio(context: TickContext) -> float:
    """The utilization that no plan exceeds: as stated, else with room for forecast errors."""
    targets = context.targets
    if targets.utilization_target_ratio is not None:
        return targets.utilization_target_ratio
    # Only an inter-token objective bounds the batch.
    bounded = any(o.metric is LatencyMetric.TPOT for o in targets.objectives)
    enforced = (targets.admission_enforced or context.facts.bound_holds) and bounded
    return BOUNDED_CEILING if enforced else UTILIZATION_CEILING


def adapter_slots_need(context: TickContext, _case: Case | None) -> Need | None:
    """Replicas that leave each adapter (LoRA) a slot in the batch of an engine.

    None without more adapters in flight than slots. The share of requests that find no slot is at
    most that which the objectives may miss. An objective on tokens alone is not delayed by a slot.
    """
    models = context.estimate.models
    delayed = [one.percentile for one in context.targets.objectives if one.metric in DELAYED]
    if models is None or models.slots is None or not delayed:
        return None
    requests = [one.value for one in models.adapter_requests]
    if len(requests) <= models.slots:
        return None
    allowed = 1.0 - max(delayed) / 100.0
    each = context.estimate.engines_per_pod
    serving = max(len(context.serving), 1)
    most = LARGEST_RATIO * serving
    engines = least_engines(requests, models.slots, allowed, most * each)
    replicas = most if engines is None else math.ceil(engines / each)
    return Need(
        constraint=Constraint.ADAPTER_SLOTS,
        replicas=replicas,
        reported=(ConstraintNeed(constraint=Constraint.ADAPTER_SLOTS, replicas=replicas),),
        inputs={
            "adapters": len(requests),
            "adapter_slots": models.slots,
            "adapters_waiting": models.adapters_waiting,
            "waiting_ratio": waiting_ratio(requests, models.slots, serving * each),
        },
    )
