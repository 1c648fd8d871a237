"""GPUs of a replica, and a resource's own bound on them, in the loop."""

from dataclasses import replace

import pytest
from tests.unit.controller_fakes import SPEC
from tests.unit.policy_world import World, stepped
from tests.unit.pools_world import DECODE, POOLS, PREFILL, PoolsOperator, pools_record, worlds

from servingslo.adapters.kubernetes.pods.replica_gpus import replica_gpus
from servingslo.api.convert import fleet_from_spec
from servingslo.controller.grants import gpus_of
from servingslo.controller.recordings.validation import check_observation
from servingslo.errors import InvalidInputError
from servingslo.policy.inputs import Grant, ReplicaGpus

GROWING = stepped((0, 4.0), (600, 40.0))


def template(*resources: dict, claims: bool = False) -> dict:
    """A pod template whose containers have these limits."""
    containers = [
        {"name": f"c{n}", "resources": {"limits": one}} for n, one in enumerate(resources)
    ]
    claimed = {"resourceClaims": [{"name": "gpu"}]} if claims else {}
    return {"spec": {"containers": containers, **claimed}}


@pytest.mark.parametrize(
    ("found", "gpus"),
    [
        pytest.param(template({"nvidia.com/gpu": "8"}), 8, id="nvidia"),
        pytest.param(template({"amd.com/gpu": 2}, {"cpu": "4"}), 2, id="amd"),
        pytest.param(template({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 1}), 2, id="two"),
    ],
)
def test_gpus_of_a_replica_are_those_of_its_containers(found, gpus):
    """Whole cards, whatever the plugin."""
    assert replica_gpus(found).gpus == gpus


@pytest.mark.parametrize(
    ("found", "named"),
    [
        pytest.param(template({"nvidia.com/mig-1g.5gb": 1}), "nvidia.com/mig-1g.5gb", id="mig"),
        pytest.param(template({"nvidia.com/gpu.shared": 1}), "nvidia.com/gpu.shared", id="shared"),
        pytest.param(template({"nvidia.com/gpumem": 8000}), "nvidia.com/gpumem", id="memory"),
        pytest.param(template({}, claims=True), "resourceClaims", id="claims"),
        pytest.param(template({"cpu": "8"}), "requests no GPU", id="none"),
    ],
)
def test_what_is_no_whole_card_is_refused_with_the_way_out(found, named):
    """By its name, and with the field that states the number."""
    gpus = replica_gpus(found)
    assert gpus.gpus is None
    assert named in gpus.refused
    assert gpus.refused.endswith("state gpusPerReplica")


@pytest.mark.parametrize("field", ["gpus", "gpus_per_replica", "kept_per_gpu"])
def test_a_recorded_grant_that_cannot_be_is_refused(field):
    """By its path: a plan divides by GPUs of a replica."""
    grant = replace(Grant(budget="inference"), **{field: -1})
    seen = replace(World(rate=GROWING, replicas=2).observe(15.0), grant=grant)
    with pytest.raises(InvalidInputError, match=f"grant.{field}"):
        check_observation(seen, None)


def test_a_stated_number_is_no_less_than_the_cards_of_the_pod_template() -> None:
    """A tenant states more than the template has, never fewer."""
    targets = fleet_from_spec(SPEC).pools[0].targets
    for stated, template, counted in ((1, 8, 8), (8, 1, 8), (4, None, 4)):
        of_template = ReplicaGpus(gpus=template)
        assert gpus_of(replace(targets, gpus_per_replica=stated), of_template).gpus == counted
    assert gpus_of(replace(targets, gpus_per_replica=None), ReplicaGpus(gpus=2)).gpus == 2


@pytest.mark.parametrize(("cards", "most"), [(1, 5), (2, 2)])
async def test_the_own_bound_of_pools_counts_the_cards_of_pod_templates(
    cards: int, most: int
) -> None:
    """As a budget does, without one and without a price."""
    operator = PoolsOperator(worlds=worlds(stepped((0.0, 2.0), (150.0, 9.0))))
    for fleet in operator.pools.fleets.values():
        fleet.replica_gpus = ReplicaGpus(gpus=cards)
    operator.apply(pools_record(gpus=5, pools=POOLS))
    for _ in range(30):
        await operator.tick()
    assert operator.count(PREFILL) + operator.count(DECODE) == most
    assert "GPUsReached" in {one["reason"] for one in operator.resources.status()["conditions"]}


async def test_within_an_own_bound_gpus_that_are_not_counted_let_nothing_grow() -> None:
    """The condition says what to state, and stating it is enough."""
    operator = PoolsOperator(worlds=worlds(stepped((0.0, 2.0), (150.0, 12.0))))
    refused = ReplicaGpus(refused="the pod template requests no GPU; state gpusPerReplica")
    for fleet in operator.pools.fleets.values():
        fleet.replica_gpus = refused
    operator.apply(pools_record(gpus=6, pools=POOLS))
    before = operator.count(PREFILL) + operator.count(DECODE)
    for _ in range(30):
        await operator.tick()
    assert operator.count(PREFILL) + operator.count(DECODE) == before
    told = {one["reason"]: one["message"] for one in operator.resources.status()["conditions"]}
    assert told["GPUsUnknown"].endswith("state gpusPerReplica")
    stated = [{**pool, "gpusPerReplica": 2} for pool in POOLS]
    operator.apply(pools_record(gpus=6, pools=stated, generation=2))
    for _ in range(30):
        await operator.tick()
    assert operator.count(PREFILL) + operator.count(DECODE) == 3
