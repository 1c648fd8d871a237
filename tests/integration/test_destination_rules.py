"""A bound in an Istio DestinationRule: written, followed and put back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from tests.integration.gateway_manifests import MANAGED, Gateway, begin
from tests.integration.operator_under_test import Operator, Tenant

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.upstream_crds import ISTIO, install_crds

RULE = ("networking.istio.io", "v1")
RULES = "destinationrules"
VIA = {"kind": "DestinationRule", "name": "chat"}


class Rules:
    """The DestinationRules of a tenant."""

    def __init__(self, tenant: Tenant) -> None:
        self._custom = kubernetes.client.CustomObjectsApi(tenant.rig.api_client())
        self._namespace = tenant.namespace

    def create(
        self, name: str = "chat", *, labels: Mapping[str, str] = MANAGED, **spec: Any
    ) -> None:
        """One rule, for the Service `chat` where no other host is given."""
        manifest = {
            "apiVersion": "/".join(RULE),
            "kind": "DestinationRule",
            "metadata": {"name": name, "labels": dict(labels)},
            "spec": {"host": "chat", **spec},
        }
        self._custom.create_namespaced_custom_object(*RULE, self._namespace, RULES, manifest)

    def read(self, name: str = "chat") -> dict[str, Any]:
        """A rule as it is now."""
        found: dict[str, Any] = self._custom.get_namespaced_custom_object(
            *RULE, self._namespace, RULES, name
        )
        return found

    def bound(self) -> int | None:
        """http2MaxRequests, None where it is not set."""
        pool = self.read()["spec"].get("trafficPolicy", {}).get("connectionPool", {})
        found: int | None = pool.get("http", {}).get("http2MaxRequests")
        return found


@pytest.fixture
def rules(rig: Rig, tenant: Tenant) -> Rules:
    """The tenant's rules, on an API server that has Istio's own CRDs."""
    install_crds(rig.api_client(), ISTIO)
    return Rules(tenant)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"trafficPolicy": {"loadBalancer": {"simple": "LEAST_REQUEST"}}},
        {"trafficPolicy": {"connectionPool": {"http": {}}}},
        {"trafficPolicy": {"connectionPool": {"http": {"http2MaxRequests": 500}}}},
    ],
    ids=["nothing", "beside", "empty", "former"],
)
def test_a_bound_is_written_followed_and_put_back(
    tenant: Tenant, rules: Rules, operator: Operator, tmp_path: Path, spec: dict[str, Any]
) -> None:
    """It grows with the replicas, and what stood before is there to the letter afterwards."""
    Gateway(tenant).create_service()
    rules.create(**spec)
    before = rules.read()["spec"]
    begin(tenant, tmp_path, via=VIA)
    tenant.wait(lambda: rules.bound() not in {None, 500}, what="a bound is written")
    first = rules.bound()
    assert first is not None
    if not spec:
        tenant.patch_slo({"replicas": {"min": 3}})
        tenant.wait(lambda: tenant.ready_replicas() == 3, what="a third replica")
        tenant.wait(lambda: (rules.bound() or 0) > first, what="the bound is raised")
    tenant.delete_slo()
    tenant.wait(lambda: rules.read()["spec"] == before, what="the former state again")
    assert not rules.read()["metadata"].get("annotations")
    tenant.wait_line(operator, "changed", "knob=gateway-limits", "target=DestinationRule/chat")
