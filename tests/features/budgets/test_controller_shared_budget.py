"""Two resources under one budget through the whole loop, and one with pools."""

from tests.features.budgets.test_controller_grants import (
    GROWING,
    FakeBudgets,
    budget,
    sharing,
    store_of,
)
from tests.unit.controller_fakes import SPEC, FakeFleet, Operator, record_of
from tests.unit.policy_world import World, stepped
from tests.unit.pools_world import DECODE, POOLS, PREFILL, PoolsOperator, pools_record, worlds

from servingslo.controller.lease.lead import Lead
from servingslo.controller.place import Place
from servingslo.controller.registry import Resource, checked
from servingslo.errors import ClusterUnavailableError
from servingslo.policy.inputs import Limits
from servingslo.reasons import Reason

GPUS = 8


def two_models(surge_seconds: float, **limits) -> PoolsOperator:
    """Batch, whose load fills the budget, and chat, whose load rises later and comes first."""
    operator = PoolsOperator(
        worlds={
            "batch": World(rate=stepped((0, 40.0)), replicas=2, named="batch", going_seen=True),
            "chat": World(
                rate=stepped((0, 4.0), (surge_seconds, 24.0)),
                replicas=2,
                named="chat",
                seed=2,
                going_seen=True,
            ),
        },
        make_grants=sharing(FakeBudgets([budget(GPUS)])),
        limits=Limits(**limits),
    )
    for name, priority in (("batch", 0), ("chat", 10)):
        spec = {
            **SPEC,
            "targetRef": {"kind": "Deployment", "name": name},
            "priority": priority,
            "replicas": {"min": 1, "max": 20},
            "cost": {"gpuHourly": 2, "gpusPerReplica": 1},
        }
        operator.apply(record_of(spec, name=name, uid=f"uid-{name}"))
    return operator


def held(operator: PoolsOperator) -> int:
    """GPUs of ordered replicas and of pods that exist beyond them."""
    fleets = operator.pools.fleets.values()
    return sum(max(one.world.desired, len(one._seen.pods)) for one in fleets)


