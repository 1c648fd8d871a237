"""Pods of a Deployment with a LocalQueue, with Kueue's own controller and webhooks."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.integration.kueue_processes import (
    QUEUE_LABEL,
    create_queue,
    let_operator_read,
    pending,
    run_kueue,
    set_quota,
)
from tests.integration.manifests import workload
from tests.integration.operator_under_test import ROOT, Tenant, steady_trace

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.versions import KUEUE

QUOTA, ENOUGH = 3, 10
# One replica of these engines serves about six such requests per second.
SURGE_PER_SECOND = 26.0
PATIENCE_SECONDS = 240.0
# Dozens of ticks.
SETTLED_SECONDS = 40.0
PAGE = ROOT / "docs" / "how-to" / "beside-others.md"

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1200)]
RIG_TOOLS = (KUEUE,)


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """One of its own: Kueue's webhooks see every pod."""
    with Rig.start() as running:
        running.add_nodes(2)
        yield running


@pytest.fixture(scope="module")
def kueue(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its CRDs, its webhooks and its controller, and the right to read its Workloads."""
    run_kueue(rig, tmp_path_factory.mktemp("kueue"))
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    let_operator_read(rig, next(yaml.safe_load(one) for one in blocks if "servingslo-kueue" in one))


def counts_while(tenant: Tenant, seconds: float) -> set[int]:
    """Which counts the Deployment was asked for meanwhile."""
    end, seen = time.monotonic() + seconds, set()
    while time.monotonic() < end:
        seen.add(tenant.replicas())
        time.sleep(0.2)
    return seen


def test_what_waits_for_quota_is_queued_and_served_when_it_comes(
    kueue: None, rig: Rig, tenant: Tenant, tmp_path: Path
) -> None:
    """`Queued` in its words, nothing ordered beyond the pods that wait, served with quota."""
    create_queue(rig, tenant.namespace, QUOTA)
    manifest = workload("chat", replicas=1)
    manifest["metadata"]["labels"] = {QUEUE_LABEL: "chat"}
    tenant.apps.create_namespaced_deployment(tenant.namespace, manifest)
    tenant.wait(
        lambda: tenant.ready_replicas() == 1,
        what="the first pod is admitted",
        timeout_seconds=PATIENCE_SECONDS,
    )
    tenant.create_slo(replicas={"min": 1, "max": 8})
    tenant.wait_condition("MetricsFresh", "True")

    surge = steady_trace(tmp_path / "surge.csv", rate=SURGE_PER_SECOND, seconds=30)
    tenant.begin_traffic(surge, duration_seconds=1500)
    tenant.wait(
        lambda: tenant.condition("ScalingLimited")[1] == "Queued",
        what="Queued",
        timeout_seconds=PATIENCE_SECONDS,
    )
    tenant.wait_message("ScalingLimited", "queue chat: couldn't assign flavors")
    assert "insufficient" in tenant.message("ScalingLimited")
    tenant.wait(lambda: tenant.ready_replicas() == QUOTA, what="what has quota serves")
    ordered = tenant.replicas()
    assert ordered > QUOTA
    # The status of a queue follows its workloads.
    tenant.wait(
        lambda: pending(rig, tenant.namespace) == ordered - QUOTA,
        what="the queue counts what waits",
    )
    assert counts_while(tenant, SETTLED_SECONDS) == {ordered}

    set_quota(rig, tenant.namespace, ENOUGH)
    tenant.wait(
        lambda: tenant.ready_replicas() >= ordered,
        what="the pods that waited serve",
        timeout_seconds=PATIENCE_SECONDS,
    )
    tenant.wait(lambda: pending(rig, tenant.namespace) == 0, what="the queue is empty")
    tenant.wait(lambda: tenant.condition("ScalingLimited")[1] != "Queued", what="no queue any more")
    tenant.wait(
        lambda: tenant.condition("SLOMet")[0] == "True",
        what="the surge is served",
        timeout_seconds=PATIENCE_SECONDS,
    )
