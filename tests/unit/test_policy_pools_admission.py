"""Pools behind one route: requests are counted once, and one bound in flight is for all."""

from dataclasses import replace

import pytest
from tests.unit.policy_world import TICK_SECONDS
from tests.unit.test_policy_pools_guards import fleet, world

from servingslo.estimation.sample import GatewaySample
from servingslo.policy.inputs import (
    AdmissionMode,
    LimitKind,
    LimitObject,
    Limits,
    ReplicaTargets,
)
from servingslo.policy.planner import draft_count, finish
from servingslo.policy.pools.admission import one_writer, own_counts, with_elsewhere, writing_pool
from servingslo.policy.pools.inputs import FleetTargets, Role
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.reasons import Reason

ROUTE = GatewaySample(requests_total=100.0, age_seconds=1.0)
VIA = LimitObject(kind=LimitKind.BACKEND_TRAFFIC_POLICY, name="llama")


def combined() -> FleetTargets:
    """Two Combined pools behind one route, with a bound on it."""
    pools = tuple(
        replace(
            pool,
            role=Role.COMBINED,
            targets=replace(
                pool.targets,
                gateway_name="llama",
                admission_mode=AdmissionMode.AUTO,
                admission_via=VIA,
            ),
        )
        for pool in fleet().pools
    )
    return FleetTargets(pools=pools)


def observations(targets: FleetTargets, seen):
    """Both pools with the counts of the route."""
    return {
        pool.name: replace(seen[pool.name].context.observation, gateway=ROUTE)
        for pool in targets.pools
    }


def test_a_route_of_two_combined_pools_counts_for_neither_alone():
    """Else the demand would be counted twice."""
    targets = combined()
    counted = own_counts(targets, observations(targets, world(2, 2)))
    assert [one.gateway for one in counted.values()] == [None, None]


def test_the_requests_of_a_route_wake_all_of_its_pools_at_zero():
    """They are counted once: the second pool follows the first."""
    targets, state = combined(), FleetState()
    asleep = ReplicaTargets(minimum=0, maximum=4, idle_seconds=600.0)
    targets = targets.with_targets(
        {p.name: replace(p.targets, replicas=asleep) for p in targets.pools}
    )
    seen = world(2, 2)
    for tick, requests in enumerate((100.0, 100.0, 130.0), start=1):
        counted = {
            name: replace(
                one.context.observation,
                desired_replicas=0,
                current_replicas=0,
                pods=(),
                gateway=replace(ROUTE, requests_total=requests),
            )
            for name, one in seen.items()
        }
        at = tick * TICK_SECONDS
        fleet_decision, state = plan_fleet(counted, targets, Limits(), state, at)
        told = {name: one.reason for name, one in fleet_decision.pools.items()}
        counts = {name: one.replicas_after for name, one in fleet_decision.pools.items()}
        if tick == 2:
            assert told == dict.fromkeys(seen, Reason.ASLEEP)
    assert told["prefill"] is Reason.WOKEN_BY_REQUESTS
    assert counts == {"prefill": 1, "decode": 1}
    assert state.demand.latest[-1][1] == pytest.approx(2.0)


def test_a_route_to_prefill_and_decode_counts_what_decode_answers():
    """Every request passes decode, some of them not prefill."""
    targets = fleet()
    shared = targets.with_targets(
        {p.name: replace(p.targets, gateway_name="llama") for p in targets.pools}
    )
    counted = own_counts(shared, observations(shared, world(2, 2)))
    assert counted["prefill"].gateway is None
    assert counted["decode"].gateway == ROUTE


def test_routes_of_their_own_count_for_each():
    """As for a single target."""
    targets = fleet()
    counted = own_counts(targets, observations(targets, world(2, 2)))
    assert [one.gateway for one in counted.values()] == [ROUTE, ROUTE]


def test_one_pool_alone_writes_the_bound_of_the_route():
    """The first that answers requests."""
    targets = one_writer(combined())
    assert writing_pool(targets) == "prefill"
    assert [pool.targets.admission_via for pool in targets.pools] == [VIA, None]
    assert writing_pool(fleet()) == "decode"


def test_a_bound_in_engine_arguments_is_each_pools_own():
    """Every engine enforces its own."""
    own = replace(VIA, kind=LimitKind.ENGINE_ARGUMENTS, name="")
    targets = combined().with_targets(
        {p.name: replace(p.targets, admission_via=own) for p in combined().pools}
    )
    assert [pool.targets.admission_via for pool in one_writer(targets).pools] == [own, own]


def test_what_other_pools_hold_is_known_to_the_writer():
    """A pool whose bound is unknown leaves the bound of all unknown."""
    targets, seen = combined(), world(2, 3)
    decision, _ = finish(seen["decode"], draft_count(seen["decode"]))
    elsewhere = with_elsewhere(targets, seen, {"decode": decision}, ROUTE).context.facts.elsewhere
    assert (elsewhere.limit, elsewhere.serving, elsewhere.route) == (None, 3, ROUTE)
    known = replace(
        decision,
        knobs={**decision.knobs, "admission": replace(decision.admission, in_flight_limit=40)},
    )
    elsewhere = with_elsewhere(targets, seen, {"decode": known}, None).context.facts.elsewhere
    assert (elsewhere.limit, elsewhere.serving) == (120, 3)
