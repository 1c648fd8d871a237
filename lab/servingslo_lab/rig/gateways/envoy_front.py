"""A Gateway of the rig with a real Envoy behind it, for tests and demos."""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import kubernetes

from servingslo_lab.errors import RigError
from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.gateways.gateway_objects import ENGINE_PORT
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.programs.upstream_crds import ENVOY_GATEWAY, GATEWAY_API, install_crds
from servingslo_lab.rig.prometheus import ScrapedProxy
from servingslo_lab.rig.waiting import http_get

GATEWAY_GROUP, GATEWAY_VERSION = "gateway.networking.k8s.io", "v1"
POLICY_GROUP, POLICY_VERSION, POLICIES = (
    "gateway.envoyproxy.io",
    "v1alpha1",
    "backendtrafficpolicies",
)
_CLASS = "envoy"
_CONTROLLER = "gateway.envoyproxy.io/gatewayclass-controller"
_NAMESPACE = "envoy-gateway-system"
# Without a timeout, Envoy ends every answer after 15 s (its default for routes), also a model's
# long ones.
_ROUTE_TIMEOUT = "300s"
# Longer than one translation may take (`gateway`).
_READY_SECONDS = 180.0
# The header in which a route says which backend answered; clients of the rig record it.
_SERVED_BY = "x-served-by"
_STARTED = re.compile(r"^gateway at (\S+) statistics at (\S+)$", re.MULTILINE)
_ALREADY_THERE = 409