async def test_a_budget_that_selects_nothing_says_so() -> None:
    """At once, also on a cluster without any ServingSLO, and no longer once there is one."""
    operator = two_models(750.0)
    for name in ("batch", "chat"):
        operator.delete(name)
    await operator.tick()
    ready, sufficient = store_of(operator).written[-1]["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "SelectsNothing")
    assert sufficient["status"] == "True"
    operator.apply(operator.resources.put(two_models(750.0).resources.records["chat"]))
    await operator.tick()
    assert store_of(operator).written[-1]["conditions"][0]["reason"] == "Ready"


async def test_what_a_deleted_servingslo_leaves_behind_is_named() -> None:
    """Once, when it happens, with its GPUs; a target that another ServingSLO takes over is not."""
    operator = two_models(750.0)
    for _ in range(3):
        await operator.tick()

    def outside() -> list[str]:
        posted = operator.events.posted
        return [event.message for _, event in posted if event.reason is Reason.OUTSIDE_BUDGET]

    chat = operator.resources.records["chat"]
    operator.delete("chat")
    operator.apply(record_of(chat.spec, name="again", uid="uid-again"))
    await operator.tick()
    assert outside() == []
    operator.delete("batch")
    for _ in range(3):
        await operator.tick()
    (message,) = outside()
    assert message == (
        "Deployment batch is outside ServingBudget inference since ServingSLO batch was deleted:"
        f" {operator.count('batch')} replicas with {operator.count('batch')} GPUs are not counted"
        " any more"
    )


async def test_pools_share_the_grant_of_their_resource() -> None:
    """The sum of both counts ends at the budget, with its reason."""
    rate = stepped((0.0, 2.0), (150.0, 9.0))
    store = FakeBudgets([budget(5)])
    operator = PoolsOperator(worlds=worlds(rate), make_grants=sharing(store))
    cost = {"gpuHourly": 2, "gpusPerReplica": 1}
    operator.apply(pools_record(pools=[{**pool, "cost": cost} for pool in POOLS]))
    for _ in range(30):
        await operator.tick()
        assert operator.count(PREFILL) + operator.count(DECODE) <= 5
    assert operator.count(PREFILL) + operator.count(DECODE) == 5
    status = store.written[-1]
    assert status["granted"] == 5
    assert status["short"] > 0


async def test_what_a_paused_resource_holds_is_nobody_elses() -> None:
    """It is read at each tick, keeps its replicas, and is asked for none."""
    operator = two_models(150.0)
    for world in operator.worlds.values():
        world.scale(3)
    paused = operator.resources.records["batch"]
    spec = {**paused.spec, "mode": "Paused"}
    operator.apply(record_of(spec, name="batch", uid="uid-batch", generation=2))
    for _ in range(30):
        await operator.tick()
        assert held(operator) <= GPUS
    assert operator.count("batch") == 3
    assert operator.count("chat") == GPUS - 3
    operator.worlds["batch"].scale(5)
    for _ in range(3):
        await operator.tick()
    assert operator.count("chat") == GPUS - 5


async def test_a_target_that_cannot_be_read_keeps_what_it_had() -> None:
    """Its GPUs are not free: nobody else grows into them, at the start of the operator neither."""
    operator = two_models(150.0)
    batch, chat = operator.worlds["batch"], operator.worlds["chat"]
    batch.scale(5)
    operator.registry.remove(("inference", "batch"))
    operator.apply(operator.resources.records["batch"])
    operator.pools.fleets["batch"].down = ClusterUnavailableError("away")
    for _ in range(30):
        await operator.tick()
    assert chat.desired == 2
    operator.pools.fleets["batch"].down = None
    await operator.tick()
    operator.pools.fleets["batch"].down = ClusterUnavailableError("away")
    for _ in range(10):
        await operator.tick()
    assert batch.desired + chat.desired <= GPUS
    left = chat.desired
    operator.pools.gone.add("batch")
    for _ in range(3):
        await operator.tick()
    assert chat.desired > left


async def test_three_models_share_through_two_surges_and_a_lost_node() -> None:
    """Every tick within the number; pods without a place are not replaced by more orders."""
    operator = two_models(600.0)
    operator.worlds["chat"].rate = stepped((0, 4.0), (600, 12.0))
    rate = stepped((0, 4.0), (750, 12.0))
    world = World(rate=rate, replicas=1, named="search", seed=3, going_seen=True)
    operator.worlds["search"] = world
    fleet = FakeFleet(world=world, target="search")
    operator.pools.fleets = {**operator.pools.fleets, "search": fleet}
    batch = operator.resources.records["batch"]
    target = {"kind": "Deployment", "name": "search"}
    spec = {**batch.spec, "targetRef": target, "priority": 5}
    operator.apply(record_of(spec, name="search", uid="uid-search"))
    operator.worlds["batch"].scale(1)
    for tick in range(140):
        if tick == 80:
            for name, place in (("chat", 2), ("search", 1), ("batch", 1)):
                operator.worlds[name].room = place
        if tick == 110:
            for one in operator.worlds.values():
                one.room = None
        await operator.tick()
        assert held(operator) <= GPUS
        assert min(operator.count(name) for name in operator.worlds) >= 1
    assert operator.count("chat") > 2
    assert operator.count("search") >= 2
    assert operator.count("batch") == 1
    told = {event.reason for _, event in operator.events.posted}
    assert Reason.UNSCHEDULABLE_PODS in told


class Elsewhere(Resource):
    """A resource that another process decides."""

    @property
    def place(self) -> Place:
        """Under the Lease of that one."""
        return Place(lease=1)


class OneOfTwo(Lead):
    """A process that holds one of two Leases."""

    def term(self, _namespace: str, lease: int = 0) -> str | None:
        """Of its own."""
        return None if lease else "1"

    def held(self) -> set[int]:
        """Its own."""
        return {0}


async def test_a_budget_whose_members_are_of_two_processes_lets_nothing_grow():
    """One of them reports it: the one with the lowest Lease."""
    store = FakeBudgets([budget(8)])
    operator = Operator(world=World(rate=GROWING, replicas=2), make_grants=sharing(store))
    operator.controller.lead = OneOfTwo()
    operator.apply(record_of(cost={"gpuHourly": 2, "gpusPerReplica": 2}))
    other = record_of(name="other", uid="uid-other", targetRef={"kind": "Deployment", "name": "o"})
    here = operator.apply(other)
    key = here.record.ref.namespace, here.record.ref.name
    operator.registry.resources[key] = Elsewhere(record=here.record, fleet=here.fleet)
    await operator.ticks(80)
    assert operator.fleet.scaled == []
    assert store.written
    operator.registry.resources[key] = checked(other)
    await operator.ticks(3)
    assert operator.fleet.scaled != []
