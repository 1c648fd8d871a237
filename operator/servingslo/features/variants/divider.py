"""Variants under one promise: how many replicas of each card, and the part of demand of each.

Where every law is proven, the composition of least price decides all counts together, with its
moves. Otherwise each pool plans for the share that it receives now.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from servingslo.estimation.forecast.demand import Forecast
from servingslo.features.variants.composition import SPLIT, Choice, SplitUse, Variant, shares
from servingslo.features.variants.moves import (
    DemandAhead,
    MoveReason,
    Order,
    Standing,
    available,
    next_order,
)
from servingslo.features.variants.sold_out import (
    Shortage,
    is_placeable,
    least_with_places,
    not_coming,
    shortage,
)
from servingslo.plugins import Key
from servingslo.policy.planner import Seen
from servingslo.policy.pools.demand import forecast_of, is_uncounted, pool_rates, replanned
from servingslo.policy.pools.division import Divider, Division, RateOf
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.demand import step_down_load
from servingslo.policy.replicas.proposal import Proposal
from servingslo.policy.replicas.sizing import SizingCase
from servingslo.policy.replicas.sizing import carried_rate_per_second as carried_of_case
from servingslo.policy.rules.requirement import required_replicas, sizing_case
from servingslo.policy.rules.step_down import within_reach
from servingslo.reasons import Reason

# Since when a move to cheaper counts has paid; none while none does.
PAYS_SINCE_SECONDS = Key(SPLIT.name, float)
STAGE = "pools"
# By which the share of a pool's pods may exceed that of as many others. Judgement: the tolerance of
# a gateway that takes turns, and of shares that are counted within a minute.
EVEN_TOLERANCE_RATIO = 0.1
# Why counts were ordered together, as a reason of the decision.
_REASONS = {
    MoveReason.MOVE_PENDING: Reason.MOVE_DOES_NOT_PAY,
    MoveReason.MIX_WOULD_MISS: Reason.MOVE_DOES_NOT_PAY,
    MoveReason.NO_ROOM: Reason.GPUS_REACHED,
    MoveReason.DEMAND_NOT_CARRIED: Reason.MAX_REPLICAS_REACHED,
}


def divide_at_least_cost(
    targets: FleetTargets, state: FleetState, seen: Mapping[str, Seen], now_seconds: float
) -> tuple[Division, FleetState]:
    """Counts of least price if every law is proven, else the share that each pool receives."""
    forecast = forecast_of(targets, state, now_seconds)
    cases = {name: _case(one.context) for name, one in seen.items()}
    known = {name: case for name, case in cases.items() if case is not None}
    if not forecast.known or len(known) < len(seen):
        return _by_observed_share(seen, forecast), state
    rate_of = {name: _rate_of(case) for name, case in known.items()}
    return _composed(targets, state, seen, forecast, rate_of, now_seconds)


def _by_observed_share(seen: Mapping[str, Seen], forecast: Forecast) -> Division:
    """Each pool with the share of the demand that it receives now; its own while one is unknown."""
    parts = _observed_parts(seen)
    if not forecast.known or not any(parts.values()) or is_uncounted(seen):
        return Division(seen=seen)
    return Division(
        seen=_shared(seen, forecast, parts),
        features={SPLIT.name: SplitUse(rule="Observed", shares_ratio=parts)},
    )


def _observed_parts(seen: Mapping[str, Seen]) -> dict[str, float]:
    """The share of the demand that each pool receives now; all 0 without requests."""
    rates = {name: rate or 0.0 for name, rate in pool_rates(seen).items()}
    whole = sum(rates.values())
    return {name: rate / whole if whole > 0.0 else 0.0 for name, rate in rates.items()}


def _uneven_parts(seen: Mapping[str, Seen]) -> dict[str, float]:
    """Of the pools whose pods get more requests than those of others: the share that they get."""
    observed = _observed_parts(seen)
    by_pod = shares({name: len(one.context.serving) for name, one in seen.items()})
    return {
        name: part
        for name, part in observed.items()
        if 0.0 < by_pod[name] * (1.0 + EVEN_TOLERANCE_RATIO) < part
    }


def _shared(
    seen: Mapping[str, Seen], forecast: Forecast, parts: Mapping[str, float]
) -> dict[str, Seen]:
    return {
        name: replace(one, context=replanned(one.context, forecast.share(parts[name])))
        for name, one in seen.items()
    }


def _case(context: TickContext) -> SizingCase | None:
    """The constraints on the counts of a pool; None while its law does not decide."""
    if context.prepared is None or not context.proven:
        return None
    return sizing_case(context, context.prepared)


def _rate_of(case: SizingCase) -> RateOf:
    """What so many replicas of a pool carry, without objectives that no count meets."""
    return cache(lambda n: carried_of_case(case, case.infeasible, n) if n > 0 else 0.0)


def _composed(
    targets: FleetTargets,
    state: FleetState,
    seen: Mapping[str, Seen],
    forecast: Forecast,
    rate_of: Mapping[str, RateOf],
    now_seconds: float,
) -> tuple[Division, FleetState]:
    """Counts by the composition of least price, and the moves to it."""
    whole = {name: replanned(one.context, forecast) for name, one in seen.items()}
    demand = _demand_ahead(whole)
    if demand is None:
        return _by_observed_share(seen, forecast), state
    uneven, due = _uneven_parts(seen), demand.greatest_per_second
    choice = Choice(
        variants=tuple(
            _variant(pool, whole[pool.name], rate_of[pool.name], due * uneven.get(pool.name, 0.0))
            for pool in targets.pools
        ),
        gpus_max=targets.gpus_max,
    )
    standing = {pool.name: _standing(whole[pool.name]) for pool in targets.pools}
    order, pays_since = next_order(
        choice, standing, demand, PAYS_SINCE_SECONDS.of(state.features), now_seconds
    )
    parts = shares(order.counts)
    limit = _limit(available(choice, standing), order.counts, demand)
    # What a pool keeps because it gets more than its pods' part is no reason to want no other.
    plain = choice.bounded(least={name: one.bounds.minimum for name, one in whole.items()})
    short = shortage(plain, standing, order.counts, due)
    shared = _shared(seen, forecast, parts)
    requirements = {
        name: _requirement(
            one.context,
            order,
            short,
            name,
            _safe_count(choice, order, short, whole, name, standing[name]),
            limit,
        )
        for name, one in shared.items()
        if one.planned
    }
    use = SplitUse(
        rule="EvenByPod",
        shares_ratio=parts,
        lacking=short.lacking,
        extra_hourly=short.extra_hourly,
    )
    division = Division(seen=shared, requirements=requirements, features={SPLIT.name: use})
    since = None if pays_since is None else float(pays_since)
    memories = {**state.features, PAYS_SINCE_SECONDS.name: since}
    return division, replace(state, features=memories)


def _demand_ahead(whole: Mapping[str, TickContext]) -> DemandAhead | None:
    """The demand of the resource, at most at any pool's lead; None while it is unknown."""
    found = {name: context.demand for name, context in whole.items()}
    known = {name: demand for name, demand in found.items() if demand is not None}
    if len(known) < len(found):
        return None
    now = sum(demand.rate_per_second for demand in known.values())
    ahead = (demand.scale_up_load.rate_per_second for demand in known.values())
    return DemandAhead(now_per_second=now, greatest_per_second=max(now, *ahead))


