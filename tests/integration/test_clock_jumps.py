"""Two operators of one release, and a wall clock that jumps under the one that leads."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.failover import candidate, leads, strays, writes
from tests.integration.operator_under_test import (
    Engines,
    Operator,
    Tenant,
    install_chart,
    ticks_pass,
)

from servingslo_lab.rig.cluster import Rig

pytestmark = pytest.mark.slow("servingslo.controller.lease", "servingslo.adapters.clock")

HOUR_SECONDS = 3600.0
JUMPING = "tests.integration.jumping_operator"


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Path]:
    """By how many seconds the leader's wall clock is ahead; for its process alone."""
    file = tmp_path / "ahead"
    file.write_text("0", encoding="utf-8")
    os.environ["SERVINGSLO_TEST_CLOCK"] = str(file)
    yield file
    del os.environ["SERVINGSLO_TEST_CLOCK"]


@pytest.fixture
def pair(
    rig: Rig, audited: None, engines: Engines, clock: Path
) -> Iterator[tuple[Operator, Operator]]:
    """The leader, whose clock jumps, and a standby."""
    install_chart(rig)
    first, second = candidate(rig, program=JUMPING), candidate(rig)
    first.start()
    rig.wait_for(lambda: leads(first), what="the first leads")
    second.start()
    yield first, second
    for one in (first, second):
        one.stop()


@pytest.mark.parametrize("hours", [1.0, -1.0], ids=["ahead", "back"])
def test_a_leader_whose_clock_jumps_writes_on_or_hands_over(
    rig: Rig,
    pair: tuple[Operator, Operator],
    namespace: str,
    engines: Engines,
    clock: Path,
    hours: float,
) -> None:
    """Orders go on, and each write in the audit log is of who held the Lease then."""
    user = Tenant(rig, namespace, engines)
    user.create_deployment(replicas=1)
    user.create_slo(replicas={"min": 1, "max": 8})
    user.wait_reconciled()
    clock.write_text(str(hours * HOUR_SECONDS), encoding="utf-8")
    for replicas in (2, 3):
        user.patch_slo({"replicas": {"min": replicas, "max": 8}})
        user.wait(lambda count=replicas: user.replicas() == count, what=f"{replicas} replicas")
    leader = next(one for one in pair if leads(one))
    ticks_pass(leader, 20)
    clock.write_text("0", encoding="utf-8")
    user.patch_slo({"replicas": {"min": 4, "max": 8}})
    user.wait(lambda: user.replicas() == 4, what="an order after it was put right")
    assert [leads(one) for one in pair].count(True) == 1
    assert strays(writes(rig), pair) == []
