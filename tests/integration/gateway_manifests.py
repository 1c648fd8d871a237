"""A Service, an HTTPRoute to it and the policy that holds its bound, of one tenant."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes
from tests.integration.operator_under_test import Tenant, steady_trace

from servingslo_lab.sim.fleets.engine_kinds import engine_kind

ROUTE_GROUP = "gateway.networking.k8s.io"
POLICY = ("gateway.envoyproxy.io", "v1alpha1")
POLICIES = "backendtrafficpolicies"
MANAGED = {"servingslo.dev/managed": "true"}
VIA = {"kind": "BackendTrafficPolicy", "name": "chat"}

AUTO: dict[str, Any] = {"mode": "Auto", "via": VIA}
# A law stated, that of the simulated card, so that there is a bound before one is fitted.
_CARD = engine_kind("l4-small").law
LAW = {
    "stepFixedSeconds": _CARD.step_fixed_seconds,
    "stepPerSequenceSeconds": _CARD.step_per_sequence_seconds,
    "prefillPerTokenSeconds": _CARD.prefill_per_token_seconds,
    "contextPerTokenSeconds": _CARD.context_per_token_seconds,
}


def begin(tenant: Tenant, folder: Path, **admission: Any) -> None:
    """Two replicas under steady load, and a ServingSLO whose bound is written."""
    tenant.create_deployment(replicas=2)
    tenant.begin_traffic(steady_trace(folder / "trace.csv", rate=3.0, seconds=120.0))
    tenant.create_slo(
        replicas={"min": 2, "max": 4}, serviceLaw=LAW, admission={**AUTO, **admission}
    )


class Gateway:
    """What a tenant has of a gateway in front of his Deployment."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.custom = kubernetes.client.CustomObjectsApi(tenant.rig.api_client())

    def create_service(self, name: str = "chat", *, app: str = "chat") -> None:
        """A Service that selects the pods of one app."""
        self.tenant.core.create_namespaced_service(
            self.tenant.namespace,
            {
                "metadata": {"name": name},
                "spec": {"selector": {"app": app}, "ports": [{"port": 80}]},
            },
        )

    def create_route(
        self, name: str = "chat", *, backends: Sequence[Mapping[str, Any]] = ({"name": "chat"},)
    ) -> None:
        """An HTTPRoute of one rule."""
        self.custom.create_namespaced_custom_object(
            ROUTE_GROUP,
            "v1",
            self.tenant.namespace,
            "httproutes",
            {
                "apiVersion": f"{ROUTE_GROUP}/v1",
                "kind": "HTTPRoute",
                "metadata": {"name": name},
                "spec": {
                    "parentRefs": [{"name": "gate"}],
                    "rules": [{"backendRefs": [{"port": 80, **one} for one in backends]}],
                },
            },
        )

    def create_policy(
        self,
        name: str = "chat",
        *,
        labels: Mapping[str, str] = MANAGED,
        route: str = "chat",
        manager: str | None = None,
        **spec: Any,
    ) -> None:
        """A policy for one route. manager: who applies it on the server's side."""
        body = {
            "apiVersion": "/".join(POLICY),
            "kind": "BackendTrafficPolicy",
            "metadata": {"name": name, "labels": dict(labels)},
            "spec": {
                "targetRefs": [{"group": ROUTE_GROUP, "kind": "HTTPRoute", "name": route}],
                **spec,
            },
        }
        namespace = self.tenant.namespace
        if manager is None:
            self.custom.create_namespaced_custom_object(*POLICY, namespace, POLICIES, body)
            return
        self.custom.patch_namespaced_custom_object(
            *POLICY,
            namespace,
            POLICIES,
            name,
            body,
            field_manager=manager,
            force=True,
            _content_type="application/apply-patch+yaml",
        )

    def create_all(self, **spec: Any) -> None:
        """Service, route and policy."""
        self.create_service()
        self.create_route()
        self.create_policy(**spec)

    def policy(self, name: str = "chat") -> dict[str, Any]:
        """The policy as it is now."""
        found: dict[str, Any] = self.custom.get_namespaced_custom_object(
            *POLICY, self.tenant.namespace, POLICIES, name
        )
        return found

    def bound(self, name: str = "chat") -> int | None:
        """maxParallelRequests, None where it is not set."""
        found = self.policy(name)["spec"].get("circuitBreaker") or {}
        value = found.get("maxParallelRequests")
        return None if value is None else int(value)

    def version(self, name: str = "chat") -> str:
        """The policy's resourceVersion."""
        return str(self.policy(name)["metadata"]["resourceVersion"])

    def patch_policy(self, change: Mapping[str, Any], name: str = "chat") -> None:
        """Edit the policy by hand."""
        self.custom.patch_namespaced_custom_object(
            *POLICY, self.tenant.namespace, POLICIES, name, dict(change)
        )