def policy_manifest(
    name: str,
    *,
    route: str,
    max_parallel_requests: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A BackendTrafficPolicy of a route.

    max_parallel_requests: bound on its requests in flight, for each proxy; None for none.
    """
    bound = {"maxParallelRequests": max_parallel_requests}
    target = {"group": GATEWAY_GROUP, "kind": "HTTPRoute", "name": route}
    return {
        "apiVersion": f"{POLICY_GROUP}/{POLICY_VERSION}",
        "kind": "BackendTrafficPolicy",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "targetRefs": [target],
            **({} if max_parallel_requests is None else {"circuitBreaker": bound}),
        },
    }


class EnvoyFront:
    """The Gateway `gate` of a namespace, and its Envoy.

    Each route leads to the pods of one workload, by their label `app`.
    """

    def __init__(self, rig: Rig, namespace: str) -> None:
        self._rig = rig
        self.namespace = namespace
        self._custom = kubernetes.client.CustomObjectsApi(rig.api_client())
        self._core = kubernetes.client.CoreV1Api(rig.api_client())
        self._name = f"gateway-{namespace}"
        self._addresses = ("", "")

    def create(self, *workloads: str, fallback: str = "") -> None:
        """Create GatewayClass, Gateway, and a Service and an HTTPRoute for each workload.

        Routes and Services have the workloads' names. Missing CRDs are installed. fallback: a
        workload with a Service that is a backend of weight 0 in each route; '' for none.
        """
        install_crds(self._rig.api_client(), GATEWAY_API, ENVOY_GATEWAY)
        try:
            self._custom.create_cluster_custom_object(
                GATEWAY_GROUP, GATEWAY_VERSION, "gatewayclasses", _object("GatewayClass", _CLASS,
                {"controllerName": _CONTROLLER}),
            )  # fmt: skip
        except kubernetes.client.ApiException as error:
            if error.status != _ALREADY_THERE:
                raise
        listener = {"name": "http", "protocol": "HTTP", "port": 80}
        self._create("gateways", _object("Gateway", "gate",
            {"gatewayClassName": _CLASS, "listeners": [listener]}))  # fmt: skip
        for name in workloads:
            self._core.create_namespaced_service(self.namespace, _service(name))
            alone = len(workloads) == 1
            self._create("httproutes", _route(name, alone=alone, fallback=fallback))
        if fallback:
            self._core.create_namespaced_service(self.namespace, _service(fallback))

    def create_route(self, name: str, workload: str, header: tuple[str, str]) -> None:
        """Create one more HTTPRoute to a workload, for requests with this header (name, value)."""
        match = {"headers": [{"name": header[0], "value": header[1]}]}
        self._create("httproutes", _route(name, workload=workload, matches=[match]))

    def start(self, *, with_policies: bool = True) -> None:
        """Start Envoy, wait until it serves, and have Prometheus scrape it too.

        with_policies: False leaves every BackendTrafficPolicy out, so that none reaches Envoy.
        Raises: RigError when Envoy or its translator cannot be built, or does not serve in time.
        """
        # A first build takes minutes, which do not count toward the gateway's start timeout.
        ensure_tools(versions.GATEWAY_TOOLS)
        folder = self._rig.work_dir / self._name
        folder.mkdir()
        process = self._rig.run_process(
            self._name,
            [
                sys.executable, "-m", "servingslo_lab.rig.gateways.gateway",
                f"--kubeconfig={self._rig.admin_kubeconfig}",
                f"--namespace={self.namespace}", "--gateway=gate", f"--folder={folder}",
                *([] if with_policies else ["--without-policies"]),
            ],
        )  # fmt: skip

        def started() -> bool:
            found = _STARTED.search(process.log_path.read_text(encoding="utf-8"))
            if found is not None:
                self._addresses = (found[1], found[2])
            return found is not None

        process.wait_for(started, what="the gateway serves", timeout_seconds=_READY_SECONDS)
        self._rig.scrape_proxy(self.scraped())

    def stop(self) -> None:
        """Stop Envoy."""
        self._rig.processes[self._name].stop()

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return self._addresses[0]

    def scraped(self) -> ScrapedProxy:
        """The proxy as a PodMonitor would find it."""
        address, _, path = self._addresses[1].removeprefix("http://").partition("/")
        pod = f"envoy-{self.namespace}-gate-0"
        labels = {"namespace": _NAMESPACE, "pod": pod, "container": "envoy"}
        return ScrapedProxy(name=pod, address=address, path=f"/{path}", labels=labels)

    def counter(self, name: str, route: str, backend: int | None = None) -> float:
        """The current counter or gauge of a route's cluster in Envoy; 0 if it has none yet.

        name: without `envoy_cluster_`. backend: its number, if it is counted apart.
        Raises: RigError when Envoy does not answer.
        """
        page = http_get(self._addresses[1])
        if page is None:
            raise RigError(f"envoy: no answer from {self._addresses[1]}")
        apart = "" if backend is None else f"/backend/{backend}"
        cluster = f"httproute/{self.namespace}/{route}/rule/0{apart}"
        pattern = rf'^envoy_cluster_{name}{{[^}}]*envoy_cluster_name="{cluster}"[^}}]*}} (\S+)$'
        return sum(float(found) for found in re.findall(pattern, page, re.MULTILINE))

    def bound(self, route: str) -> int:
        """The bound on a route's requests in flight that Envoy has now, some time after a write.

        0 while Envoy does not answer, or does not list the route.
        """
        page = http_get(self._addresses[1].removesuffix("/stats/prometheus") + "/clusters") or ""
        cluster = re.escape(f"httproute/{self.namespace}/{route}/rule/0::default_priority")
        found = re.search(rf"^{cluster}::max_requests::(\d+)$", page, re.MULTILINE)
        return 0 if found is None else int(found[1])

    def put_policy(self, manifest: Mapping[str, Any]) -> None:
        """Create a BackendTrafficPolicy."""
        self._custom.create_namespaced_custom_object(
            POLICY_GROUP, POLICY_VERSION, self.namespace, POLICIES, manifest
        )

    def change_policy(self, name: str, max_parallel_requests: int) -> None:
        """Change the bound of a BackendTrafficPolicy."""
        change = {"spec": {"circuitBreaker": {"maxParallelRequests": max_parallel_requests}}}
        self._custom.patch_namespaced_custom_object(
            POLICY_GROUP, POLICY_VERSION, self.namespace, POLICIES, name, change
        )

    def policy(self, name: str) -> dict[str, Any]:
        """The current BackendTrafficPolicy."""
        found: dict[str, Any] = self._custom.get_namespaced_custom_object(
            POLICY_GROUP, POLICY_VERSION, self.namespace, POLICIES, name
        )
        return found

    def weights(self, route: str) -> list[int]:
        """The current weights of a route's backends."""
        found = self.route(route)
        return [one["weight"] for one in found["spec"]["rules"][0]["backendRefs"]]

    def route(self, name: str) -> dict[str, Any]:
        """The current HTTPRoute."""
        found: dict[str, Any] = self._custom.get_namespaced_custom_object(
            GATEWAY_GROUP, GATEWAY_VERSION, self.namespace, "httproutes", name
        )
        return found

    def _create(self, plural: str, manifest: Mapping[str, Any]) -> None:
        self._custom.create_namespaced_custom_object(
            GATEWAY_GROUP, GATEWAY_VERSION, self.namespace, plural, manifest
        )


def _object(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": f"{GATEWAY_GROUP}/{GATEWAY_VERSION}",
        "kind": kind,
        "metadata": {"name": name},
        "spec": dict(spec),
    }


def _service(name: str) -> dict[str, Any]:
    port = {"name": "http", "port": ENGINE_PORT, "targetPort": ENGINE_PORT}
    return {"metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [port]}}


def _route(
    name: str,
    *,
    workload: str = "",
    alone: bool = True,
    fallback: str = "",
    matches: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """A route: all requests to the only workload, or by host name to one of several.

    workload: of the same name unless stated. matches: conditions of the rule.
    """
    rule = {
        "backendRefs": [{"name": workload or name, "port": ENGINE_PORT}],
        "timeouts": {"request": _ROUTE_TIMEOUT},
        **({"matches": list(matches)} if matches else {}),
    }
    if fallback:
        rule["backendRefs"] = [_marked(name, 1), _marked(fallback, 0)]
    hosts = {} if alone else {"hostnames": [f"{name}.example"]}
    made = _object("HTTPRoute", name, {"parentRefs": [{"name": "gate"}], "rules": [rule], **hosts})
    if fallback:
        made["metadata"]["labels"] = {"servingslo.dev/managed": "true"}
    return made


def _marked(name: str, weight: int) -> dict[str, Any]:
    """A backend that is counted apart, because it has a filter: its name in the answer."""
    mark = {"set": [{"name": _SERVED_BY, "value": name}]}
    named = {"type": "ResponseHeaderModifier", "responseHeaderModifier": mark}
    return {"name": name, "port": ENGINE_PORT, "weight": weight, "filters": [named]}
