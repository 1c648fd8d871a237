"""CRDs of the gateways' own projects on the rig's API server."""

from typing import Any

import kubernetes
import pytest

from servingslo_lab.rig.cluster import Rig

GROUP, VERSION, PLURAL = "gateway.envoyproxy.io", "v1alpha1", "backendtrafficpolicies"


def _policy(**circuit_breaker: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "BackendTrafficPolicy",
        "metadata": {"name": "chat"},
        "spec": {
            "targetRefs": [
                {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "chat"}
            ],
            "circuitBreaker": circuit_breaker,
        },
    }


def test_a_policy_is_served_and_checked_as_by_envoy_gateway(
    rig: Rig, namespace: str, gateway_crds: None
) -> None:
    """A bound is stored and read back as it was written; a negative one is refused."""
    custom = kubernetes.client.CustomObjectsApi(rig.api_client())
    custom.create_namespaced_custom_object(
        GROUP, VERSION, namespace, PLURAL, _policy(maxParallelRequests=37)
    )
    read = custom.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, "chat")
    assert read["spec"]["circuitBreaker"]["maxParallelRequests"] == 37
    with pytest.raises(kubernetes.client.ApiException, match="maxParallelRequests"):
        custom.patch_namespaced_custom_object(
            GROUP, VERSION, namespace, PLURAL, "chat",
            {"spec": {"circuitBreaker": {"maxParallelRequests": -1}}},
        )  # fmt: skip


def test_routes_of_gateway_api_are_served(rig: Rig, namespace: str, gateway_crds: None) -> None:
    """An HTTPRoute of version v1 is stored."""
    custom = kubernetes.client.CustomObjectsApi(rig.api_client())
    route = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "chat"},
        "spec": {
            "parentRefs": [{"name": "gate"}],
            "rules": [{"backendRefs": [{"name": "chat", "port": 8000}]}],
        },
    }
    made = custom.create_namespaced_custom_object(
        "gateway.networking.k8s.io", "v1", namespace, "httproutes", route
    )
    assert made["spec"]["rules"][0]["backendRefs"][0]["kind"] == "Service"
