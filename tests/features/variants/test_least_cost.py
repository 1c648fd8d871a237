"""Variants in a closed loop: one composition for both cards."""

import time
from dataclasses import replace
from functools import cache

import pytest
from tests.unit.policy_world import TICK_SECONDS, World, reasons, steady
from tests.unit.pools_world import PRICES
from tests.unit.pools_world import two_prices as fleet

from servingslo.features.variants.composition import SPLIT, Choice, Variant
from servingslo.features.variants.search import least_price_composition
from servingslo.policy.inputs import Limits, ReplicaTargets
from servingslo.policy.planner import observe
from servingslo.policy.pools.demand import learn_demand
from servingslo.policy.pools.division import divide_demand
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.reasons import Reason
from servingslo_lab.sim.fleets.engine_kinds import engine_kind

# Fifty times what it takes here; a tick that waits longer loses its Lease.
MOST_SEARCH_SECONDS = 3.0
RATE_PER_SECOND = 6.0
TICKS = 80


@cache
def lived(by_pod):
    """Decisions of both pools; by_pod: each pod gets as many requests, else each pool."""
    targets, state, told, worlds = fleet(), FleetState(), [], {}

    def ready(name):
        return sum(pod.ready_at <= worlds[name].now for pod in worlds[name].pods)

    def rate_of(name):
        whole = 2.0 * RATE_PER_SECOND
        return lambda _: whole * ready(name) / sum(map(ready, PRICES)) if by_pod else whole / 2.0

    for seed, name in enumerate(PRICES, start=1):
        worlds[name] = World(rate=rate_of(name), replicas=4, seed=seed)
    for tick in range(1, TICKS + 1):
        at = tick * TICK_SECONDS
        seen = {name: replace(world.observe(at), pool=name) for name, world in worlds.items()}
        decision, state = plan_fleet(seen, targets, Limits(), state, at)
        told.append(decision)
        for name, one in decision.pools.items():
            if one.apply_replicas:
                worlds[name].scale(one.replicas_after)
    return told


def test_counts_are_decided_together_at_the_least_price():
    """The dear card is left with less than the three that half of the requests would ask for."""
    later = [one.pools["dear"] for one in lived(by_pod=True)[-20:]]
    assert all(Reason.LEAST_COST in reasons(one) for one in later)
    assert max(one.replicas_after for one in later) < 3


def test_a_pool_that_gets_more_than_its_pods_keeps_what_that_needs():
    """Half of the requests go to the dear card whatever the counts, as by weights of a route."""
    later = [one.pools["dear"] for one in lived(by_pod=False)[-20:]]
    assert {one.replicas_after for one in later} == {3}


def test_a_bound_that_keeps_demand_from_being_carried_is_the_reason():
    """A maximum of every pool, or the GPUs of all, names itself; neither is called met demand."""
    bounded = fleet()
    least = {
        pool.name: replace(pool.targets, replicas=ReplicaTargets(minimum=1, maximum=1))
        for pool in bounded.pools
    }
    for targets, reason in (
        (replace(bounded, gpus_max=2), Reason.GPUS_REACHED),
        (bounded.with_targets(least), Reason.MAX_REPLICAS_REACHED),
    ):
        worlds = {
            name: World(rate=steady(RATE_PER_SECOND), replicas=1, seed=seed)
            for seed, name in enumerate(PRICES, start=1)
        }
        state, said = FleetState(), []
        for tick in range(1, 31):
            at = tick * TICK_SECONDS
            seen = {name: replace(world.observe(at), pool=name) for name, world in worlds.items()}
            decision, state = plan_fleet(seen, targets, Limits(), state, at)
            said.append({one.reason for one in decision.pools.values()})
        assert said[-1] == {reason}, said


def test_the_split_is_reported():
    """Shares of the demand sum to one."""
    split = SPLIT.of(lived(by_pod=True)[-1].features)
    assert split is not None
    assert sum(split.shares_ratio.values()) == 1.0
    assert split.rule == "EvenByPod"


def _divided(targets=None, ticks=40, reach=None):
    """What is divided at the last of these ticks, nothing carried out. reach: of the dear law."""
    targets, state = targets or fleet(), FleetState()
    worlds = {
        name: World(rate=steady(RATE_PER_SECOND), replicas=4, seed=seed)
        for seed, name in enumerate(PRICES, start=1)
    }
    for tick in range(1, ticks + 1):
        at = tick * TICK_SECONDS
        told = {name: replace(world.observe(at), pool=name) for name, world in worlds.items()}
        before = state
        _, state = plan_fleet(told, targets, Limits(), state, at)
    seen = {
        pool.name: observe(told[pool.name], pool.targets, Limits(), before.pools[pool.name], at)
        for pool in targets.pools
    }
    context = seen["dear"].context
    law = replace(context.estimate.law, reach_sequences=reach)
    context = replace(context, estimate=replace(context.estimate, law=law))
    seen["dear"] = replace(seen["dear"], context=context)
    return divide_demand(targets, learn_demand(targets, before, seen, at), seen, at)[0]


def test_no_step_down_goes_beyond_the_reach_of_a_law():
    """With as many sequences at once as were never seen; within it, the same step is safe."""
    assert _divided(reach=1e-3).requirements["dear"].requirement.safe_replicas == 4
    assert _divided(reach=1e3).requirements["dear"].requirement.safe_replicas < 4


def test_an_assumed_law_composes_nothing():
    """Names of cards and models say too little of two cards side by side."""
    targets = fleet()
    assumed = {
        pool.name: replace(pool.targets, service_law=engine_kind("l4-small").law, law_assumed=True)
        for pool in targets.pools
    }
    division = _divided(targets.with_targets(assumed), ticks=2)
    assert SPLIT.of(division.features).rule == "Observed"
    assert not division.requirements


@pytest.mark.parametrize(
    ("gpus", "each", "demand"),
    [(8, (1, 1), 500.0), (None, (1, 1), 500.0), (256, (1, 2, 4, 8), 2000.0)],
)
def test_a_search_over_unstated_maxima_ends_soon(gpus, each, demand):
    """Without a maximum a pool has 4,096; what no GPU holds or nothing needs is not tried."""
    variants = tuple(
        Variant(
            name=str(place),
            price_hourly=1.0 + place,
            rate_of=lambda count, place=place: count * (3.0 - place / 2),
            maximum=4096,
            gpus_per_replica=gpus_each,
        )
        for place, gpus_each in enumerate(each)
    )
    before = time.process_time()
    found = least_price_composition(Choice(variants=variants, gpus_max=gpus), demand)
    assert time.process_time() - before < MOST_SEARCH_SECONDS
    assert found.carries == (gpus is None)
