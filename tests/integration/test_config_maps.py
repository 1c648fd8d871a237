"""Limits in ConfigMaps: read with the permission of the chart, named without it."""

from collections.abc import Iterator

import pytest
from tests.integration.operator_under_test import Operator, Tenant, install_chart, ticks_pass

from servingslo_lab.rig.cluster import Rig

ALLOWED = "configMaps.read.enabled=true"
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """The administrator lets the operator read ConfigMaps."""
    return (ALLOWED,)


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """As the chart passes it on."""
    return ("--read-config-maps=true",)


@pytest.fixture
def forbidden(rig: Rig, operator: Operator) -> Iterator[None]:
    """The chart's permissions without ConfigMaps, though the operator was told to read them."""
    install_chart(rig)
    yield
    install_chart(rig, ALLOWED)


def _start(tenant: Tenant, text: str) -> None:
    """Engines whose sequences are in the file of --config, and their token budget in a variable."""
    for name, data in (("run", {"run.yaml": text}), ("tokens", {"budget": "4k"})):
        tenant.core.create_namespaced_config_map(
            tenant.namespace, {"metadata": {"name": name}, "data": data}
        )
    variable = {
        "name": "BUDGET",
        "valueFrom": {"configMapKeyRef": {"name": "tokens", "key": "budget"}},
    }
    tenant.create_deployment(
        replicas=1,
        args=["--config", "/etc/vllm/run.yaml", "--max-num-batched-tokens=$(BUDGET)"],
        only_these=True,
        pod={"volumes": [{"name": "run", "configMap": {"name": "run"}}]},
        container={
            "env": [variable],
            "volumeMounts": [{"name": "run", "mountPath": "/etc/vllm"}],
        },
    )
    tenant.create_slo()


def _limit(tenant: Tenant, name: str) -> int | None:
    """A limit in force, by the status."""
    current = tenant.status().get("batching", {}).get("current", {})
    found: int | None = current.get(name)
    return found


def _sources(operator: Operator, tenant: Tenant) -> str:
    """Where the limits are known from, by the last line that says so."""
    tenant.wait_line(operator, " decided ", " limits=")
    line = operator.log_lines(" decided ", f"namespace={tenant.namespace} ", " limits=")[-1]
    return line.split(" limits=")[1].split()[0]


def _wait_told(tenant: Tenant, words: str) -> None:
    tenant.wait(
        lambda: words in tenant.message("Ready"),
        what=f"{words!r} in the message of Ready",
        timeout_seconds=PATIENCE_SECONDS,
    )


def test_limits_are_those_of_the_config_maps(tenant: Tenant, operator: Operator) -> None:
    """With the permission the file and the variable are the limits in force, from `args`."""
    _start(tenant, "max-num-seqs: 48\n")
    tenant.wait(
        lambda: _limit(tenant, "maxNumSeqs") == 48,
        what="the file's limit",
        timeout_seconds=PATIENCE_SECONDS,
    )
    assert _sources(operator, tenant) == "args"
    assert _limit(tenant, "maxNumBatchedTokens") == 4000
    assert "not read" not in tenant.message("Ready")


def test_a_bad_file_is_named_and_loses_nothing_else(tenant: Tenant, operator: Operator) -> None:
    """Key, ConfigMap and line are told, the file's words are not; the variable still counts."""
    _start(tenant, "model: tiny\nmax-num-seqs: [48\n")
    _wait_told(tenant, "key run.yaml of ConfigMap run is no YAML at line 3")
    tenant.wait_condition("Ready", "True")
    assert _limit(tenant, "maxNumBatchedTokens") == 4000
    assert _sources(operator, tenant) == "default,args"
    tenant.wait_line(operator, " decided ", "limits_unread=")


def test_without_the_permission_it_is_named(
    tenant: Tenant, operator: Operator, forbidden: None
) -> None:
    """What the API server refuses is told once, and the workload is decided for with defaults."""
    _start(tenant, "max-num-seqs: 48\n")
    _wait_told(tenant, "ConfigMap run: GET")
    tenant.wait_message("Ready", "403")
    assert _sources(operator, tenant).startswith("default")
    ticks_pass(operator)
    lines = operator.log_lines("limits_unread=", f"namespace={tenant.namespace} ")
    assert 1 <= len(lines) <= 3
