"""Three shards of one release on a real API server, each decided by a process of its own."""

from collections.abc import Callable, Iterator

import pytest
from tests.integration.failover import TAKEOVER_SECONDS, identity_of
from tests.integration.operator_under_test import Engines, Operator, Tenant, install_chart
from tests.integration.shards import (
    held,
    held_by_each,
    is_placed,
    loss_of,
    order_everywhere,
    shard_strays,
    shard_writes,
    sharded,
    shards_of,
)

from servingslo.adapters.clock import SystemClock
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.kubernetes.control_plane import STATUSES_AUDITED

pytestmark = pytest.mark.slow("servingslo.features.shards", "servingslo.controller.lease")

SHARDS = 3
NAMES = tuple(f"chat-{number}" for number in range(6))
MOST = 20
# A new process is in line, and a shard is given back within a tick.
BALANCED_SECONDS = 60.0
# Ticks of a busy machine differ.
TICK_SLACK_SECONDS = 5.0


@pytest.fixture(scope="module")
def trio(rig: Rig, audited: None, engines: Engines) -> Iterator[list[Operator]]:
    """Three operators, each of which holds a shard."""
    install_chart(rig)
    three = [sharded(rig, SHARDS) for _ in range(SHARDS)]
    for one in three:
        one.start()
    yield three
    for one in three:
        one.stop()


@pytest.fixture(scope="module")
def tenant(rig: Rig, engines: Engines, trio: list[Operator]) -> Iterator[Tenant]:
    """A tenant with some ServingSLOs, each on the shard where its uid belongs."""
    namespace = rig.create_namespace(STATUSES_AUDITED)
    tenant = Tenant(rig, namespace, engines)
    for name in NAMES:
        tenant.create_deployment(name, replicas=1)
        tenant.create_slo(name, replicas={"min": 1, "max": MOST})
    tenant.wait(lambda: is_placed(tenant, SHARDS), what="each resource on its shard")
    for name in NAMES:
        tenant.wait_reconciled(name)
    yield tenant
    rig.delete_namespace(namespace)


@pytest.fixture
def user(rig: Rig, trio: list[Operator], tenant: Tenant) -> Tenant:
    """The tenant, while each shard is held by another process."""
    for one in trio:
        if one.process is None or not one.process.running:
            one.start()
    rig.wait_for(
        lambda: held_by_each(trio, SHARDS),
        what="three hold a shard each",
        timeout_seconds=BALANCED_SECONDS,
    )
    return tenant


def wait_ordered(user: Tenant, replicas: int) -> None:
    """Wait until each Deployment has it."""
    user.wait(
        lambda: all(user.replicas(name) == replicas for name in NAMES),
        what=f"{replicas} replicas everywhere",
    )


def busiest(user: Tenant, trio: list[Operator]) -> Operator:
    """Who decides most of the tenant's resources."""
    places = list(shards_of(user).values())
    return max(trio, key=lambda one: sum(places.count(shard) for shard in held(one)))


def test_resources_are_divided_and_each_order_is_of_the_holder_of_its_shard(
    rig: Rig, trio: list[Operator], user: Tenant
) -> None:
    """Every process decides for its own; the gauges of a resource are of one alone."""
    assert len(set(shards_of(user).values())) > 1
    wait_ordered(user, order_everywhere(user, NAMES, MOST))
    assert shard_strays(shard_writes(rig), trio) == []
    for name in NAMES:
        labels = f'servingslo_desired_replicas{{name="{name}",namespace="{user.namespace}"'
        assert sum(labels in one.metrics() for one in trio) == 1


def test_the_shard_of_a_killed_process_is_decided_by_another(
    rig: Rig,
    trio: list[Operator],
    user: Tenant,
    record_property: Callable[[str, object], None],
) -> None:
    """Within its Lease and a tick; all others are not disturbed."""
    lost, places = busiest(user, trio), shards_of(user)
    mine = held(lost)
    lost.kill()
    killed = SystemClock.now_seconds()
    wait_ordered(user, order_everywhere(user, NAMES, MOST))
    seen = shard_writes(rig)
    loss = loss_of(seen, places, mine, user, killed)
    record_property("seconds", str(loss))
    assert loss.taken <= TAKEOVER_SECONDS
    assert loss.orphans <= loss.taken + loss.others + TICK_SLACK_SECONDS, loss
    assert shard_strays(seen, trio) == []


def test_a_frozen_process_writes_nothing_for_its_shard_when_it_wakes(
    rig: Rig,
    trio: list[Operator],
    user: Tenant,
    record_property: Callable[[str, object], None],
) -> None:
    """Another has its shard by then; the one that woke stands in line and gets one again."""
    lost, places = busiest(user, trio), shards_of(user)
    old, mine = identity_of(lost), held(lost)
    assert lost.process is not None
    lost.process.pause()
    frozen = SystemClock.now_seconds()
    wait_ordered(user, order_everywhere(user, NAMES, MOST))
    loss = loss_of(shard_writes(rig), places, mine, user, frozen)
    record_property("seconds", str(loss))
    count = order_everywhere(user, NAMES, MOST)
    woken = SystemClock.now_seconds()
    lost.process.resume()
    wait_ordered(user, count)
    if not lost.process.running:
        lost.start()  # it was ended with a write in its hands
    rig.wait_for(
        lambda: held_by_each(trio, SHARDS), what="even again", timeout_seconds=BALANCED_SECONDS
    )
    wait_ordered(user, order_everywhere(user, NAMES, MOST))
    seen = shard_writes(rig)
    assert loss.taken <= TAKEOVER_SECONDS
    assert loss.orphans <= loss.taken + loss.others + TICK_SLACK_SECONDS, loss
    assert shard_strays(seen, trio) == []
    between = [w for w in seen if w.identity == old and frozen + 0.5 < w.seconds < woken]
    assert between == []
