"""Two operators of one release on a real API server: one leads, the other takes over."""

import time
from collections.abc import Callable, Iterator

import pytest
from tests.integration.failover import (
    TAKEOVER_SECONDS,
    candidate,
    identity_of,
    leads,
    strays,
    writes,
)
from tests.integration.operator_under_test import (
    PATIENCE_SECONDS,
    Engines,
    Operator,
    Tenant,
    install_chart,
)

from servingslo.adapters.clock import SystemClock
from servingslo.rig.cluster import Rig

now_seconds = SystemClock.now_seconds
PAUSE_SECONDS = 40.0
# Three, and what a busy machine takes to end a process.
HANDOVER_SECONDS = 5.0


@pytest.fixture
def pair(rig: Rig, audited: None, engines: Engines) -> Iterator[tuple[Operator, Operator]]:
    """Two operators of one release; the first of them leads."""
    install_chart(rig)
    first, second = candidate(rig), candidate(rig)
    first.start()
    rig.wait_for(lambda: leads(first), what="the first one leads")
    second.start()
    yield first, second
    first.stop()
    second.stop()


def knows_that_it_lost(operator: Operator) -> bool:
    """Whether it has looked at the Lease since, or was ended with a write in its hands."""
    assert operator.process is not None
    return not operator.process.running or bool(operator.log_lines("lease lost identity="))


def scale(tenant: Tenant, replicas: int) -> None:
    """Ask for another least count, and wait until it is written."""
    tenant.patch_slo({"replicas": {"min": replicas, "max": 8}})
    tenant.wait(lambda: tenant.replicas() == replicas, what=f"{replicas} replicas")


@pytest.fixture
def user(rig: Rig, namespace: str, engines: Engines, pair: tuple[Operator, Operator]) -> Tenant:
    """A tenant with a workload that the leader has decided for."""
    tenant = Tenant(rig, namespace, engines)
    tenant.create_deployment(replicas=1)
    tenant.create_slo(replicas={"min": 1, "max": 8})
    tenant.wait_reconciled()
    return tenant


def test_the_other_takes_over_from_a_leader_that_is_killed(
    rig: Rig,
    pair: tuple[Operator, Operator],
    user: Tenant,
    record_property: Callable[[str, object], None],
) -> None:
    """It leads within 15 s and then decides; only the leader shows what it decides."""
    first, second = pair
    assert not leads(second)
    assert "servingslo_replicas_desired" in first.metrics()
    assert "servingslo_replicas_desired{" not in second.metrics()
    scale(user, 2)
    killed = now_seconds()
    assert first.process is not None
    first.process.stop(kill=True)
    user.patch_slo({"replicas": {"min": 3, "max": 8}})
    rig.wait_for(lambda: leads(second), what="the other leads", timeout_seconds=PATIENCE_SECONDS)
    held = now_seconds() - killed
    user.wait(lambda: user.replicas() == 3, what="its first order")
    decided = now_seconds() - killed
    record_property("lease_seconds", held)
    record_property("first_order_seconds", decided)
    assert held <= TAKEOVER_SECONDS
    after = [write for write in writes(rig) if write.seconds > killed + 1.0]
    assert {write.identity for write in after} == {identity_of(second)}


def test_a_leader_that_was_stopped_writes_nothing_when_it_wakes(
    rig: Rig,
    pair: tuple[Operator, Operator],
    user: Tenant,
    record_property: Callable[[str, object], None],
) -> None:
    """Stopped for 40 s in the middle of its work; the other has led since, and goes on alone."""
    first, second = pair
    old, new = identity_of(first), identity_of(second)
    assert first.process is not None
    first.process.pause()
    stopped = now_seconds()
    user.patch_slo({"replicas": {"min": 2, "max": 8}})
    user.wait(lambda: user.replicas() == 2, what="the other's order")
    record_property("first_order_seconds", now_seconds() - stopped)
    user.patch_slo({"replicas": {"min": 3, "max": 8}})
    time.sleep(max(0.0, stopped + PAUSE_SECONDS - now_seconds()))
    user.patch_slo({"replicas": {"min": 4, "max": 8}})
    first.process.resume()
    user.wait(lambda: user.replicas() == 4, what="an order after the other woke")
    rig.wait_for(lambda: knows_that_it_lost(first), what="the one that woke knows")
    scale(user, 5)
    seen = writes(rig)
    begun = min(write.seconds for write in seen if write.identity == new)
    assert [write for write in seen if write.identity == old and write.seconds > begun] == []
    assert strays(seen) == []
    assert leads(second)


def test_an_orderly_end_hands_over_at_once(
    rig: Rig,
    pair: tuple[Operator, Operator],
    user: Tenant,
    record_property: Callable[[str, object], None],
) -> None:
    """A leader that is told to end gives the Lease back: a rolling upgrade has no gap."""
    first, second = pair
    begun = now_seconds()
    first.stop()
    rig.wait_for(lambda: leads(second), what="the other leads", timeout_seconds=PATIENCE_SECONDS)
    held = now_seconds() - begun
    record_property("lease_seconds", held)
    assert held <= HANDOVER_SECONDS
    scale(user, 2)
