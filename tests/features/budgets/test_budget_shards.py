"""A budget whose members several processes of a release decide on."""

from dataclasses import replace

from tests.features.budgets.test_controller_grants import GROWING, FakeBudgets, budget, sharing
from tests.unit.controller_fakes import NAME, Operator, record_of
from tests.unit.policy_world import World
from tests.unit.test_controller_shards import SHARDS, Shards

from servingslo.controller.shards.placement import place_of, shard_of


async def test_a_budget_whose_members_are_on_two_shards_lets_nothing_grow():
    """Its members are brought together, and one process reports it: the one with the lowest."""
    store = FakeBudgets([budget(8)])
    operator = Operator(world=World(rate=GROWING, replicas=2), make_grants=sharing(store))
    lead = operator.controller.lead = Shards({0}, count=None)
    operator.apply(record_of(cost={"gpuHourly": 2, "gpusPerReplica": 2}))
    other = record_of(name="other", uid="uid-other", targetRef={"kind": "Deployment", "name": "o"})
    operator.apply(replace(other, status={"shard": {"index": 1, "moves": 1}}))
    await operator.ticks(80)
    assert operator.fleet.scaled == []
    assert store.written
    back = replace(other, status={"shard": {"index": 0, "moves": 2}})
    operator.resources.records["other"] = back
    operator.registry.upsert(back)
    await operator.ticks(3)
    assert operator.fleet.scaled != []
    lead.count = SHARDS
    await operator.tick()
    places = [place_of(operator.resources.status(name)).shard for name in (NAME, "other")]
    assert places == [shard_of("uid-inference", SHARDS)] * 2
