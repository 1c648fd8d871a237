"""The least-cost mix: how many replicas are needed awake, and how many on call.

The count awake follows the demand that is forecast for the wake time, the whole count that for the
cold start. The newsvendor keeps a unit while the chance that it is needed exceeds its price over
that of a shortage. Planning at a quantile q for awake replicas prices a shortage at 1/(1 − q) of a
replica, so at a share c of its price one is kept up to the quantile 1 − c·(1 − q).
Source: K. J. Arrow, T. Harris, J. Marschak, "Optimal Inventory Policy", Econometrica 1951.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from servingslo.features.warm_replicas.call import (
    TARGETS,
    WARM_REPLICAS,
    WarmTargets,
    pods_on_call,
)
from servingslo.policy.decision_parts import ConstraintNeed
from servingslo.policy.replicas.context import TickContext, demand_ahead
from servingslo.policy.replicas.demand import SCRAPE_SECONDS, planned_probability
from servingslo.policy.replicas.pods import Pods
from servingslo.policy.replicas.reserve_state import ReserveState
from servingslo.policy.replicas.sizing import Load, SizingCase, size
from servingslo.policy.rules.needs import Case, Need
from servingslo.policy.rules.requirement import required_replicas
from servingslo.policy.rules.reserve import KEPT_LEADS
from servingslo.policy.rules.step_down import step_down_blocks
from servingslo.reasons import Constraint

# Until a wake was seen. Source: vLLM's blog "Zero-Reload Model Switching" of 2025-10-26: 0.1 to 6 s
# from level 1, by model and card; and the seconds in which endpoints reach a gateway.
ASSUMED_WAKE_SECONDS = 10.0
# A wake that is not seen for this long has failed: four scrapes.
LONGEST_WAKE_SECONDS = 4.0 * SCRAPE_SECONDS
# Weight of the newest wake in the mean: about the last four.
NEWEST_WEIGHT = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmMemory:
    """What is remembered of sleepers; times in seconds since the epoch.

    wake_seconds: mean from an order to wake until a pod serves. needed_seconds: when all
    replicas were last needed awake. fewer_seconds: since when fewer are needed awake. out: since
    when pods take no requests. woken: when pods were ordered to wake that are not seen to serve.
    """

    wake_seconds: float = ASSUMED_WAKE_SECONDS
    needed_seconds: float | None = None
    fewer_seconds: float | None = None
    out: Mapping[str, float] | None = None
    woken: Mapping[str, float] | None = None


def known(memory: object) -> WarmMemory:
    """The memory of the knob; an empty one if there is none."""
    return memory if isinstance(memory, WarmMemory) else WarmMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Awake:
    """The fleet of the replicas that are not on call.

    present: how many there are, those that wake included and those that start not. needed: the
    least that may be awake now. spare: how many of those are for failures and for pods that do not
    serve.
    """

    present: int
    needed: int
    spare: int


def awake_of(context: TickContext) -> Awake:
    """How many must be awake, by the rules of the count at the wake time.

    The reserve is for what no forecast says; replicas on call are it.
    """
    memory = known(context.state.knobs.get(WARM_REPLICAS))
    in_force = dict(context.observation.in_force)
    out = pods_on_call(in_force.pop(WARM_REPLICAS, None))
    waking = replace(context, facts=replace(context.facts, on_call=context.facts.on_call - out))
    present = len(context.serving) + context.excluded - context.on_call + waking.on_call
    lead = memory.wake_seconds + context.limits.tick_seconds + SCRAPE_SECONDS
    alone = replace(
        context,
        observation=replace(context.observation, in_force=in_force),
        current=present,
        pods=_without(context.pods, context.facts.on_call),
        facts=replace(context.facts, on_call=frozenset()),
        state=replace(context.state, reserve=ReserveState()),
        lead_seconds=lead,
        demand=demand_ahead(waking, lead),
    )
    proposal = required_replicas(alone)
    needed = proposal.replicas
    if needed < present:
        safe = min(present, proposal.requirement.safe_replicas)
        needed = present if step_down_blocks(alone) else max(needed, safe)
    bounds = context.bounds
    return Awake(
        present=present,
        needed=min(max(needed, bounds.minimum), bounds.maximum),
        spare=context.targets.replicas.tolerated_failures + alone.excluded,
    )


def _without(pods: Pods, names: frozenset[str]) -> Pods:
    """The pods without these: they are of another kind."""
    left = {
        condition: tuple(one for one in told if one[0] not in names)
        for condition, told in pods.by_condition.items()
    }
    gone = sum(len(told) for told in pods.by_condition.values()) - sum(map(len, left.values()))
    return replace(pods, by_condition=left, total=pods.total - gone)


def warm_need(context: TickContext, case: Case | None) -> Need | None:
    """The whole count with replicas on call, beyond those that are needed awake.

    None if engines can not be put to sleep and woken now, or if there is no pod: at zero only
    requests bring one.
    """
    stated = TARGETS.of(context.targets.features)
    standing = context.observation.in_force.get(WARM_REPLICAS)
    if stated is None or standing is None or standing.refused or not context.current:
        return None
    awake = awake_of(context)
    core = max(awake.needed - awake.spare, 0)
    wanted = [core + stated.least, _kept(context, stated) - awake.spare]
    if case is not None and context.proven:
        wanted.append(_insured(context, case.sizing_case, stated))
    count = min(max(wanted), core + stated.most)
    return Need(
        constraint=Constraint.WARM,
        replicas=count,
        reported=(ConstraintNeed(constraint=Constraint.WARM, replicas=count),),
        inputs={"awake_replicas": awake.needed},
    )


def _insured(context: TickContext, case: SizingCase, stated: WarmTargets) -> int:
    """The count for the quantile up to which a replica on call is worth its price."""
    demand = context.demand
    if demand is None:
        return 0
    forecast, lead = context.estimate.forecast, context.lead_seconds
    beyond = stated.cost_ratio * (1.0 - planned_probability(forecast, lead))
    rate = forecast.quantile_per_second(lead, 1.0 - beyond)
    drain = demand.scale_up_load.drain_per_second
    return size(case, Load(rate_per_second=rate, drain_per_second=drain)).replicas


def _kept(context: TickContext, stated: WarmTargets) -> int:
    """The present count until the return of the last surge is overdue.

    The reserve keeps a surge's replicas for so many leads; for their price, cheaper ones are kept
    for longer.
    """
    since = known(context.state.knobs.get(WARM_REPLICAS)).needed_seconds
    if since is None:
        return 0
    keeps = KEPT_LEADS * context.lead_seconds / stated.cost_ratio
    return context.current if context.now_seconds - since <= keeps else 0
