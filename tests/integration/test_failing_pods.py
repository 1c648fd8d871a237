"""Pods that crash or cannot pull their image are named in status, log and explanation."""

import pytest
from tests.integration.operator_under_test import Operator, Tenant

from servingslo.cli.decision_document import decision_of
from servingslo.explain.text import text
from servingslo_lab.rig.kubernetes.kwok import FAILURE_ANNOTATION

CRASH = "CrashLoopBackOff after exit code 1"


def _fail(tenant: Tenant, names: list[str], failure: str | None) -> None:
    """Let these pods fail from now on; None: let them serve again."""
    patch = {"metadata": {"annotations": {FAILURE_ANNOTATION: failure}}}
    for name in names:
        tenant.core.patch_namespaced_pod(name, tenant.namespace, patch)


def _pods(tenant: Tenant) -> list[str]:
    return sorted(p.metadata.name for p in tenant.core.list_namespaced_pod(tenant.namespace).items)


def test_pods_in_a_crash_loop_make_the_resource_not_ready_until_they_serve(
    tenant: Tenant, operator: Operator
) -> None:
    """One of four is named and Ready stays True; three of four are an outage with one cause."""
    tenant.create_deployment(replicas=4)
    tenant.create_slo(replicas={"min": 4, "max": 4})
    tenant.wait_condition("MetricsFresh", "True")
    pods = _pods(tenant)
    _fail(tenant, pods[:1], "crash-loop")
    tenant.wait(lambda: f"failing: {pods[0]} (" in tenant.message("Ready"), what="one pod is named")
    assert tenant.condition("Ready") == ("True", "Ready")
    assert tenant.status()["reason"] == "PodsFailing"
    _fail(tenant, pods[1:3], "crash-loop")
    tenant.wait_condition("Ready", "False", "PodsFailing")
    tenant.wait(lambda: "3 of 4 pods fail" in tenant.message("Ready"), what="all are counted")
    assert f"{pods[0]} ({CRASH})" in tenant.message("Ready")
    tenant.wait_line(operator, " decided ", "failing_pods=", CRASH)
    assert CRASH in tenant.wait_event("PodsFailing")
    told = text(decision_of(tenant.decision(), tenant.namespace, "chat"))
    assert f"Failing: {pods[0]}" in told
    _fail(tenant, pods[:3], None)
    tenant.wait_condition("Ready", "True", "Ready")


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        pytest.param("image-pull", "ImagePullBackOff of vllm/vllm-openai", id="image"),
        pytest.param("crash-loop", "CrashLoopBackOff", id="crash"),
    ],
)
def test_a_workload_that_never_starts_has_its_kubelets_reason(
    tenant: Tenant, failure: str, said: str
) -> None:
    """Not that no pod is ready, nor that metrics are missing: why."""
    tenant.deploy_failing(failure)
    tenant.create_slo()
    tenant.wait_condition("Ready", "False", "PodsFailing")
    assert said in tenant.message("Ready")
    assert tenant.status()["reason"] == "PodsFailing"
    statuses = {entry["type"]: entry for entry in tenant.status()["conditions"]}
    dependent = {type_: statuses[type_]["status"] for type_ in ("MetricsFresh", "ModelTrusted")}
    assert set(dependent.values()) == {"Unknown"}
    assert "labels of the scrape" not in str(statuses)
