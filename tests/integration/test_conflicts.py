"""Who owns a replica count: other resources, other scalers, people, and races between them."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import kubernetes
import pytest
from tests.integration.operator_under_test import Operator, Tenant, ticks_pass

from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import wait_until

# The operator looks for a CRD that is not installed this often.
ABSENT_CRD_SECONDS = 45.0
# Few writes of a plan meet an edit by hand: each resource has that long, of at most so many.
RACE_SECONDS = 10.0
RACES = 6
SCALED_OBJECTS = {"group": "keda.sh", "version": "v1alpha1", "plural": "scaledobjects"}


def _autoscaler(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
            "minReplicas": 1,
            "maxReplicas": 2,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {
                        "name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 80},
                    },
                }
            ],
        },
    }


def test_hands_off_while_an_autoscaler_is_on_the_target(tenant: Tenant, operator: Operator) -> None:
    """An HPA on the target is named, and nothing is scaled until it is gone."""
    autoscaling = kubernetes.client.AutoscalingV2Api(tenant.rig.api_client())
    tenant.create_deployment(replicas=1)
    autoscaling.create_namespaced_horizontal_pod_autoscaler(tenant.namespace, _autoscaler("old"))
    tenant.create_slo(replicas={"min": 3, "max": 4})
    tenant.wait_condition("Ready", "False", "ScalerConflict")
    tenant.wait_message("Ready", "HorizontalPodAutoscaler/old")
    assert "old" in tenant.wait_event("ScalerConflict")
    ticks_pass(operator)
    assert tenant.replicas() == 1
    autoscaling.delete_namespaced_horizontal_pod_autoscaler("old", tenant.namespace)
    tenant.wait(lambda: tenant.replicas() == 3, what="a scale-up")
    tenant.wait_condition("Ready", "True")


@pytest.fixture
def keda(rig: Rig) -> Iterator[None]:
    """The ScaledObject kind alone, as far as an autoscaler's conflict check sees it."""
    extensions = kubernetes.client.ApiextensionsV1Api(rig.api_client())
    open_schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    name = f"{SCALED_OBJECTS['plural']}.{SCALED_OBJECTS['group']}"
    extensions.create_custom_resource_definition(
        {
            "metadata": {"name": name},
            "spec": {
                "group": SCALED_OBJECTS["group"],
                "scope": "Namespaced",
                "names": {
                    "plural": "scaledobjects",
                    "singular": "scaledobject",
                    "kind": "ScaledObject",
                },
                "versions": [
                    {
                        "name": SCALED_OBJECTS["version"],
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": open_schema},
                    }
                ],
            },
        }
    )
    yield
    extensions.delete_custom_resource_definition(name)


@pytest.mark.usefixtures("keda")
def test_hands_off_while_a_scaled_object_is_on_the_target(tenant: Tenant) -> None:
    """KEDA may be installed after the operator: its ScaledObject is found and named."""
    tenant.create_deployment(replicas=1)
    body = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "by-queue"},
        "spec": {"scaleTargetRef": {"name": "chat"}},
    }

    def created() -> bool:
        try:
            tenant.custom.create_namespaced_custom_object(
                namespace=tenant.namespace, body=body, **SCALED_OBJECTS
            )
        except kubernetes.client.ApiException:
            return False
        return True

    tenant.wait(created, what="the ScaledObject is created")
    tenant.create_slo()
    tenant.wait_condition("Ready", "False", "ScalerConflict", timeout_seconds=ABSENT_CRD_SECONDS)
    tenant.wait_message("Ready", "ScaledObject/by-queue")


@contextmanager
def _meddling(tenant: Tenant) -> Iterator[None]:
    """Somebody who sets the count to 1 and 2 in turn, as fast as the API server takes it."""
    stop = threading.Event()

    def meddle() -> None:
        for replicas in itertools.cycle((1, 2)):
            if stop.is_set():
                return
            tenant.scale(replicas)

    thread = threading.Thread(target=meddle, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_refused_write_is_counted_and_planned_again(tenant: Tenant, operator: Operator) -> None:
    """When the count is not what the plan started from, nothing is overwritten; it is counted."""
    name = "servingslo_write_conflicts_total"

    def conflicts() -> float:
        lines = operator.metrics().splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(name)))

    before = conflicts()
    tenant.create_deployment(replicas=1)
    with _meddling(tenant):
        # Writes that all come through are reverts, and soon pause: a new resource begins anew.
        for _ in range(RACES):
            tenant.create_slo(replicas={"min": 3, "max": 4})
            with suppress(RigError):
                wait_until(
                    lambda: conflicts() > before,
                    what="a conflict is counted",
                    timeout_seconds=RACE_SECONDS,
                )
                break
            tenant.delete_slo()
        assert conflicts() > before
        tenant.wait_event("WriteConflict")
    tenant.wait(lambda: tenant.replicas() == 3, what="planned again")
