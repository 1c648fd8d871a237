"""A real istiod and a real Envoy in front of the rig's engines, for a DestinationRule's bound.

istiod reads its objects from the API server and sends everything to Envoy over its own stream. So
Envoy enforces a DestinationRule with no code of the rig in between. Only the pods' addresses are
read from a file (`istio_pods.py`), by an EnvoyFilter of the rig, because the API server accepts no
EndpointSlice with a loopback address.
"""

import itertools
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import kubernetes

from servingslo_lab.errors import RigError
from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.gateways.envoy_files import EnvoyFolder
from servingslo_lab.rig.gateways.gateway_objects import ENGINE_PORT
from servingslo_lab.rig.gateways.istio_pods import cluster_name
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.programs.upstream_crds import ISTIO, install_crds
from servingslo_lab.rig.prometheus import ScrapedProxy
from servingslo_lab.rig.waiting import free_port, http_get, wait_until

RULE_GROUP, RULE_VERSION, RULES = "networking.istio.io", "v1", "destinationrules"
ROOT_NAMESPACE, GATEWAY_NAMESPACE = "istio-system", "istio-ingress"
"""Namespaces: of istiod, whose rules apply to all; and of the gateway's proxy."""
_LABELS = {"istio": "ingressgateway"}
# istiod's value if a rule states no bound: the largest that Envoy accepts.
_UNBOUNDED = 2**32 - 1
_READY_SECONDS = 60.0
# A Service without pods, and its rule. When istiod sends this rule, it has sent all earlier ones.
_MARK = "mark"
_MARKS = itertools.count(1)
# Omits filters that only Istio's own Envoy build has, and encryption between proxies.
_MESH = {
    "defaultProviders": {"metrics": []},
    "enablePrometheusMerge": False,
    "enableAutoMtls": False,
}
_SETTINGS = {
    "PILOT_ENABLE_METADATA_EXCHANGE": "false",
    "PILOT_ENABLE_ALPN_FILTER": "false",
    "ENABLE_CA_SERVER": "false",
    "POD_NAME": "istiod",
    "POD_NAMESPACE": ROOT_NAMESPACE,
}


