"""Where Envoy Gateway keeps a route's cluster without a pod, by objects of its real CRDs."""

import asyncio
from collections.abc import Mapping
from typing import Any

import kubernetes
import pytest

from servingslo.adapters.kubernetes.api.client import connect
from servingslo.adapters.kubernetes.gateways.routing import GatewayRouting
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.upstream_crds import ENVOY_GATEWAY, manifests

GATEWAY = ("gateway.networking.k8s.io", "v1")
ENVOY = ("gateway.envoyproxy.io", "v1alpha1")
Spec = Mapping[str, Any]
SERVICE = {"routingType": "Service"}
MERGED = {"mergeType": "StrategicMerge"}


def _policy(kind: str, name: str, section: str = "", **spec: str) -> dict[str, Any]:
    ref = {"group": GATEWAY[0], "kind": kind, "name": name}
    target = {**ref, "sectionName": section} if section else ref
    return {"targetRefs": [target], **spec}


ROUTE, OF_GATEWAY = ("HTTPRoute", "chat"), ("Gateway", "gate")
SELECTED = {
    "targetSelectors": [{"group": GATEWAY[0], "kind": "HTTPRoute", "matchLabels": {"app": "chat"}}]
}
# Policies by name, EnvoyProxy of the Gateway and of its class, and whether the cluster is kept.
CASES: dict[str, tuple[Spec, Spec | None, Spec | None, bool]] = {
    "nothing-set": ({}, None, None, False),
    "route": ({"a": _policy(*ROUTE, **SERVICE)}, None, None, True),
    "route-by-labels": ({"a": {**SELECTED, **SERVICE}}, None, None, True),
    "another-route": ({"a": _policy("HTTPRoute", "other", **SERVICE)}, None, None, False),
    "one-rule": ({"a": _policy(*ROUTE, "first", **SERVICE)}, None, None, False),
    "two-of-one-route": (
        {"a": _policy(*ROUTE, **SERVICE), "b": _policy(*ROUTE)}, None, None, False,
    ),
    "gateway": ({"a": _policy(*OF_GATEWAY, **SERVICE)}, None, None, True),
    "gateway-listener": ({"a": _policy(*OF_GATEWAY, "http", **SERVICE)}, None, None, False),
    "gateway-hidden-by-the-route-s": (
        {"a": _policy(*OF_GATEWAY, **SERVICE), "b": _policy(*ROUTE)}, None, None, False,
    ),
    "gateway-merged-into-the-route-s": (
        {"a": _policy(*OF_GATEWAY, **SERVICE), "b": _policy(*ROUTE, **MERGED)}, None, None, True,
    ),
    "proxy-of-the-gateway": ({}, SERVICE, None, True),
    "proxy-of-the-class": ({}, None, SERVICE, True),
    "proxy-of-the-class-hidden": ({}, {"concurrency": 2}, SERVICE, False),
    "proxy-of-the-class-merged": ({}, {"concurrency": 2, **MERGED}, SERVICE, True),
    "proxy-of-the-gateway-unused": ({}, SERVICE, {"mergeGateways": True}, False),
    "endpoints-for-the-route": (
        {"a": _policy(*ROUTE, routingType="Endpoint")}, None, SERVICE, False,
    ),
}  # fmt: skip


