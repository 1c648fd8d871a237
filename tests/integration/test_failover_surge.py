"""Leaders killed, stopped and cut off at random moments of a surge.

SERVINGSLO_FAILOVERS says how many: 10 by default.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.failover import (
    TAKEOVER_SECONDS,
    Candidate,
    candidate,
    leads,
    started_behind_proxy,
    strays,
    writes,
)
from tests.integration.operator_under_test import (
    TICK_SECONDS,
    Engines,
    Tenant,
    install_chart,
    steady_trace,
)

from servingslo.adapters.clock import SystemClock
from servingslo_lab.rig.cluster import Rig

FAULTS = int(os.environ.get("SERVINGSLO_FAILOVERS", "10"))
SEED = 31
# One replica of these engines serves about six such requests per second.
SURGE_PER_SECOND, CALM_PER_SECOND = 15.0, 1.0
SURGE_SECONDS, PAUSE_SECONDS = 40.0, 40.0
# A new leader gives nothing away for two minutes: what it has seen itself is too little for that.
SETTLED_SECONDS = 240.0
# Writes of a tick come at once, on a machine that runs the whole rig beside.
SLACK_SECONDS = 5.0

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1800)]


@pytest.fixture
def pair(rig: Rig, engines: Engines) -> Iterator[list[Candidate]]:
    """Two operators of one release, each with a way of its own to the API server."""
    install_chart(rig)
    both = [started_behind_proxy(rig, candidate(rig)) for _ in range(2)]
    yield both
    for one in both:
        one.stop()


@pytest.fixture
def user(rig: Rig, namespace: str, engines: Engines, pair: list[Candidate]) -> Iterator[Tenant]:
    """A tenant of both."""
    tenant = Tenant(rig, namespace, engines)
    yield tenant
    tenant.end_traffic()


def leader_of(pair: list[Candidate]) -> Candidate | None:
    """Who says that it leads; None while nobody does."""
    return next((one for one in pair if one.alive() and leads(one.operator)), None)


def surge(user: Tenant, name: str, folder: Path, disturb: Callable[[], None]) -> int:
    """The count that a surge ends with, on a new workload; disturbed while it lasts."""
    user.create_deployment(name, replicas=1)
    user.create_slo(name, replicas={"min": 1, "max": 8})
    user.wait_condition("MetricsFresh", "True", name=name)
    calm = steady_trace(folder / f"{name}-calm.csv", rate=CALM_PER_SECOND, seconds=20)
    user.begin_traffic(calm, name=name)
    time.sleep(20.0)
    load = steady_trace(folder / f"{name}.csv", rate=SURGE_PER_SECOND, seconds=30)
    user.end_traffic()
    user.begin_traffic(load, name=name, duration_seconds=3600)
    disturb()
    time.sleep(SETTLED_SECONDS)
    counts = [user.replicas(name) for _ in range(10) if time.sleep(TICK_SECONDS) is None]
    user.end_traffic()
    return round(sum(counts) / len(counts))


def lose_a_leader(rig: Rig, pair: list[Candidate], fault: str) -> tuple[str, float]:
    """Let a leader be lost and come back as a standby; how long the other took to lead."""
    rig.wait_for(lambda: leader_of(pair) is not None, what="somebody leads")
    lost = leader_of(pair)
    assert lost is not None
    assert lost.operator.process is not None
    other = next(one for one in pair if one is not lost)
    begun = SystemClock.elapsed_seconds()
    if fault == "kill":
        lost.operator.process.stop(kill=True)
    elif fault == "stop":
        lost.operator.process.pause()
    else:
        lost.proxy.cut()
    rig.wait_for(lambda: leads(other.operator), what=f"a leader after {fault}", timeout_seconds=60)
    took = SystemClock.elapsed_seconds() - begun
    if fault != "kill":
        time.sleep(max(0.0, begun + PAUSE_SECONDS - SystemClock.elapsed_seconds()))
        lost.proxy.mend()
        lost.operator.process.resume()
    rig.wait_for(lambda: _stands_by(lost), what=f"a standby after {fault}", timeout_seconds=60)
    return fault, took


def test_whenever_a_leader_is_lost_one_writes_and_the_surge_ends_with_the_same_count(
    user: Tenant,
    rig: Rig,
    pair: list[Candidate],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """In the audit log each write is of who holds the Lease, and each takeover is in time."""
    chance = random.Random(SEED)  # noqa: S311  moments that can be had again
    takeovers: list[tuple[str, float]] = []

    def disturb() -> None:
        for _ in range(FAULTS):
            time.sleep(chance.uniform(0.0, SURGE_SECONDS / 4))
            takeovers.append(lose_a_leader(rig, pair, chance.choice(["kill", "stop", "cut"])))

    undisturbed = surge(user, "calm", tmp_path, lambda: time.sleep(SURGE_SECONDS))
    disturbed = surge(user, "chat", tmp_path, disturb)
    record_property("takeovers", takeovers)
    record_property("counts", (undisturbed, disturbed))
    assert strays(writes(rig), [one.operator for one in pair]) == []
    late = [it for it in takeovers if it[1] > TAKEOVER_SECONDS + SLACK_SECONDS]
    assert late == []
    assert disturbed == undisturbed


def _stands_by(lost: Candidate) -> bool:
    """Whether it is there as a standby; started again where its process ended."""
    if not lost.alive():
        lost.operator.start()
    return "standby of" in lost.operator.readiness()