def _variant(
    pool: PoolTargets, context: TickContext, rate_of: RateOf, due_per_second: float
) -> Variant:
    """The pool as a choice. due_per_second: what it gets more than evenly by pod, else 0."""
    counts, cost = range(context.bounds.maximum), pool.targets.cost
    own = bisect_left(counts, 1, key=lambda count: int(rate_of(count) >= due_per_second))
    return Variant(
        name=pool.name,
        price_hourly=1.0 if cost is None else cost.replica_hourly,
        rate_of=rate_of,
        maximum=context.bounds.maximum,
        minimum=max(context.bounds.minimum, own),
        tolerated_failures=pool.targets.replicas.tolerated_failures,
        gpus_per_replica=pool.gpus_per_replica,
        cold_start_seconds=context.cold_start_seconds,
    )


def _standing(context: TickContext) -> Standing:
    """The pool as it is; pods without a place keep new ones from being ordered there."""
    sold_out = not_coming(context)
    return Standing(
        ordered=context.current - sold_out,
        serving=len(context.serving),
        placeable=is_placeable(context),
        sold_out=sold_out,
    )


def _limit(choice: Choice, counts: Mapping[str, int], demand: DemandAhead) -> Reason | None:
    """What keeps replicas from being ordered for demand that these counts do not carry.

    None if they carry it, or if one more of some pool could be ordered.
    """
    if choice.keeps(counts, demand.greatest_per_second):
        return None
    growing = [one for one in choice.variants if counts[one.name] < one.maximum]
    if not growing:
        return Reason.MAX_REPLICAS_REACHED
    room = math.inf if choice.gpus_max is None else choice.gpus_max - choice.gpus(counts)
    least = min(one.gpus_per_replica for one in growing)
    return Reason.GPUS_REACHED if least > room else None


def _requirement(
    context: TickContext, order: Order, short: Shortage, name: str, safe: int, limit: Reason | None
) -> Proposal:
    """What a pool needs by itself for its share, with the count that was decided for all.

    limit: what keeps all pools from growing.
    """
    own = required_replicas(context)
    wanted = short.ordered(name, order.counts[name]) + context.excluded
    reason, inputs = _REASONS.get(order.reason, Reason.LEAST_COST), short.inputs
    if inputs and order.counts[name] > short.counts[name]:
        reason = Reason.OTHER_POOL_SHORT
    proposal = own.required(
        STAGE,
        wanted,
        reason,
        decided=order.reason.value,
        saving_hourly=order.saving_hourly,
        price_hourly=order.target.price_hourly,
        **(inputs if reason is Reason.OTHER_POOL_SHORT else {}),
    )
    return replace(
        proposal,
        limited_by=limit or proposal.limited_by,
        requirement=replace(own.requirement, replicas=wanted, safe_replicas=safe),
    )


def _safe_count(
    choice: Choice,
    order: Order,
    short: Shortage,
    whole: Mapping[str, TickContext],
    name: str,
    standing: Standing,
) -> int:
    """The least count of a pool with which those that serve carry what may come within a lead.

    Replicas that do not come are no loss, if Kubernetes removes them first.
    """
    context = whole[name]
    demand = context.demand
    case = _case(context)
    if standing.sold_out and order.counts[name] >= standing.ordered:
        least = short.ordered(name, order.counts[name]) + context.excluded
        return max(least, least_with_places(context))
    if demand is None or case is None or order.counts[name] >= context.current:
        return context.current
    due = step_down_load(context.estimate, demand).rate_per_second
    left = {other: min(len(one.serving), order.counts[other]) for other, one in whole.items()}
    for count in range(order.counts[name], context.current):
        left[name] = min(count, len(context.serving))
        own, least = due * shares(left)[name], count + context.excluded
        known = within_reach(context, case, own, least, context.excluded) <= least
        if known and choice.carried_per_second(left) >= due:
            return least
    return context.current


PART = Divider(key=SPLIT, divide=divide_at_least_cost)
