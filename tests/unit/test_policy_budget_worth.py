"""What a GPU of several pools is worth: from their frontiers, compared with what they carry."""

from dataclasses import replace
from functools import cache

import pytest
from tests.unit.policy_world import TICK_SECONDS, World, steady
from tests.unit.pools_world import DECODE, PREFILL, pools_record, worlds
from tests.unit.test_policy_pools_variants import PRICES
from tests.unit.test_policy_pools_variants import fleet as variants

from servingslo.controller.registry import checked
from servingslo.policy.budget.worth import kept_per_gpu
from servingslo.policy.inputs import Limits
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.sizing import carried_rate_per_second

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
    return lived(variants(), pools)


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


def test_a_gpu_of_variants_is_worth_what_it_carries() -> None:
    """Equal cards carry alike, however the counts are divided."""
    found = combined()
    each = carried(found, "dear", 2) / 2
    gained = worth(found, {"dear": 1, "spot": 1}, {"dear": 1, "spot": 2})
    assert gained == pytest.approx(each, rel=0.2)


def test_without_frontiers_it_is_the_mean() -> None:
    """Variants divide the requests, so their rates add up; prefill and decode see the same."""
    for found, adds in ((combined(), True), (disaggregated(), False)):
        fleet, targets, _ = found
        rates = [one.demand.forecast_rate_per_second for one in fleet.pools.values()]
        whole = sum(rates) if adds else max(rates)
        wanted = dict.fromkeys(fleet.pools, 2)
        assert kept_per_gpu(fleet, targets, FleetState(), wanted) == whole / 4
