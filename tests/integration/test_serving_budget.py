"""Two models under one budget, on a real API server: the surge of the one that comes first."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from tests.features.budgets.budget_world import LABELS
from tests.features.budgets.test_budget_crd import definition
from tests.integration.audit import timed_writes
from tests.integration.crd_server import CRDS, Server
from tests.integration.operator_under_test import Operator, Tenant, steady_trace

from servingslo.api.v1alpha1 import API_VERSION, GROUP, VERSION
from servingslo.features.budgets.kind import KIND, PLURAL
from servingslo_lab.rig.cluster import Rig

pytestmark = pytest.mark.slow("servingslo.features.budgets", "servingslo.controller.grants")

GPUS = 5
# One replica of these engines serves about six such requests per second.
BACKGROUND_PER_SECOND, SURGE_PER_SECOND = 26.0, 14.0


@contextmanager
def budget_of(rig: Rig, tenant: Tenant, gpus: int) -> Iterator[str]:
    """A budget of so many GPUs over the tenant's namespace."""
    api, name = kubernetes.client.CustomObjectsApi(rig.api_client()), f"of-{tenant.namespace}"
    labels = {"kubernetes.io/metadata.name": tenant.namespace}
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {"gpus": gpus, "namespaceSelector": {"matchLabels": labels}},
    }
    api.create_cluster_custom_object(GROUP, VERSION, PLURAL, body, field_validation="Strict")
    yield name
    api.delete_cluster_custom_object(GROUP, VERSION, PLURAL, name)


@pytest.fixture
def budget(rig: Rig, tenant: Tenant) -> Iterator[str]:
    """A budget over the tenant's namespace."""
    with budget_of(rig, tenant, GPUS) as name:
        yield name


def status_of(tenant: Tenant, name: str) -> dict[str, Any]:
    """The status of a budget; empty before it has one."""
    found = tenant.custom.get_cluster_custom_object(GROUP, VERSION, PLURAL, name)
    return dict(found.get("status") or {})


def counts_ordered(rig: Rig, namespace: str, start: dict[str, int]) -> list[dict[str, int]]:
    """Counts of the Deployments after each write of an operator, by the audit log."""
    found = [dict(start)]
    for _, write in timed_writes(rig.audit_log.read_text(encoding="utf-8").splitlines()):
        if write.namespace == namespace and write.knob == "replicas":
            name = write.target.partition("/")[2]
            found.append({**found[-1], name: dict(write.values)["replicas"]})
    return found


def test_a_surge_takes_what_a_lower_priority_has_above_its_minimum(
    rig: Rig, tenant: Tenant, operator: Operator, budget: str, tmp_path: Path
) -> None:
    """The donor steps down first, and GPUs in specs are never above the budget."""
    for name, priority in (("batch", 0), ("chat", 50)):
        tenant.create_deployment(name, replicas=1)
        tenant.create_slo(name, priority=priority, replicas={"min": 1, "max": 8})
    tenant.wait_condition("MetricsFresh", "True", name="batch")
    tenant.wait(lambda: status_of(tenant, budget).get("granted"), what="a status of the budget")

    background = steady_trace(tmp_path / "batch.csv", rate=BACKGROUND_PER_SECOND, seconds=30)
    tenant.begin_traffic(background, name="batch", duration_seconds=900)
    tenant.wait(
        lambda: tenant.replicas("batch") == GPUS - 1, what="batch has the rest", timeout_seconds=180
    )
    tenant.wait_condition("ScalingLimited", "True", "BudgetReached", name="batch")
    assert f"ServingBudget {budget} grants {GPUS - 1} of" in tenant.message(
        "ScalingLimited", "batch"
    )

    surge = steady_trace(tmp_path / "chat.csv", rate=SURGE_PER_SECOND, seconds=30)
    tenant.begin_traffic(surge, name="chat", duration_seconds=900)
    tenant.wait(
        lambda: tenant.replicas("chat") >= 3 and tenant.replicas("batch") <= 2,
        what="chat has GPUs of batch",
        timeout_seconds=240,
    )
    tenant.wait(lambda: status_of(tenant, budget).get("short", 0) > 0, what="a short budget")
    status = status_of(tenant, budget)
    assert status["granted"] <= GPUS
    (short,) = [one for one in status["claimants"] if one["name"] == "batch"]
    assert short["short"] > 0
    assert {one["name"]: one["priority"] for one in status["claimants"]} == {"chat": 10, "batch": 0}
    tenant.wait(
        lambda: bool(operator.log_lines("shared budget", budget, "reason=BudgetShort")),
        what="a line about the budget",
    )
    sample = f'servingslo_budget_gpus{{budget="{budget}"}} {GPUS:.1f}'
    tenant.wait(lambda: sample in operator.metrics(), what=sample)

    ordered = counts_ordered(rig, tenant.namespace, {"batch": 1, "chat": 1})
    assert max(counts["chat"] for counts in ordered) >= 3
    assert max(sum(counts.values()) for counts in ordered) <= GPUS


@pytest.fixture(scope="module")
def budgets(rig: Rig) -> Iterator[tuple[Server, str]]:
    """An API server that serves the budgets' CRD, and their path."""
    server, crd = Server(rig), definition()
    path = f"{CRDS}/{crd['metadata']['name']}"
    found = server.call("GET", path).ok
    if not found:
        created = server.call("POST", CRDS, json=crd)
        assert created.ok, created.text
    items = f"/apis/{API_VERSION}/{PLURAL}"
    rig.wait_for(lambda: server.call("GET", items).ok, what="budgets are served")
    yield server, items
    if not found:
        server.call("DELETE", path)


@pytest.mark.parametrize(("key", "possible"), LABELS.items())
def test_the_api_server_refuses_a_label_that_no_object_can_have(
    budgets: tuple[Server, str], key: str, *, possible: bool
) -> None:
    """Wherever a budget's selector states it, and exactly those that the operator refuses."""
    server, items = budgets
    for selector in (
        {"matchLabels": {key: "a"}},
        {"matchExpressions": [{"key": key, "operator": "Exists"}]},
    ):
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"generateName": "labels-"},
            "spec": {"gpus": 8, "selector": selector},
        }
        answer = server.call("POST", f"{items}?dryRun=All&fieldValidation=Strict", json=body)
        assert answer.ok is possible, answer.text
        if not possible:
            assert "the name of a label" in answer.json()["message"]
            assert "rule evaluation error" not in answer.text
