"""A bound in an Envoy Gateway policy: written, followed, refused with a reason, and put back."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from tests.integration.gateway_manifests import AUTO, LAW, VIA, Gateway, begin
from tests.integration.operator_under_test import Operator, Tenant, steady_trace, ticks_pass

from servingslo_lab.rig.cluster import Rig

RELEASE = (
    sys.executable, "-m", "servingslo.cli", "release", "--all",
    "--admission-kind=BackendTrafficPolicy", "--no-degradation", "--no-node-buffers",
)  # fmt: skip


@pytest.fixture
def gateway(gateway_crds: None, tenant: Tenant) -> Gateway:
    """The tenant's gateway objects."""
    return Gateway(tenant)


def told_of_bound(tenant: Tenant, reason: str) -> str:
    """Wait until the condition says this; its message."""
    tenant.wait(
        lambda: tenant.condition("AdmissionBound")[1] == reason, what=f"AdmissionBound: {reason}"
    )
    return tenant.message("AdmissionBound")


def test_a_bound_is_written_followed_and_put_back(
    tenant: Tenant, gateway: Gateway, operator: Operator, tmp_path: Path
) -> None:
    """It stands with whose it is, grows with the replicas, and goes with the ServingSLO."""
    gateway.create_all()
    assert "circuitBreaker" not in gateway.policy()["spec"]
    begin(tenant, tmp_path)
    tenant.wait(lambda: gateway.bound() not in {None, 1024}, what="a bound is written")
    first = gateway.bound()
    assert first is not None
    managers = {entry["manager"] for entry in gateway.policy()["metadata"]["managedFields"]}
    assert "servingslo-operator" in managers
    told_of_bound(tenant, "LimitUnverified")
    tenant.patch_slo({"replicas": {"min": 3}})
    tenant.wait(lambda: tenant.ready_replicas() == 3, what="a third replica")
    tenant.wait(lambda: (gateway.bound() or 0) > first, what="the bound is raised")
    tenant.delete_slo()
    tenant.wait(
        lambda: "circuitBreaker" not in gateway.policy()["spec"], what="the former state again"
    )
    assert not gateway.policy()["metadata"].get("annotations")
    tenant.wait_line(operator, "changed", "knob=gateway-limits", "reason=LimitPutBack")


POOL = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "chat"}
# Of each policy: what is wrong with it, the reason and a word of the message.
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "unlabelled": ({"labels": {}}, "NotPermitted", "servingslo.dev/managed"),
    "foreign-field": (
        {"manager": "argocd", "circuitBreaker": {"maxParallelRequests": 70}},
        "LimitSetByAnother",
        "argocd",
    ),
    "inference-pool": ({"route": "pool"}, "LimitNotEnforceable", "InferencePool"),
    "another-workload": ({"route": "other"}, "LimitNotEnforceable", "selects none"),
    "one-of-two": ({"route": "chat"}, "LimitNotEnforceable", "is for HTTPRoute/chat as well"),
    "merged": ({"mergeType": "StrategicMerge"}, "LimitNotEnforceable", "mergeType"),
    "no-route": ({"route": "absent"}, "LimitNotEnforceable", "HTTPRoute/absent"),
}


def test_where_it_may_not_or_cannot_work_nothing_is_written(
    tenant: Tenant, gateway: Gateway, operator: Operator, tmp_path: Path
) -> None:
    """The policies stay as they were, and the condition says of each why."""
    gateway.create_service()
    gateway.create_service("other", app="other")
    gateway.create_route()
    gateway.create_route("other", backends=[{"name": "other"}])
    gateway.create_route("pool", backends=[POOL])
    gateway.create_policy("rival", labels={})
    for name, (spec, _, _) in REFUSED.items():
        gateway.create_policy(name, **spec)
    before = {name: gateway.version(name) for name in REFUSED}
    begin(tenant, tmp_path, via={**VIA, "name": "unlabelled"})
    for name, (_, reason, says) in REFUSED.items():
        tenant.patch_slo({"admission": {"via": {"name": name}}})
        where = f"BackendTrafficPolicy/{name}: "
        tenant.wait(lambda where=where: where in tenant.message("AdmissionBound"), what=where)
        assert says in told_of_bound(tenant, reason)
    ticks_pass(operator)
    assert {name: gateway.version(name) for name in REFUSED} == before


def test_a_tenant_writes_nothing_that_he_may_not(
    rig: Rig, tenant: Tenant, gateway: Gateway, operator: Operator, tmp_path: Path
) -> None:
    """With `edit` in one namespace alone he cannot name a policy of another one."""
    other = Tenant(rig, rig.create_namespace(f"{tenant.namespace}-other"), tenant.engines)
    foreign = Gateway(other)
    foreign.create_policy("theirs")
    before = foreign.version("theirs")
    rbac = kubernetes.client.RbacAuthorizationV1Api(rig.api_client())
    tenant.core.create_namespaced_service_account(tenant.namespace, {"metadata": {"name": "user"}})
    rbac.create_namespaced_role_binding(
        tenant.namespace,
        {
            "metadata": {"name": "user"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "edit",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "user", "namespace": tenant.namespace}],
        },
    )
    user = rig.api_client(rig.kubeconfig_for_service_account(tenant.namespace, "user"))
    tenant.create_deployment(replicas=2)
    tenant.begin_traffic(steady_trace(tmp_path / "trace.csv", rate=3.0, seconds=60.0))
    tenant.custom = kubernetes.client.CustomObjectsApi(user)
    via = {"kind": "BackendTrafficPolicy", "name": "theirs"}
    with pytest.raises(kubernetes.client.ApiException, match="namespace"):
        tenant.create_slo(admission={"mode": "Auto", "via": {**via, "namespace": other.namespace}})
    tenant.create_slo(replicas={"min": 2, "max": 4}, serviceLaw=LAW, admission={**AUTO, "via": via})
    assert "none of that name in this namespace" in told_of_bound(tenant, "LimitNotEnforceable")
    ticks_pass(operator)
    assert foreign.version("theirs") == before
    rig.delete_namespace(other.namespace)


def test_release_puts_everything_back_without_the_operator(
    rig: Rig, tenant: Tenant, gateway: Gateway, operator: Operator, tmp_path: Path
) -> None:
    """With the operator's own permissions; one that runs leaves the policy alone afterwards."""
    gateway.create_all()
    begin(tenant, tmp_path)
    tenant.wait(lambda: gateway.bound() not in {None, 1024}, what="a bound is written")
    done = subprocess.run(
        [*RELEASE, "--kubeconfig", str(operator.kubeconfig)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert f"{tenant.namespace}/chat: maxParallelRequests" in done.stdout
    assert "circuitBreaker" not in gateway.policy()["spec"]
    told_of_bound(tenant, "LimitReleased")
    ticks_pass(operator)
    assert "circuitBreaker" not in gateway.policy()["spec"]