class IstioFront:
    """An ingress gateway of Istio that routes everything to the pods of one workload."""

    def __init__(self, rig: Rig, namespace: str) -> None:
        self._rig = rig
        self.namespace = namespace
        self.workload = ""
        self._custom = kubernetes.client.CustomObjectsApi(rig.api_client())
        self._core = kubernetes.client.CoreV1Api(rig.api_client())
        self._folder = EnvoyFolder(path=rig.work_dir / f"istio-{namespace}", admin_port=free_port())
        self._port, self._stream = free_port(), free_port()
        self._elsewhere: set[tuple[str, str]] = set()

    def create(self, workload: str) -> None:
        """Create a Service, a Gateway and a VirtualService of a workload, by its label `app`."""
        install_crds(self._rig.api_client(), ISTIO)
        names = {one.metadata.name for one in self._core.list_namespace().items}
        for name in {ROOT_NAMESPACE, GATEWAY_NAMESPACE} - names:
            self._rig.create_namespace(name)
        self.workload = workload
        self._create_service(workload, {"app": workload})
        listener = {"number": self._port, "name": "http", "protocol": "HTTP"}
        server = {"port": listener, "bind": "127.0.0.1", "hosts": ["*"]}
        self._put("Gateway", "gateways", "gate", {"selector": _LABELS, "servers": [server]})
        spec = {"hosts": ["*"], "gateways": ["gate"], "http": [self.route()]}
        self._put("VirtualService", "virtualservices", workload, spec)
        self._custom.create_namespaced_custom_object(
            RULE_GROUP, "v1alpha3", ROOT_NAMESPACE, "envoyfilters", self._pods_from_file()
        )

    def route(self, subset: str | None = None, **others: Any) -> dict[str, Any]:
        """A route of a VirtualService to the workload, or to a subset of its DestinationRule."""
        to = {"host": f"{self.workload}.{self.namespace}.svc.cluster.local"}
        named = {} if subset is None else {"subset": subset}
        destination = {**to, "port": {"number": ENGINE_PORT}, **named}
        return {"route": [{"destination": destination}], "retries": {"attempts": 0}, **others}

    def change_routes(self, *routes: Mapping[str, Any]) -> None:
        """Replace the routes of the VirtualService."""
        self._custom.patch_namespaced_custom_object(
            RULE_GROUP, RULE_VERSION, self.namespace, "virtualservices", self.workload,
            {"spec": {"http": list(routes)}},
        )  # fmt: skip

    def put_rule(
        self, name: str, spec: Mapping[str, Any], *, namespace: str = "", **metadata: Any
    ) -> None:
        """Create a DestinationRule, in the workload's namespace unless another is named."""
        if namespace:
            self._elsewhere.add((namespace, name))
        self._put("DestinationRule", RULES, name, spec, namespace=namespace, **metadata)

    def change_rule(self, name: str, spec: Mapping[str, Any], *, namespace: str = "") -> None:
        """Merge this into a DestinationRule's spec."""
        self._custom.patch_namespaced_custom_object(
            RULE_GROUP, RULE_VERSION, namespace or self.namespace, RULES, name, {"spec": spec}
        )

    def delete_rule(self, name: str, *, namespace: str = "") -> None:
        """Delete a DestinationRule."""
        self._custom.delete_namespaced_custom_object(
            RULE_GROUP, RULE_VERSION, namespace or self.namespace, RULES, name
        )
        self._elsewhere.discard((namespace, name))

    def settle(self) -> None:
        """Wait until every current DestinationRule has reached Envoy.

        Raises: RigError when that takes too long.
        """
        # istiod reads all rules in the order of their changes, and Envoy receives them in that
        # order. In the gateway's namespace no other rule replaces the rule of its Service.
        limit, name = next(_MARKS), f"{_MARK}-{self.namespace}"
        policy = {"connectionPool": {"http": {"http2MaxRequests": limit}}}
        spec = {"host": f"{_MARK}.{self.namespace}.svc.cluster.local", "trafficPolicy": policy}
        if (GATEWAY_NAMESPACE, name) in self._elsewhere:
            self.change_rule(name, spec, namespace=GATEWAY_NAMESPACE)
        else:
            self._create_service(_MARK)
            self.put_rule(name, spec, namespace=GATEWAY_NAMESPACE)
        wait_until(lambda: self.bound(service=_MARK) == limit, what="istiod tells Envoy of rules")

    def _create_service(self, name: str, selector: Mapping[str, str] | None = None) -> None:
        port = {"name": "http", "port": ENGINE_PORT, "targetPort": ENGINE_PORT}
        spec = {"selector": selector, "ports": [port]}
        self._core.create_namespaced_service(
            self.namespace, {"metadata": {"name": name}, "spec": spec}
        )

    def _put(
        self,
        kind: str,
        plural: str,
        name: str,
        spec: Mapping[str, Any],
        *,
        namespace: str = "",
        **metadata: Any,
    ) -> None:
        """Create one of Istio's objects."""
        self._custom.create_namespaced_custom_object(
            RULE_GROUP,
            RULE_VERSION,
            namespace or self.namespace,
            plural,
            {
                "apiVersion": f"{RULE_GROUP}/{RULE_VERSION}",
                "kind": kind,
                "metadata": {"name": name, **metadata},
                "spec": dict(spec),
            },
        )

    def start(self) -> None:
        """Start istiod and Envoy, and wait until it serves; Prometheus scrapes it from then on.

        Raises: RigError when one cannot be built, or does not serve in time.
        """
        tools = ensure_tools((versions.ISTIOD, versions.ENVOY))
        self._folder.path.mkdir(parents=True)
        mesh, ready = self._folder.path / "mesh.json", free_port()
        mesh.write_text(json.dumps(_MESH), encoding="utf-8")
        self._rig.run_process(
            self._process("istiod"),
            [
                str(tools[versions.ISTIOD.name]), "discovery",
                f"--kubeconfig={self._rig.admin_kubeconfig}", f"--meshConfig={mesh}",
                f"--grpcAddr=127.0.0.1:{self._stream}", f"--httpAddr=127.0.0.1:{ready}",
                f"--monitoringAddr=127.0.0.1:{free_port()}", f"--ctrlz_port={free_port()}",
                "--httpsAddr=", "--secureGRPCAddr=", "--shutdownDuration=0s",
            ],
            environment=_SETTINGS,
        ).wait_for(
            lambda: http_get(f"http://127.0.0.1:{ready}/ready") is not None,
            what="istiod is ready", timeout_seconds=_READY_SECONDS,
        )  # fmt: skip
        self._rig.run_process(
            self._process("pods"),
            [
                sys.executable, "-m", "servingslo_lab.rig.gateways.istio_pods",
                f"--kubeconfig={self._rig.admin_kubeconfig}", f"--namespace={self.namespace}",
                f"--service={self.workload}", f"--folder={self._folder.path}",
            ],
        ).wait_for(
            self._folder.resource("endpoints", cluster_name(self.namespace, self.workload)).exists,
            what="it is known where pods are", timeout_seconds=_READY_SECONDS,
        )  # fmt: skip
        self._folder.bootstrap.write_text(json.dumps(self._bootstrap()), encoding="utf-8")
        envoy = self._rig.run_process(
            self._process("envoy"),
            [
                str(tools[versions.ENVOY.name]), "-c", str(self._folder.bootstrap),
                "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning",
            ],
        )  # fmt: skip
        envoy.wait_for(
            lambda: self._cluster() is not None and self._listens(),
            what="Envoy has its cluster and its listener of istiod",
            timeout_seconds=_READY_SECONDS,
        )
        self._rig.scrape_proxy(self.scraped())

    def stop(self) -> None:
        """Stop Envoy and istiod, and remove this gateway's objects from Istio's namespaces."""
        for namespace, name in tuple(self._elsewhere):
            self.delete_rule(name, namespace=namespace)
        self._custom.delete_namespaced_custom_object(
            RULE_GROUP, "v1alpha3", ROOT_NAMESPACE, "envoyfilters", f"pods-{self.namespace}"
        )
        for part in ("envoy", "pods", "istiod"):
            self._rig.processes[self._process(part)].stop()

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return f"http://127.0.0.1:{self._port}"

    def scraped(self) -> ScrapedProxy:
        """The proxy as a PodMonitor would find it."""
        pod = f"ingress-{self.namespace}-0"
        labels = {"namespace": GATEWAY_NAMESPACE, "pod": pod, "container": "istio-proxy"}
        address = f"127.0.0.1:{self._folder.admin_port}"
        return ScrapedProxy(name=pod, address=address, path="/stats/prometheus", labels=labels)

    def bound(self, *, subset: str = "", service: str = "") -> int | None:
        """Requests in flight that Envoy allows now; None if there is no bound.

        subset: of a DestinationRule. service: the workload's unless stated.
        """
        cluster = self._cluster(subset, service) or {}
        thresholds = cluster.get("circuit_breakers", {}).get("thresholds", ())
        limit = next((one.get("max_requests") for one in thresholds), None)
        return None if limit == _UNBOUNDED else limit

    def counter(self, name: str, *, subset: str = "") -> float:
        """The current counter or gauge of the workload's cluster in Envoy; 0 if there is none.

        name: without `envoy_cluster_`. Raises: RigError when Envoy does not answer.
        """
        page = http_get(self._admin("/stats/prometheus"))
        if page is None:
            raise RigError("envoy: no answer")
        cluster = re.escape(cluster_name(self.namespace, self.workload, subset))
        pattern = rf'^envoy_cluster_{name}{{[^}}]*cluster_name="{cluster}"[^}}]*}} (\S+)$'
        return sum(float(found) for found in re.findall(pattern, page, re.MULTILINE))

    def _cluster(self, subset: str = "", service: str = "") -> dict[str, Any] | None:
        """A cluster made by istiod; None while Envoy does not know it."""
        page = http_get(self._admin("/config_dump?resource=dynamic_active_clusters"))
        wanted = cluster_name(self.namespace, service or self.workload, subset)
        for one in json.loads(page or "{}").get("configs", ()):
            found: dict[str, Any] = one["cluster"]
            if found["name"] == wanted:
                return found
        return None

    def _listens(self) -> bool:
        """Whether Envoy is ready; it is after it has the routes of its first listeners."""
        listeners = http_get(self._admin("/listeners")) or ""
        return (
            f"127.0.0.1:{self._port}" in listeners and http_get(self._admin("/ready")) is not None
        )

    def _admin(self, path: str) -> str:
        return f"http://127.0.0.1:{self._folder.admin_port}{path}"

    def _pods_from_file(self) -> dict[str, Any]:
        """An EnvoyFilter for every proxy: endpoints are read from a file."""
        name = cluster_name(self.namespace, self.workload)
        source = {
            "pathConfigSource": {"path": str(self._folder.resource("endpoints", name))},
            "resourceApiVersion": "V3",
        }
        change = {
            "applyTo": "CLUSTER",
            # Matched by host, so also for the clusters of subsets, which are in the same file.
            "match": {"context": "GATEWAY", "cluster": {"service": name.rpartition("|")[2]}},
            "patch": {
                "operation": "MERGE",
                "value": {"edsClusterConfig": {"edsConfig": source, "serviceName": name}},
            },
        }
        return {
            "apiVersion": f"{RULE_GROUP}/v1alpha3",
            "kind": "EnvoyFilter",
            "metadata": {"name": f"pods-{self.namespace}"},
            "spec": {"configPatches": [change]},
        }

    def _process(self, part: str) -> str:
        return f"istio-{part}-{self.namespace}"

    def _bootstrap(self) -> dict[str, Any]:
        """Like Istio's own template, except for encryption and the folder of its files."""
        stream = {"address": {"socketAddress": {"address": "127.0.0.1", "portValue": self._stream}}}
        ads = {"ads": {}, "resourceApiVersion": "V3", "initialFetchTimeout": "0s"}
        return {
            "node": {
                "id": f"router~127.0.0.1~ingress.{GATEWAY_NAMESPACE}"
                f"~{GATEWAY_NAMESPACE}.svc.cluster.local",
                "cluster": "ingress",
                "metadata": {
                    "NAMESPACE": GATEWAY_NAMESPACE, "LABELS": _LABELS, "CLUSTER_ID": "Kubernetes",
                },
            },
            "admin": {
                "address": {
                    "socketAddress": {
                        "address": "127.0.0.1", "portValue": self._folder.admin_port,
                    }
                }
            },
            "statsConfig": {
                "useAllDefaultTags": False,
                "statsTags": [{"tagName": "cluster_name", "regex": "^cluster(\\.(.+);)"}],
            },
            "dynamicResources": {
                "ldsConfig": ads,
                "cdsConfig": ads,
                "adsConfig": {
                    "apiType": "GRPC",
                    "setNodeOnFirstMessageOnly": True,
                    "transportApiVersion": "V3",
                    "grpcServices": [{"envoyGrpc": {"clusterName": "xds-grpc"}}],
                },
            },
            "staticResources": {
                "clusters": [
                    {
                        "name": "xds-grpc",
                        "type": "STATIC",
                        "connectTimeout": "1s",
                        "loadAssignment": {
                            "clusterName": "xds-grpc",
                            "endpoints": [{"lbEndpoints": [{"endpoint": stream}]}],
                        },
                        "typedExtensionProtocolOptions": {
                            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3."
                                "HttpProtocolOptions",
                                "explicitHttpConfig": {"http2ProtocolOptions": {}},
                            }
                        },
                    }
                ]
            },
        }  # fmt: skip
