"""A new actuator is one file and one row: what it wants is written, told and taken back."""

import sys
from collections.abc import Iterator

import pytest
from tests.integration.operator_under_test import (
    PATIENCE_SECONDS,
    Engines,
    Tenant,
    install_chart,
)
from tests.integration.toy_actuator import KEY, LABEL, OWNER

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.processes import ManagedProcess
from servingslo_lab.rig.waiting import free_port, http_get


@pytest.fixture
def acting(rig: Rig, namespace: str, engines: Engines) -> Iterator[tuple[Tenant, ManagedProcess]]:
    """A tenant of an operator with the toy in its tuple, which acts as an administrator."""
    install_chart(rig)
    port = free_port()
    module = "tests.integration.toy_operator"
    process = rig.run_process(
        "toy-operator",
        [sys.executable, "-m", module, rig.prometheus_url, namespace, str(port)],
        environment={"KUBECONFIG": str(rig.admin_kubeconfig)},
    )
    process.wait_for(
        lambda: http_get(f"http://127.0.0.1:{port}/readyz") is not None,
        what="/readyz answers",
        timeout_seconds=PATIENCE_SECONDS,
    )
    yield Tenant(rig, namespace, engines), process
    process.stop()


def test_what_an_actuator_wants_is_written_told_and_taken_back(
    acting: tuple[Tenant, ManagedProcess],
) -> None:
    """The toy follows the count beside the built-in actuators; gone with its ServingSLO."""
    tenant, process = acting

    def number() -> str | None:
        found = tenant.core.read_namespaced_config_map("chat", tenant.namespace)
        return (found.data or {}).get(KEY)

    tenant.core.create_namespaced_config_map(
        tenant.namespace, {"metadata": {"name": "chat", "labels": {LABEL: "yes"}}}
    )
    tenant.create_deployment(replicas=1)
    tenant.create_slo(replicas={"min": 2, "max": 4})
    tenant.wait(lambda: number() == "2", what="the toy's number is the count")
    tenant.wait(lambda: tenant.replicas() == 2, what="the count itself")
    lines = process.log_path.read_text(encoding="utf-8").splitlines()
    changes = [line for line in lines if "changed namespace=" in line]
    assert any(" knob=toy " in line and "->2 outcome=written" in line for line in changes)
    assert any(" knob=replicas replicas=1->2 " in line for line in changes)
    tenant.delete_slo()
    tenant.wait(lambda: number() is None, what="the toy's number is taken back")
    found = tenant.core.read_namespaced_config_map("chat", tenant.namespace)
    assert OWNER not in (found.metadata.annotations or {})


def test_an_actuator_that_may_not_change_leaves_what_it_finds(
    acting: tuple[Tenant, ManagedProcess],
) -> None:
    """A ConfigMap without the label is left alone, and the count is written all the same."""
    tenant, _ = acting
    tenant.core.create_namespaced_config_map(tenant.namespace, {"metadata": {"name": "chat"}})
    tenant.create_deployment(replicas=1)
    tenant.create_slo(replicas={"min": 2, "max": 4})
    tenant.wait(lambda: tenant.replicas() == 2, what="the count")
    tenant.wait_reconciled()
    found = tenant.core.read_namespaced_config_map("chat", tenant.namespace)
    assert not found.data
