"""Pools that each serve whole requests behind one gateway.

1. Both backends agree to the last bit, and every request has one end.
2. Pools of equal engines are one fleet; unequal ones share as the gateway's rule says.
3. Weights send each pool its share, whatever its load.
4. Spot events take several pods at once, from one pool alone.
5. The cheapest mixture is at most as expensive as the cheapest single pool.
"""

from dataclasses import replace

import numpy as np
import pytest
from sim_fleets import FLEET, Script, trace
from test_sim_pools import END, random_pool, random_script

from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec, Spot
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.pools.cluster import simulate_pools
from servingslo_lab.sim.pools.fleet import VariantsSpec
from servingslo_lab.sim.pools.hindsight import best_counts, cheapest_single
from servingslo_lab.sim.pools.scaling import Constant, Each
from servingslo_lab.sim.pools.together import PoolsResult
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.backend import INTERPRETED, compiled_backend
from servingslo_lab.sim.scoring import Objectives

FAST = FleetSpec(engine="h100-8b", initial_replicas=1)
SLOW = FleetSpec(engine="l4-small", initial_replicas=1)
OBJECTIVES = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.99)


def held(spec: VariantsSpec, offered, backend=None) -> PoolsResult:
    """A run at the initial counts."""
    counts = {name: fleet.initial_replicas for name, fleet in spec.fleets.items()}
    return simulate_pools(spec, offered, Constant(counts), seed=2, backend=backend)


@pytest.mark.parametrize("seed", range(9))
def test_variants_agree_in_both_backends_and_lose_no_request(seed):
    """With weights or without, whatever starts, fails and vanishes."""
    rng = np.random.default_rng([seed, 78])
    names = ["a", "b", "c"][: int(rng.integers(2, 4))]
    spec = VariantsSpec(
        pools={name: random_pool(rng) for name in names},
        routing=[Routing.LEAST_LOADED, Routing.ROUND_ROBIN, Routing.LEAST_OF_TWO][seed % 3],
        weights={name: float(rng.integers(1, 4)) for name in names} if seed % 2 else {},
        gpu_quota=6 if rng.random() < 0.3 else None,
    )
    offered = trace(rate=float(rng.uniform(1.0, 15.0)), seconds=90.0, seed=seed)
    scripts = {name: random_script(rng) for name in names}
    found, seen = [], []
    for backend in (INTERPRETED, compiled_backend()):
        for script in scripts.values():
            script.seen = []
        found.append(simulate_pools(spec, offered, Each(scripts), seed=seed, backend=backend))
        seen.append([script.seen for script in scripts.values()])
    one, other = found
    for name in ("arrival_seconds", "ttft_seconds", "tpot_seconds", "latency_seconds", "status"):
        assert np.array_equal(getattr(one.result, name), getattr(other.result, name)), name
    assert (one.ticks, one.replica_seconds) == (other.ticks, other.replica_seconds)
    assert seen[0] == seen[1]
    assert np.array_equal(one.result.arrival_seconds, offered.arrival_seconds)
    over = one.result.status >= layout.FINISHED
    assert over.any()
    assert not (over & ~np.isin(one.result.status, END)).any()


@pytest.mark.parametrize("routing", [Routing.LEAST_LOADED, Routing.ROUND_ROBIN])
def test_pools_of_equal_engines_are_one_fleet(routing):
    """One and two of them serve each request as three in one fleet."""
    offered = trace(rate=12.0, seconds=120.0)
    fleet = replace(FLEET, initial_replicas=3, routing=routing)
    alone = simulate(fleet, offered, Script(), seed=2)
    both = VariantsSpec(
        pools={"a": replace(FLEET, initial_replicas=1), "b": replace(FLEET, initial_replicas=2)},
        routing=routing,
    )
    found = held(both, offered)
    assert np.array_equal(found.result.ttft_seconds, alone.ttft_seconds)
    assert np.array_equal(found.result.latency_seconds, alone.latency_seconds)
    assert found.replica_seconds == {"a": 120.0, "b": 240.0}


def test_a_pool_without_pods_fails_its_weight():
    """A gateway by weights does not know that nothing serves there."""
    offered = trace(rate=8.0, seconds=120.0)
    pools = {"a": FAST, "b": replace(FAST, initial_replicas=0)}
    failed = held(VariantsSpec(pools=pools, weights={"a": 3.0, "b": 1.0}), offered).result.status
    assert (failed == layout.FAILED).mean() == pytest.approx(0.25, abs=0.05)
    by_load = held(VariantsSpec(pools=pools), offered).result.status
    assert (by_load == layout.FINISHED).all()


def test_spot_events_take_several_pods_of_one_pool_at_once():
    """Half of the ready pods vanish together with their requests, and others are ordered."""
    spot = Spot(events_per_hour=40.0, lost_ratio=0.5)
    pools = {
        "spot": replace(FLEET, initial_replicas=8, spot=spot),
        "kept": replace(FLEET, initial_replicas=2),
    }
    found = held(VariantsSpec(pools=pools), trace(rate=20.0, seconds=600.0))
    ready = {name: [tick.ready for tick in ticks] for name, ticks in found.ticks.items()}
    assert min(ready["spot"]) <= 4
    assert set(ready["kept"]) == {2}
    assert {tick.desired for tick in found.ticks["spot"]} == {8}
    assert ready["spot"][-1] > min(ready["spot"])
    assert (found.result.status == layout.FAILED).any()


def test_the_cheapest_mixture_is_found():
    """It meets the share, fewer of each do not, and no single pool is cheaper."""
    fast = replace(FAST, price_per_hour=4.0)
    slow = replace(SLOW, price_per_hour=1.0)
    spec = VariantsSpec(pools={"fast": fast, "slow": slow})
    offered = trace(rate=240.0, seconds=60.0)
    most = {"fast": 30, "slow": 30}
    best = best_counts(spec, offered, OBJECTIVES, most=most, seed=2)
    single = cheapest_single(spec, offered, OBJECTIVES, most=most, seed=2)
    assert best is not None
    assert single is not None
    assert min(single.counts.values()) == 0
    price = 4.0 * best.counts["fast"] + best.counts["slow"]
    assert price <= 4.0 * single.counts["fast"] + single.counts["slow"]
    counts = {name: max(count - 1, 0) for name, count in best.counts.items()}
    fewer = spec.with_fleets(
        {n: replace(f, initial_replicas=counts[n]) for n, f in spec.fleets.items()}
    )
    assert OBJECTIVES.share_of(held(fewer, offered).result) < 0.99
