"""Outages of what the operator depends on: it holds, says why, survives and goes on."""

import kubernetes
import pytest
from tests.integration.operator_under_test import (
    RELEASE_NAMESPACE,
    Operator,
    Tenant,
    ticks_pass,
)

from servingslo_lab.rig.cluster import Rig

# Two thirds of the pace at which what stays forbidden is asked for in the end.
SOON_SECONDS = 20.0


@pytest.fixture
def seen(tenant: Tenant) -> Tenant:
    """A tenant with two replicas whose metrics are fresh, in mode Auto with room to scale."""
    tenant.create_deployment(replicas=2)
    tenant.create_slo(replicas={"min": 1, "max": 4})
    tenant.wait_condition("MetricsFresh", "True")
    return tenant


@pytest.mark.parametrize("outage", ["restart", "hang"])
def test_goes_on_after_an_outage_of_the_api_server(
    rig: Rig, seen: Tenant, operator: Operator, outage: str
) -> None:
    """The same process goes on when the API server is back, and acts on what changed."""
    assert operator.process is not None
    pid = operator.process.pid
    if outage == "restart":
        rig.stop_api_server()
        try:
            ticks_pass(operator, 2)
        finally:
            rig.start_api_server()
    else:
        rig.pause_api_server()
        try:
            ticks_pass(operator, 1)
        finally:
            rig.resume_api_server()
    assert operator.process.pid == pid
    assert seen.replicas() == 2
    seen.patch_slo({"replicas": {"min": 3, "max": 4}})
    seen.wait(lambda: seen.replicas() == 3, what="a decision after the outage")
    seen.wait_condition("Ready", "True")


def test_a_permission_that_comes_back_soon_is_used_soon(
    rig: Rig, seen: Tenant, operator: Operator
) -> None:
    """An API server that has just started may know no roles yet: that is asked again at once.

    Watches go on without a role, so the server is started anew to cut them.
    """
    api = kubernetes.client.RbacAuthorizationV1Api(rig.api_client())
    (binding,) = (
        found
        for found in api.list_cluster_role_binding().items
        if RELEASE_NAMESPACE in {subject.namespace for subject in found.subjects or ()}
        and found.metadata.name.endswith("servingslo-operator")
    )
    api.delete_cluster_role_binding(binding.metadata.name)
    try:
        rig.stop_api_server()
        rig.start_api_server()
        seen.wait(
            lambda: bool(operator.log_lines("decided", seen.namespace, "PermissionDenied")),
            what="a refusal",
        )
    finally:
        binding.metadata = kubernetes.client.V1ObjectMeta(
            name=binding.metadata.name,
            labels=binding.metadata.labels,
            annotations=binding.metadata.annotations,
        )
        api.create_cluster_role_binding(binding)
    seen.patch_slo({"replicas": {"min": 3, "max": 4}})
    seen.wait(
        lambda: seen.replicas() == 3,
        what="a decision after the refusal",
        timeout_seconds=SOON_SECONDS,
    )
