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
from servingslo_lab.rig.cluster import Rig

pytestmark = pytest.mark.slow("servingslo.controller.lease")

now_seconds = SystemClock.now_seconds
PAUSE_SECONDS = 40.0


@pytest.fixture(scope="module")
def candidates(rig: Rig, audited: None, engines: Engines) -> Iterator[tuple[Operator, Operator]]:
    """Two operators of one release, not started."""
    install_chart(rig)
    both = candidate(rig), candidate(rig)
    yield both
    for one in both:
        one.stop()


@pytest.fixture
def pair(rig: Rig, candidates: tuple[Operator, Operator]) -> tuple[Operator, Operator]:
    """The one that leads and the one that stands by, started where a test before ended them."""
    for one in candidates:
        if one.process is None or not one.process.running:
            one.start()
    rig.wait_for(lambda: any(map(leads, candidates)), what="somebody leads")
    first, second = candidates
    return (first, second) if leads(first) else (second, first)


def knows_that_it_lost(operator: Operator, identity: str) -> bool:
    """Whether it has looked at the Lease since, or was ended with a write in its hands."""
    assert operator.process is not None
    told = operator.log_lines("lease ") + operator.log_lines("standing by")
    lost = any(f"identity={identity}" in line for line in told if "lease held" not in line)
    return not operator.process.running or lost


def scale(tenant: Tenant, replicas: int) -> None:
    """Ask for another least count, and wait until it is written, and told."""
    tenant.patch_slo({"replicas": {"min": replicas, "max": 8}})
    tenant.wait(lambda: tenant.replicas() == replicas, what=f"{replicas} replicas")
    tenant.wait(
        lambda: any(f"->{replicas}:" in message for _, message in tenant.events()),
        what=f"an event of {replicas} replicas",
    )


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
    assert "servingslo_desired_replicas" in first.metrics()
    assert "servingslo_desired_replicas{" not in second.metrics()
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
    rig.wait_for(lambda: knows_that_it_lost(first, old), what="the one that woke knows")
    scale(user, 5)
    seen = writes(rig)
    begun = min(w.seconds for w in seen if w.identity == new and w.seconds > stopped)
    assert [write for write in seen if write.identity == old and write.seconds > begun] == []
    assert strays(seen, pair) == []
    assert leads(second)
