"""Autoscalers of several pools: a ratio that is kept, and the joint planner with a past."""

from dataclasses import replace

import numpy as np
import pytest
from sim_fleets import FLEET, Script, trace

from servingslo.policy.inputs import CostTargets, Observation, ReplicaTargets
from servingslo.policy.pools.inputs import Role
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.past import BIN_SECONDS, Past
from servingslo_lab.sim.pools import production
from servingslo_lab.sim.pools.cluster import simulate_pools
from servingslo_lab.sim.pools.fleet import PoolsSpec, VariantsSpec
from servingslo_lab.sim.pools.production import ProductionPools, fleet_targets
from servingslo_lab.sim.pools.scaling import FixedRatio
from servingslo_lab.sim.production import benchmark_targets

SPEC = PoolsSpec(prefill=FLEET, decode=FLEET)


def looks(**desired: int) -> dict[str, Observation]:
    """An observation of each pool with this count."""
    return {
        name: Observation(time_seconds=15.0, namespace="n", name="r", desired_replicas=count)
        for name, count in desired.items()
    }


def test_the_follower_keeps_its_ratio_to_the_leader():
    """Rounded up, within 1 and its largest count; also where the leader does not change."""
    leader = Script((0.0, Wanted(replicas=5)))
    rule = FixedRatio("d", leader, "p", ratio=0.5, most=4)
    assert rule.decide(looks(p=1, d=3)) == {"d": Wanted(replicas=5), "p": Wanted(replicas=3)}
    leader.steps = [(0.0, Wanted(replicas=90))]
    assert rule.decide(looks(p=1, d=3))["p"] == Wanted(replicas=4)
    leader.steps = []
    assert rule.decide(looks(p=1, d=3)) == {"d": Wanted(), "p": Wanted(replicas=2)}
    leader.steps = [(0.0, Wanted(replicas=0))]
    assert rule.decide(looks(p=1, d=3))["p"] == Wanted(replicas=1)


def test_the_targets_of_pools_have_their_bounds_and_prices():
    """The smaller of both largest counts; a price of the resource before that of the fleet."""
    targets = benchmark_targets(max_replicas=7)
    priced = replace(targets, cost=CostTargets(gpu_hourly=9.0))
    fleets = {
        "prefill": replace(FLEET, max_replicas=5, price_per_hour=2.0),
        "decode": replace(FLEET, max_replicas=50),
    }
    spec = replace(SPEC, gpu_quota=11)
    found = fleet_targets({"prefill": targets, "decode": priced}, spec, fleets)
    assert found.gpus_max == 11
    assert [pool.role for pool in found.pools] == [Role.PREFILL, Role.DECODE]
    assert [pool.targets.cost.replica_hourly for pool in found.pools] == [2.0, 9.0]
    assert [pool.targets.replicas for pool in found.pools] == [
        ReplicaTargets(maximum=5), ReplicaTargets(maximum=7),
    ]  # fmt: skip
    assert [pool.targets.target.name for pool in found.pools] == ["prefill", "decode"]
    bounded = fleet_targets(
        {"prefill": targets, "decode": priced}, spec, fleets, replace(found, gpus_max=6)
    )
    assert bounded.gpus_max == 6


@pytest.mark.parametrize("kind", ["path", "variants"])
def test_the_planner_is_given_the_past_once_a_day_on_its_own_clock(monkeypatch, kind):
    """Its decisions are reported at the times of the trace."""
    offered = trace(rate=4.0, seconds=120.0)
    begin = 10 * BIN_SECONDS
    past = Past(begin_seconds=begin, rates_per_second=(4.0,) * 10)
    spec = SPEC if kind == "path" else VariantsSpec(pools={"a": FLEET, "b": FLEET})
    targets = dict.fromkeys(spec.fleets, benchmark_targets())
    seen = []
    plan = production.plan_fleet

    def spy(observations, *arguments):
        seen.append(observations)
        return plan(observations, *arguments)

    monkeypatch.setattr(production, "plan_fleet", spy)
    scaler = ProductionPools(
        fleet_targets(targets, spec, spec.fleets), past, offered.arrival_seconds
    )
    simulate_pools(spec, offered, scaler, seed=1)
    first = next(iter(spec.fleets))
    assert [look[first].time_seconds for look in seen[:2]] == [begin + 15.0, begin + 30.0]
    given = [look[first].history is not None for look in seen]
    assert given == [True] + [False] * (len(seen) - 1)
    assert np.allclose(seen[0][first].history.rates_per_second, 4.0)
    assert [one.time_seconds for one in scaler.of_pool(first)[:2]] == [15.0, 30.0]
