"""A ServingSLO from its creation to its deletion, on a real API server."""

import pytest
from tests.integration.operator_under_test import Operator, Tenant, ticks_pass


def test_a_new_resource_gets_a_status(tenant: Tenant) -> None:
    """Soon after its creation the resource says what was seen and decided."""
    tenant.create_deployment(replicas=2)
    tenant.create_slo()
    tenant.wait_reconciled()
    tenant.wait_condition("Ready", "True")
    tenant.wait_condition("MetricsFresh", "True")
    limits = {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048}
    tenant.wait(
        lambda: tenant.status().get("batching", {}).get("current") == limits,
        what="limits in force in status",
    )
    status = tenant.status()
    assert status["replicas"]["current"] == 2
    assert status["replicas"]["ready"] == 2
    assert tenant.decision()["action"] == "hold"


def test_deletion_leaves_the_workload_alone(tenant: Tenant, operator: Operator) -> None:
    """A deleted resource is gone at once, scales nothing more and is exported no more."""
    tenant.create_deployment(replicas=2)
    tenant.create_slo()
    tenant.wait_reconciled()
    assert not tenant.slo()["metadata"].get("finalizers")
    assert not tenant.slo()["metadata"].get("annotations")
    tenant.delete_slo()
    tenant.wait(lambda: not tenant.slo_exists(), what="the resource is gone", timeout_seconds=5)
    tenant.scale(0)
    tenant.scale(2)
    ticks_pass(operator)
    assert tenant.replicas() == 2
    tenant.wait(lambda: tenant.namespace not in operator.metrics(), what="its metrics are gone")


@pytest.mark.usefixtures("lenient_crd")
def test_a_spec_that_only_the_operator_can_refuse_says_why(tenant: Tenant) -> None:
    """What slips through an old CRD is refused with path, value and range, until it is repaired."""
    tenant.create_deployment()
    tenant.create_slo(objectives=[{"metric": "ttft", "percentile": 95, "threshold": "0.0001ms"}])
    tenant.wait_condition("Ready", "False", "InvalidSpec")
    message = tenant.message("Ready")
    assert "spec.objectives[0].threshold" in message
    assert "0.0001ms" in message
    assert "allowed" in message
    assert tenant.wait_event("InvalidSpec") == message
    tenant.patch_slo({"objectives": [{"metric": "ttft", "percentile": 95, "threshold": "1s"}]})
    tenant.wait_condition("Ready", "True", "Ready")


def test_a_missing_target_is_named_and_found_later(tenant: Tenant) -> None:
    """Ready says that the target is missing, and turns True when it is created."""
    tenant.create_slo()
    tenant.wait_condition("Ready", "False", "TargetNotFound")
    missing = f"Deployment/chat not found in namespace {tenant.namespace}"
    tenant.wait(lambda: tenant.message("Ready") == missing, what=missing)
    tenant.create_deployment()
    tenant.wait_condition("Ready", "True")


def _allow_pods(tenant: Tenant, count: int) -> None:
    """A quota of pods in the namespace, in force once those that are there are counted.

    Pods made while a quota is new can be left out of its count for minutes.
    """
    core, namespace = tenant.core, tenant.namespace
    manifest = {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": str(count)}}}
    core.create_namespaced_resource_quota(namespace, manifest)

    def counted() -> bool:
        found = core.read_namespaced_resource_quota("pods", namespace).status
        there = core.list_namespaced_pod(namespace).items
        return (found.used or {}).get("pods") == str(len(there))

    tenant.wait(counted, what="the quota counts the pods that are there")


def test_a_quota_of_the_namespace_is_told_in_its_own_words(tenant: Tenant) -> None:
    """Pods that are never made limit scaling by name, until the quota is gone."""
    core = tenant.core
    tenant.create_deployment(replicas=1)
    _allow_pods(tenant, 1)
    tenant.create_slo()
    tenant.wait_condition("MetricsFresh", "True")
    tenant.patch_slo({"replicas": {"min": 2, "max": 4}})
    tenant.wait_condition("ScalingLimited", "True", "QuotaReached")
    tenant.wait_message("ScalingLimited", "exceeded quota: pods")
    assert "exceeded quota: pods" in tenant.wait_event("QuotaReached")
    core.delete_namespaced_resource_quota("pods", tenant.namespace)
    tenant.wait(lambda: tenant.ready_replicas() == 2, what="2 ready", timeout_seconds=120)
    tenant.wait(
        lambda: tenant.condition("ScalingLimited")[1] != "QuotaReached", what="no quota any more"
    )
