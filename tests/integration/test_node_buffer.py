"""A CapacityBuffer of Karpenter's own CRD: written under the chart's rights, refused, put back.

No node autoscaler runs: nodes are added by the test, as one would.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import kubernetes
import pytest
from tests.integration.operator_under_test import Operator, Tenant

from servingslo.adapters.kubernetes.api.client import KubeClient, connect
from servingslo.features.node_buffer.buffers import BufferOwner, capacity_buffers
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.upstream_crds import CAPACITY_BUFFER, install_crds

GROUP, VERSION, PLURAL = "autoscaling.x-k8s.io", "v1beta1", "capacitybuffers"
MANAGED = {"servingslo.dev/managed": "true"}
NAMED = {"buffer": {"name": "chat", "max": 4}}
# The node that is there for a workload of this test, and the one that comes later.
OWN = "node-buffer-test"
USABLE = "NodeBufferUsable"


@pytest.fixture(scope="module")
def chart_settings(rig: Rig) -> tuple[str, ...]:
    """The administrator allows buffers; the CRD is there before the operator."""
    install_crds(rig.api_client(), CAPACITY_BUFFER)
    return ("nodeBuffer.maxReplicas=8",)


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """As the chart would start it."""
    return ("--node-buffer-max-replicas=8",)


def _create(tenant: Tenant, target: str = "chat", **labels: str) -> None:
    scaled = {"apiGroup": "apps", "kind": "Deployment", "name": target}
    tenant.custom.create_namespaced_custom_object(
        GROUP, VERSION, tenant.namespace, PLURAL,
        {"apiVersion": f"{GROUP}/{VERSION}", "kind": "CapacityBuffer",
         "metadata": {"name": "chat", "labels": labels},
         "spec": {"scalableRef": scaled, "replicas": 1}},
        field_validation="Strict",
    )  # fmt: skip


def _buffer(tenant: Tenant) -> dict[str, Any]:
    found: dict[str, Any] = tenant.custom.get_namespaced_custom_object(
        GROUP, VERSION, tenant.namespace, PLURAL, "chat"
    )
    return found


def _patch(tenant: Tenant, patch: dict[str, Any]) -> None:
    tenant.custom.patch_namespaced_custom_object(
        GROUP, VERSION, tenant.namespace, PLURAL, "chat", patch
    )


def _as_another(rig: Rig, act: Callable[[KubeClient], Awaitable[None]]) -> None:
    """Do something that the operator's log does not tell."""

    async def run() -> None:
        client = await connect(kubeconfig=str(rig.admin_kubeconfig))
        try:
            await act(client)
        finally:
            await client.close()

    asyncio.run(run())


def test_why_a_buffer_is_not_used_is_told_until_it_can_be(tenant: Tenant) -> None:
    """Missing, of another workload, not labelled; then only the lead of a node is unknown."""
    tenant.create_deployment()
    tenant.create_slo(nodes=NAMED)
    tenant.wait_condition(USABLE, "False", "BufferNotUsable")
    _create(tenant, "other", **MANAGED)
    tenant.wait_message(USABLE, "for Deployment/other, not for Deployment/chat")
    _patch(tenant, {"spec": {"scalableRef": {"name": "chat"}}})
    tenant.wait_condition(USABLE, "Unknown", "NodeLeadUnknown")
    _patch(tenant, {"metadata": {"labels": None}})
    tenant.wait_condition(USABLE, "False", "NotPermitted")
    assert _buffer(tenant)["spec"]["replicas"] == 1


def test_replicas_of_a_former_wish_are_put_back_with_the_chart_s_rights(
    rig: Rig, tenant: Tenant, operator: Operator
) -> None:
    """Set by the operator's own writer; the ServingSLO asks for none of it."""
    tenant.create_deployment()
    _create(tenant, **MANAGED)

    async def write(client: KubeClient) -> None:
        buffers = capacity_buffers(client)
        owner = BufferOwner(name="chat", uid="u", replicas=5, former=1)
        await buffers.write(await buffers.read(tenant.namespace, "chat"), owner)

    _as_another(rig, write)
    found = _buffer(tenant)
    tenant.create_slo()
    tenant.wait(lambda: _buffer(tenant)["spec"]["replicas"] == 1, what="the owner's replicas")
    assert not _buffer(tenant)["metadata"].get("annotations")
    managers = {entry["manager"] for entry in found["metadata"]["managedFields"]}
    assert "servingslo-operator" in managers
    tenant.wait_line(operator, "changed", "knob=node-buffer", "reason=BufferPutBack")


@pytest.fixture
def full_node(rig: Rig) -> Iterator[None]:
    """A node with room for one pod of this test."""
    names = rig.add_nodes(1, gpus_per_node=1, labels={OWN: "yes"})
    yield
    core = kubernetes.client.CoreV1Api(rig.api_client())
    more = core.list_node(label_selector=OWN).items
    rig.remove_nodes(sorted({*names, *(node.metadata.name for node in more)}))


def test_a_node_s_lead_is_measured_from_a_pod_that_waited_for_one(
    rig: Rig, tenant: Tenant, full_node: None
) -> None:
    """By the real scheduler's word: unschedulable until a node is added, then scheduled."""
    tenant.create_deployment(pod={"nodeSelector": {OWN: "yes"}})
    _create(tenant, **MANAGED)
    tenant.create_slo(nodes=NAMED, replicas={"min": 2, "max": 4})
    tenant.wait(lambda: len(tenant.pods()) == 2, what="a second pod")
    tenant.wait_condition("ScalingLimited", "True", "UnschedulablePods")
    rig.add_nodes(1, gpus_per_node=1, labels={OWN: "yes"})
    tenant.wait(
        lambda: "leadSeconds" in (tenant.status().get("nodes") or {}), what="the lead is measured"
    )
    nodes = tenant.status()["nodes"]
    assert nodes["leadSource"] == "measured"
    assert nodes["leadSeconds"] >= 1.0
    assert nodes["buffer"] == 1
