"""Pods behind a scheduling gate, on a real API server and scheduler."""

from tests.integration.operator_under_test import Tenant

GATE = "example.com/queue"


def _gated(tenant: Tenant, gates: list[dict[str, str]] | None) -> None:
    """Give the pod template these gates; the pods that serve stay until new ones are ready."""
    rolling = {"maxSurge": 1, "maxUnavailable": 0}
    tenant.apps.patch_namespaced_deployment(
        "chat",
        tenant.namespace,
        {
            "spec": {
                "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
                "template": {"spec": {"schedulingGates": gates}},
            }
        },
    )


def test_a_gated_pod_is_queued_by_the_name_of_its_gate(tenant: Tenant) -> None:
    """It limits scaling by name, in condition and event, until the gate is gone."""
    tenant.create_deployment(replicas=1)
    tenant.create_slo()
    tenant.wait_condition("MetricsFresh", "True")
    _gated(tenant, [{"name": GATE}])
    tenant.patch_slo({"replicas": {"min": 2, "max": 4}})
    tenant.wait_condition("ScalingLimited", "True", "Queued")
    tenant.wait_message("ScalingLimited", f"scheduling gate {GATE}")
    assert f"scheduling gate {GATE}" in tenant.wait_event("Queued")
    _gated(tenant, None)
    tenant.wait(lambda: tenant.ready_replicas() == 2, what="2 ready", timeout_seconds=120)
    tenant.wait(lambda: tenant.condition("ScalingLimited")[1] != "Queued", what="no queue any more")
