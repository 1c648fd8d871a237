"""Pools behind one route: whose counts it has, and one bound in flight for all of them.

The bound is the sum over the pools that answer requests.

The first pool that answers requests writes it. Of prefill and decode that is decode: a request that
is prefilled is in flight at the route as well, and is soon at decode.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from servingslo.estimation.sample import GatewaySample
from servingslo.policy.decision import Decision
from servingslo.policy.facts import Facts, InFlightElsewhere
from servingslo.policy.inputs import LimitKind, Observation, Targets
from servingslo.policy.planner import Seen
from servingslo.policy.pools.inputs import FleetTargets, Observations, PoolTargets, Role


def writing_pool(targets: FleetTargets) -> str:
    """The pool whose decision holds the bound of the route."""
    return next(pool.name for pool in targets.pools if pool.role is not Role.PREFILL)


def one_writer(targets: FleetTargets, of_route: Collection[str] = ()) -> FleetTargets:
    """The pools with one of them alone writing the bound of a route, and counting its requests.

    A bound in engine arguments is each pool's own. of_route: features that only the writer has.
    """
    writer = writing_pool(targets)
    found: dict[str, Targets] = {}
    for pool in targets.pools:
        via = pool.targets.admission_via
        if via is not None and via.kind is not LimitKind.ENGINE_ARGUMENTS and pool.name != writer:
            found[pool.name] = replace(pool.targets, admission_via=None)
        if pool.name != writer and not pool.targets.features.keys().isdisjoint(of_route):
            own = found.get(pool.name, pool.targets)
            kept = {name: one for name, one in own.features.items() if name not in of_route}
            found[pool.name] = replace(own, features=kept)
    return targets.with_targets(found)


def own_counts(targets: FleetTargets, observations: Observations) -> dict[str, Observation]:
    """The observations with a gateway's counts only where they are of this pool alone.

    A route to a prefill and a decode pool counts what decode answers. Where all Combined pools are
    at zero, the first of a route has its counts, once for all: the others wake with it.
    """
    names = [pool.targets.gateway_name for pool in targets.pools]
    at_zero = all(one.desired_replicas == 0 for one in observations.values())
    found = {}
    for place, pool in enumerate(targets.pools):
        name, seen = pool.targets.gateway_name, observations[pool.name]
        shared = name is not None and names.count(name) > 1
        # A prefill pool that may sleep has to know that requests come; most of them pass it.
        wakes = pool.role is Role.PREFILL and pool.targets.replicas.may_sleep
        if shared and pool.role is Role.COMBINED and at_zero:
            if names.index(name) < place:
                seen = replace(seen, gateway=None, woken_by_others=True)
        elif shared and pool.role is not Role.DECODE and not wakes:
            seen = replace(seen, gateway=None)
        found[pool.name] = seen
    return found


def with_elsewhere(
    targets: FleetTargets,
    seen: Mapping[str, Seen],
    decisions: Mapping[str, Decision],
    route: GatewaySample | None,
) -> Seen:
    """The writing pool with what the others behind its route may have in flight.

    decisions: of all other pools. route: the counts of its gateway.
    """
    own = seen[writing_pool(targets)]
    others = [
        (seen[pool.name], decisions[pool.name])
        for pool in targets.pools
        if pool.name in decisions and _answers(pool)
    ]
    limits = [0 if not one.context.serving else _limit(one, decision) for one, decision in others]
    known = [limit for limit in limits if limit is not None]
    elsewhere = InFlightElsewhere(
        limit=sum(known) if len(known) == len(limits) else None,
        serving=sum(len(one.context.serving) for one, _ in others),
        requests=sum(
            one.context.estimate.running_requests + one.context.estimate.waiting_requests
            for one, _ in others
        ),
        route=route,
    )
    return with_facts(own, replace(own.context.facts, elsewhere=elsewhere))


def with_facts(seen: Seen, facts: Facts) -> Seen:
    """The same pool with other facts."""
    return replace(seen, context=replace(seen.context, facts=facts))


def _answers(pool: PoolTargets) -> bool:
    return pool.role is not Role.PREFILL


def _limit(seen: Seen, decision: Decision) -> int | None:
    each = decision.admission.in_flight_limit
    return None if each is None else each * len(seen.context.serving)
