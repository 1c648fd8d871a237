"""Simulated engines on a real control plane: asleep, woken by a surge, and awake in the end."""

import time
from pathlib import Path

import pytest
from tests.integration.manifests import workload
from tests.integration.operator_under_test import Operator, Tenant, steady_trace

LABEL = "servingslo.dev/serving"
# What is seen for the first time is watched for two minutes before anything goes.
PATIENCE_SECONDS = 420.0


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """With the right to patch pods."""
    return ("warm.enabled=true", "warm.ranges={127.0.0.0/8}")


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """The administrator opens the way to pods of the rig."""
    return ("--warm-replicas", "--warm-range=127.0.0.0/8")


def labels(tenant: Tenant) -> list[str]:
    """The label of each pod that is there."""
    found = tenant.core.list_namespaced_pod(tenant.namespace, label_selector="app=chat").items
    return sorted(p.metadata.labels[LABEL] for p in found if not p.metadata.deletion_timestamp)


def asleep(tenant: Tenant) -> int:
    """How many sleep by the status."""
    return int(tenant.status().get("warm", {}).get("asleep", 0))


@pytest.mark.rig
@pytest.mark.slow("servingslo.features.warm_replicas", "servingslo_lab.rig.simulated")
@pytest.mark.timeout(1200)
def test_sleepers_are_woken_by_a_surge_and_when_the_resource_goes(
    operator: Operator, tenant: Tenant, tmp_path: Path
) -> None:
    """No request is lost on the way to sleep; the surge is served before a pod could start."""
    manifest = workload("chat", replicas=3, ready_delay="60s")
    manifest["spec"]["template"]["metadata"]["labels"][LABEL] = "true"
    tenant.apps.create_namespaced_deployment(tenant.namespace, manifest)
    tenant.wait(lambda: tenant.ready_replicas() == 3, what="it is ready", timeout_seconds=120)
    selected = {"app": "chat", LABEL: "true"}
    few = steady_trace(tmp_path / "few.csv", rate=1.0, seconds=60.0)
    tenant.begin_traffic(few, selector=selected, duration_seconds=1200.0)
    tenant.create_slo(
        replicas={"min": 1, "max": 3, "warm": {"min": 2, "max": 2, "cost": "10%"}}, coldStart="60s"
    )
    tenant.wait(lambda: asleep(tenant) == 2, what="two sleep", timeout_seconds=PATIENCE_SECONDS)
    assert labels(tenant) == ["false", "false", "true"]
    tenant.wait_line(operator, "changed", "knob=warm-replicas", "reason=EnginesPutToSleep")
    assert tenant.served()["outcomes"]["failed"] == 0

    many = steady_trace(tmp_path / "many.csv", rate=40.0, seconds=60.0)
    tenant.end_traffic()
    tenant.begin_traffic(many, selector=selected, duration_seconds=600.0)
    began = time.monotonic()
    tenant.wait(lambda: labels(tenant).count("true") >= 3, what="woken", timeout_seconds=60)
    assert time.monotonic() - began < 60.0

    tenant.end_traffic()
    tenant.begin_traffic(few, selector=selected, duration_seconds=1200.0)
    tenant.wait(lambda: asleep(tenant) == 2, what="asleep again", timeout_seconds=PATIENCE_SECONDS)
    tenant.delete_slo()
    tenant.wait(lambda: set(labels(tenant)) == {"true"}, what="all are awake", timeout_seconds=60)