class _Objects:
    """Objects of one namespace and its GatewayClass."""

    def __init__(self, rig: Rig, namespace: str) -> None:
        self._custom = kubernetes.client.CustomObjectsApi(rig.api_client())
        self._namespace = namespace

    def create(self, group: tuple[str, str], kind: str, plural: str, name: str, spec: Any) -> None:
        """Create one, with a label to be chosen by."""
        body = {
            "apiVersion": "/".join(group),
            "kind": kind,
            "metadata": {"name": name, "labels": {"app": "chat"}},
            "spec": dict(spec),
        }
        if kind == "GatewayClass":
            self._custom.create_cluster_custom_object(*group, plural, body)
        else:
            self._custom.create_namespaced_custom_object(*group, self._namespace, plural, body)

    def create_route(self, backend: Mapping[str, Any]) -> None:
        """The HTTPRoute `chat` of the Gateway `gate`."""
        spec = {"parentRefs": [{"name": "gate"}], "rules": [{"backendRefs": [dict(backend)]}]}
        self.create(GATEWAY, "HTTPRoute", "httproutes", "chat", spec)

    def create_gateway(
        self, own: Mapping[str, Any] | None, shared: Mapping[str, Any] | None
    ) -> str:
        """Gateway and class with the EnvoyProxies that they refer to; the class's name."""
        name = f"class-{self._namespace}"
        reference = {"group": ENVOY[0], "kind": "EnvoyProxy"}
        referred = {"parametersRef": {**reference, "name": "shared", "namespace": self._namespace}}
        controller = {"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"}
        class_spec = {**controller, **({} if shared is None else referred)}
        self.create(GATEWAY, "GatewayClass", "gatewayclasses", name, class_spec)
        listener = {"name": "http", "protocol": "HTTP", "port": 80}
        infrastructure = {"parametersRef": {**reference, "name": "own"}}
        spec = {"gatewayClassName": name, "listeners": [listener]}
        self.create(GATEWAY, "Gateway", "gateways", "gate",
            {**spec, **({} if own is None else {"infrastructure": infrastructure})})  # fmt: skip
        for proxy, found in (("own", own), ("shared", shared)):
            if found is not None:
                self.create(ENVOY, "EnvoyProxy", "envoyproxies", proxy, found)
        return name

    def delete_class(self, name: str) -> None:
        """It lies in no namespace."""
        self._custom.delete_cluster_custom_object(*GATEWAY, "gatewayclasses", name)


def _not_kept(rig: Rig, namespace: str) -> str:
    async def look() -> str:
        client = await connect(kubeconfig=str(rig.admin_kubeconfig))
        try:
            return await GatewayRouting(client).not_kept(namespace, "chat")
        finally:
            await client.close()

    return asyncio.run(look())


@pytest.mark.parametrize("case", CASES)
def test_a_cluster_is_kept_where_every_request_goes_to_the_service_s_address(
    rig: Rig, namespace: str, gateway_crds: None, case: str
) -> None:
    """A policy before the EnvoyProxy, and nothing that may mean something else is taken for it."""
    policies, own, shared, kept = CASES[case]
    objects = _Objects(rig, namespace)
    name = objects.create_gateway(own, shared)
    try:
        objects.create_route({"name": "chat", "port": 80})
        for policy, spec in policies.items():
            objects.create(ENVOY, "BackendTrafficPolicy", "backendtrafficpolicies", policy, spec)
        said = _not_kept(rig, namespace)
    finally:
        objects.delete_class(name)
    assert (said == "") is kept
    assert kept or "HTTPRoute/chat is routed to pods' addresses: set routingType" in said


def test_what_is_not_there_or_no_service_is_not_kept(
    rig: Rig, namespace: str, gateway_crds: None
) -> None:
    """A picker chooses among the pods of a pool itself."""
    assert "no HTTPRoute or GRPCRoute is named chat" in _not_kept(rig, namespace)
    pool = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "chat"}
    _Objects(rig, namespace).create_route(pool)
    assert _not_kept(rig, namespace) == "HTTPRoute/chat leads to InferencePool/chat"


def test_the_gateway_s_api_has_what_is_read() -> None:
    """By its published CRDs: the field of both kinds, and what it may say."""
    found = {one["spec"]["names"]["kind"]: one for one in manifests(ENVOY_GATEWAY)}
    for kind in ("BackendTrafficPolicy", "EnvoyProxy"):
        schema = found[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        assert {"routingType", "mergeType"} <= schema["properties"]["spec"]["properties"].keys()
