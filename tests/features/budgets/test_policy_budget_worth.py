"""What a resource wants, and what a GPU of its pools is worth: from their frontiers."""

from dataclasses import replace
from functools import cache

import pytest
from tests.unit.policy_world import REPLICAS_ONLY, TICK_SECONDS, World, run, steady
from tests.unit.pools_world import DECODE, PREFILL, PRICES, pools_record, two_prices, worlds
from tests.unit.test_policy_budget_guard import GROWING, GrantedWorld, granted

from servingslo.controller.registry import checked
from servingslo.features.budgets import claims
from servingslo.features.budgets.claims import kept_per_gpu, wants_of
from servingslo.policy.inputs import Limits, ReplicaTargets
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets, Role
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.sizing import carried_rate_per_second

pytestmark = pytest.mark.slow("servingslo.features.budgets", "servingslo.policy")

TICKS = 60
Lived = tuple[FleetDecision, FleetTargets, FleetState]


def lived(targets: FleetTargets, pools: dict[str, World], ticks: int = TICKS) -> Lived:
    """The last decision on these pools and the memory after it."""
    state = FleetState()
    for tick in range(1, ticks + 1):
        at = tick * TICK_SECONDS
        seen = {name: replace(world.observe(at), pool=name) for name, world in pools.items()}
        fleet, state = plan_fleet(seen, targets, Limits(), state, at)
    return fleet, targets, state


@cache
def disaggregated() -> Lived:
    """Prefill and decode that serve 4 requests a second."""
    targets = checked(pools_record()).fleet
    assert targets is not None
    both = worlds(steady(4.0), prefill=3, decode=3)
    return lived(targets, {"prefill": both[PREFILL], "decode": both[DECODE]})


@cache
def combined() -> Lived:
    """The same card at two prices, four replicas each."""
    pools = {
        name: World(rate=steady(6.0), replicas=4, seed=seed)
        for seed, name in enumerate(PRICES, start=1)
    }
    return lived(two_prices(), pools)


def worth(found: Lived, after: dict[str, int], wanted: dict[str, int]) -> float:
    """Of one GPU with these counts."""
    fleet, targets, state = found
    for name, count in after.items():
        fleet = fleet.with_pool(name, replace(fleet.pools[name], replicas_after=count))
    return kept_per_gpu(fleet, targets, state, wanted)


def carried(found: Lived, pool: str, count: int) -> float:
    """What so many replicas of one pool carry."""
    sized = found[2].pools[pool].sized
    assert sized is not None
    return carried_rate_per_second(sized.case, (), count)


def demand(found: Lived, pool: str) -> float:
    """The rate that a pool was sized for."""
    sized = found[2].pools[pool].sized
    assert sized is not None
    return sized.load.rate_per_second


def enough(found: Lived, pool: str) -> int:
    """The least count of a pool that carries its demand."""
    return next(n for n in range(1, 40) if carried(found, pool, n) >= demand(found, pool))


def test_only_the_role_that_is_full_first_keeps_requests() -> None:
    """With one decode replica a further prefill replica keeps none, a decode replica its own."""
    found = disaggregated()
    prefill, decode = enough(found, "prefill"), enough(found, "decode")
    assert decode > 1
    short = {"prefill": prefill, "decode": 1}
    assert worth(found, short, {"prefill": prefill + 1, "decode": 1}) == 0.0
    whole, own = demand(found, "decode"), carried(found, "decode", 1)
    gained = worth(found, short, {"prefill": prefill, "decode": decode})
    assert gained == pytest.approx((whole - own) / (decode - 1), rel=1e-3)


def test_a_spare_replica_of_a_pool_is_worth_nothing() -> None:
    """The one that would be released under a lower bound costs no request."""
    found = disaggregated()
    after = {"prefill": enough(found, "prefill") + 2, "decode": enough(found, "decode") + 2}
    assert worth(found, after, after) == 0.0
    scarce = {"prefill": enough(found, "prefill"), "decode": enough(found, "decode")}
    assert worth(found, scarce, scarce) > 0.0


def test_a_gpu_of_combined_pools_is_worth_what_it_carries() -> None:
    """Equal cards carry alike, however the counts are divided."""
    found = combined()
    each = carried(found, "dear", 2) / 2
    gained = worth(found, {"dear": 1, "spot": 1}, {"dear": 1, "spot": 2})
    assert gained == pytest.approx(each, rel=0.2)


def test_without_frontiers_it_is_the_mean() -> None:
    """Combined pools divide requests, so their rates add up; prefill and decode see the same."""
    for found, adds in ((combined(), True), (disaggregated(), False)):
        fleet, targets, _ = found
        rates = [one.demand.forecast_rate_per_second for one in fleet.pools.values()]
        whole = sum(rates) if adds else max(rates)
        wanted = dict.fromkeys(fleet.pools, 2)
        assert kept_per_gpu(fleet, targets, FleetState(), wanted) == whole / 4


def test_wants_are_those_before_the_budget():
    """In GPUs; a GPU keeps what the frontier says, and a pod that ends is still held."""
    story = run(GrantedWorld(rate=GROWING, replicas=3, grant=lambda _: granted(8, 2))).until(1500)
    sized = story.state.sized
    pool = PoolTargets(name="", role=Role.COMBINED, targets=REPLICAS_ONLY, gpus=2)
    targets, state = FleetTargets(pools=(pool,)), FleetState(pools={"": story.state})
    fleet = FleetDecision.of(story.at(1500.0))
    wants = wants_of(fleet, targets, Limits(), {"": 5}, state)
    assert wants.acts
    assert (wants.ordered_gpus, wants.held_gpus, wants.after_gpus) == (8, 10, 8)
    assert wants.wanted_gpus > 8
    saturation = sized.case.saturation_per_second
    assert 0.0 < wants.kept_per_gpu <= saturation / 2
    stopped = wants_of(fleet, targets, Limits(recommend_only=True), {"": 5}, state)
    assert (stopped.acts, stopped.wanted_gpus, stopped.minimum_gpus) == (False, 8, 0)


def test_wants_are_judged_by_the_bounds_in_force(monkeypatch):
    """Replicas up to the usual minima keep requests too while lower minima hold."""
    fleet, targets, state = combined()
    after = {name: one.replicas_after for name, one in fleet.pools.items()}
    usual = {
        pool.name: replace(pool.targets, replicas=ReplicaTargets(minimum=after[pool.name]))
        for pool in targets.pools
    }
    monkeypatch.setattr(
        claims, "with_bounds_in_force", lambda one, *_: replace(one, replicas=ReplicaTargets())
    )
    wants = wants_of(fleet, targets.with_targets(usual), Limits(), after, state)
    assert wants.minimum_gpus < wants.ordered_gpus
    assert wants.kept_per_gpu > 0.0
