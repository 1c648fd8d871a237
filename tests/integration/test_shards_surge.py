"""Shards through a surge: their processes killed, frozen and cut off, and rolled to another number.

SERVINGSLO_FAILOVERS says how many are lost: 10 by default.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.failover import TAKEOVER_SECONDS, Candidate, started_behind_proxy
from tests.integration.operator_under_test import (
    Engines,
    Tenant,
    install_chart,
    steady_trace,
)
from tests.integration.shards import (
    Loss,
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

FAULTS = int(os.environ.get("SERVINGSLO_FAILOVERS", "10"))
SEED = 47
SHARDS, MORE_SHARDS = 3, 4
NAMES = tuple(f"chat-{number}" for number in range(9))
MOST = 30
# One replica of these engines serves about six such requests per second.
SURGE_PER_SECOND = 8.0
CUT_SECONDS, BALANCED_SECONDS = 25.0, 90.0
# On a machine that runs the whole rig next to four operators.
SLACK_SECONDS = 5.0

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(2400)]


def started(rig: Rig, shards: int) -> Candidate:
    """One more operator, which knows of so many shards."""
    operator = sharded(rig, shards, "--tick-seconds=2", "--prometheus-timeout-seconds=5")
    return started_behind_proxy(rig, operator)


@pytest.fixture
def every(rig: Rig, engines: Engines) -> Iterator[list[Candidate]]:
    """One for each shard and one that stands by; tests add others."""
    install_chart(rig)
    found = [started(rig, SHARDS) for _ in range(SHARDS + 1)]
    yield found
    for one in found:
        one.stop()


@pytest.fixture
def user(rig: Rig, engines: Engines, every: list[Candidate], tmp_path: Path) -> Iterator[Tenant]:
    """A tenant whose workloads all have a surge."""
    tenant = Tenant(rig, rig.create_namespace(STATUSES_AUDITED), engines)
    trace = steady_trace(tmp_path / "surge.csv", rate=SURGE_PER_SECOND, seconds=30)
    for name in NAMES:
        tenant.create_deployment(name, replicas=1)
        tenant.create_slo(name, replicas={"min": 1, "max": MOST})
        tenant.begin_traffic(trace, name=name, duration_seconds=3600)
    tenant.wait(lambda: is_placed(tenant, SHARDS), what="each resource on its shard")
    yield tenant
    tenant.end_traffic()
    rig.delete_namespace(tenant.namespace)


def wait_ordered(user: Tenant, count: int) -> None:
    """Wait until each Deployment has so many, or more by the surge."""
    user.wait(
        lambda: all(user.replicas(name) >= count for name in NAMES),
        what=f"{count} replicas everywhere",
        timeout_seconds=240,
    )


def lose(rig: Rig, user: Tenant, lost: Candidate, fault: str) -> Loss:
    """Let a process with shards be lost, and come back; what followed."""
    process, mine, places = lost.operator.process, held(lost.operator), shards_of(user)
    assert process is not None
    if fault == "kill":
        lost.operator.kill()
    elif fault == "stop":
        process.pause()
    else:
        lost.proxy.cut()
    at = SystemClock.now_seconds()
    wait_ordered(user, order_everywhere(user, NAMES, MOST))
    loss = loss_of(shard_writes(rig), places, mine, user, at)
    if fault != "kill":
        time.sleep(max(0.0, at + CUT_SECONDS - SystemClock.now_seconds()))
        lost.proxy.mend()
        process.resume()
        time.sleep(2.0)
    if not process.running:
        lost.operator.start()
    return loss


def test_whichever_process_is_lost_each_resource_is_decided_by_one_and_soon(
    rig: Rig,
    user: Tenant,
    every: list[Candidate],
    record_property: Callable[[str, object], None],
) -> None:
    """By the audit log; also while pods of three shards are replaced by pods of four, and back."""
    chance = random.Random(SEED)  # noqa: S311  moments that can be had again
    operators = [one.operator for one in every]
    lost = []
    for _ in range(FAULTS):
        rig.wait_for(
            lambda: set().union(*map(held, operators)) == set(range(SHARDS)),
            what="every shard is held",
            timeout_seconds=BALANCED_SECONDS,
        )
        time.sleep(chance.uniform(0.0, 5.0))
        one = chance.choice([one for one in every if held(one.operator)])
        fault = chance.choice(["kill", "stop", "cut"])
        lost.append((fault, lose(rig, user, one, fault)))
    record_property("lost", str(lost))

    rolled = list(every)
    for shards in (MORE_SHARDS, SHARDS):
        begun = SystemClock.now_seconds()
        present, rolled = rolled, []
        for old in present:
            rolled.append(started(rig, shards))
            every.append(rolled[-1])
            old.operator.stop()
        wait_ordered(user, order_everywhere(user, NAMES, MOST))
        now = [one.operator for one in rolled]
        rig.wait_for(
            lambda now=now, shards=shards: held_by_each(now, shards),
            what=f"{shards} shards are held",
            timeout_seconds=BALANCED_SECONDS,
        )
        user.wait(
            lambda shards=shards: is_placed(user, shards),
            what=f"each of {shards} shards has its own",
        )
        record_property(f"rolled_to_{shards}", SystemClock.now_seconds() - begun)
    operators = [one.operator for one in every]
    assert shard_strays(shard_writes(rig), operators) == []
    late = [
        (fault, loss)
        for fault, loss in lost
        if loss.taken > TAKEOVER_SECONDS + SLACK_SECONDS
        or loss.orphans > loss.taken + loss.others + SLACK_SECONDS
    ]
    assert late == []
    assert all(user.status(name).get("learned") for name in NAMES)
    assert [line for one in operators for line in one.log_lines("LearnedDropped")] == []
