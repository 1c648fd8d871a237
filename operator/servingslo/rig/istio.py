"""A real istiod and a real Envoy in front of the rig's engines, for a DestinationRule's bound.

istiod reads its objects from the API server and sends Envoy everything over its own stream: what a
DestinationRule says is what Envoy enforces, and nothing here reads or writes a limit. Only where
pods are is read from a file, as an EnvoyFilter of the rig says: the API server takes no
EndpointSlice with an address of loopback. This module keeps that file as a process of its own:

    python -m servingslo.rig.istio --kubeconfig FILE --namespace N --service NAME --folder DIR
"""

import argparse
import asyncio
import contextlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes
from kubernetes.aio import client
from kubernetes.aio.config import load_kube_config

from servingslo.errors import RigError
from servingslo.rig import versions
from servingslo.rig.build import ensure_tools
from servingslo.rig.cluster import Rig
from servingslo.rig.envoy_files import EnvoyFolder
from servingslo.rig.gateway_objects import GatewayObjects, fingerprint
from servingslo.rig.prometheus import ScrapedProxy
from servingslo.rig.upstream_crds import ISTIO, install_crds
from servingslo.rig.waiting import free_port, http_get, until_signalled

ENGINE_PORT = 8000
RULE_GROUP, RULE_VERSION, RULES = "networking.istio.io", "v1", "destinationrules"
_NAMESPACE = "istio-system"
_LABELS = {"istio": "ingressgateway"}
# What istiod writes where a rule states no bound: the largest that Envoy takes.
_UNBOUNDED = 2**32 - 1
_LOOK_SECONDS = 0.25
_READY_SECONDS = 60.0
_UNREACHABLE = (client.ApiException, OSError, asyncio.TimeoutError, client.rest.aiohttp.ClientError)
# Filters that only Istio's own build of Envoy has are left out, and encryption between proxies.
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
    "POD_NAMESPACE": _NAMESPACE,
}


def cluster_name(namespace: str, service: str) -> str:
    """What istiod calls the cluster of a Service's port."""
    return f"outbound|{ENGINE_PORT}||{service}.{namespace}.svc.cluster.local"


class IstioFront:
    """An ingress gateway of Istio that sends everything to the pods of one workload."""

    def __init__(self, rig: Rig, namespace: str) -> None:
        self._rig = rig
        self.namespace = namespace
        self.workload = ""
        self._custom = kubernetes.client.CustomObjectsApi(rig.api_client())
        self._core = kubernetes.client.CoreV1Api(rig.api_client())
        self._folder = EnvoyFolder(path=rig.work_dir / f"istio-{namespace}", admin_port=free_port())
        self._port, self._stream = free_port(), free_port()

    def create(self, workload: str) -> None:
        """Put a Service, a Gateway and a VirtualService of a workload there, by its label `app`."""
        install_crds(self._rig.api_client(), ISTIO)
        names = {one.metadata.name for one in self._core.list_namespace().items}
        if _NAMESPACE not in names:
            self._rig.create_namespace(_NAMESPACE)
        self.workload = workload
        port = {"name": "http", "port": ENGINE_PORT, "targetPort": ENGINE_PORT}
        self._core.create_namespaced_service(
            self.namespace,
            {
                "metadata": {"name": workload},
                "spec": {"selector": {"app": workload}, "ports": [port]},
            },
        )
        listener = {"number": self._port, "name": "http", "protocol": "HTTP"}
        server = {"port": listener, "bind": "127.0.0.1", "hosts": ["*"]}
        self._put("Gateway", "gateways", "gate", {"selector": _LABELS, "servers": [server]})
        host = {"host": workload, "port": {"number": ENGINE_PORT}}
        self._put(
            "VirtualService",
            "virtualservices",
            workload,
            {
                "hosts": ["*"],
                "gateways": ["gate"],
                "http": [{"route": [{"destination": host}], "retries": {"attempts": 0}}],
            },
        )
        self._custom.create_namespaced_custom_object(
            RULE_GROUP, "v1alpha3", _NAMESPACE, "envoyfilters", self._pods_from_file()
        )

    def put_rule(self, name: str, spec: Mapping[str, Any], **metadata: Any) -> None:
        """Create a DestinationRule."""
        self._put("DestinationRule", RULES, name, spec, **metadata)

    def delete_rule(self, name: str) -> None:
        """Delete a DestinationRule."""
        self._custom.delete_namespaced_custom_object(
            RULE_GROUP, RULE_VERSION, self.namespace, RULES, name
        )

    def _put(
        self,
        kind: str,
        plural: str,
        name: str,
        spec: Mapping[str, Any],
        **metadata: Any,
    ) -> None:
        """Create one of Istio's objects in the workload's namespace."""
        self._custom.create_namespaced_custom_object(
            RULE_GROUP,
            RULE_VERSION,
            self.namespace,
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
                sys.executable, "-m", "servingslo.rig.istio",
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
            lambda: self._bounds() is not None and self._listens(),
            what="Envoy has its cluster and its listener of istiod",
            timeout_seconds=_READY_SECONDS,
        )
        self._rig.scrape_proxy(self.scraped())

    def stop(self) -> None:
        """Stop Envoy and istiod, and leave nothing of this gateway in Istio's namespace."""
        self._custom.delete_namespaced_custom_object(
            RULE_GROUP, "v1alpha3", _NAMESPACE, "envoyfilters", f"pods-{self.namespace}"
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
        labels = {"namespace": _NAMESPACE, "pod": pod, "container": "istio-proxy"}
        address = f"127.0.0.1:{self._folder.admin_port}"
        return ScrapedProxy(name=pod, address=address, path="/stats/prometheus", labels=labels)

    def bound(self) -> int | None:
        """Requests in flight that Envoy allows by now; None where there is no bound."""
        bounds = self._bounds()
        limit = bounds[0].get("max_requests") if bounds else None
        return None if limit == _UNBOUNDED else limit

    def counter(self, name: str) -> float:
        """A counter or gauge of the workload's cluster as Envoy tells it; 0 where there is none.

        name: without `envoy_cluster_`. Raises: RigError when Envoy does not answer.
        """
        page = self._ask("/stats/prometheus")
        cluster = re.escape(cluster_name(self.namespace, self.workload))
        pattern = rf'^envoy_cluster_{name}{{[^}}]*cluster_name="{cluster}"[^}}]*}} (\S+)$'
        return sum(float(found) for found in re.findall(pattern, page, re.MULTILINE))

    def _bounds(self) -> list[dict[str, Any]] | None:
        """Envoy's thresholds of the workload's cluster; None while it does not know the cluster."""
        page = http_get(
            f"http://127.0.0.1:{self._folder.admin_port}/config_dump?resource=dynamic_active_clusters"
        )
        if page is None:
            return None
        wanted = cluster_name(self.namespace, self.workload)
        for one in json.loads(page).get("configs", ()):
            if one["cluster"]["name"] == wanted:
                found: list[dict[str, Any]] = one["cluster"]["circuit_breakers"]["thresholds"]
                return found
        return None

    def _listens(self) -> bool:
        return f"127.0.0.1:{self._port}" in self._ask("/listeners")

    def _ask(self, path: str) -> str:
        page = http_get(f"http://127.0.0.1:{self._folder.admin_port}{path}")
        if page is None:
            raise RigError("envoy: no answer")
        return page

    def _pods_from_file(self) -> dict[str, Any]:
        """An EnvoyFilter, of the gateway's own namespace: endpoints are read from a file."""
        name = cluster_name(self.namespace, self.workload)
        source = {
            "pathConfigSource": {"path": str(self._folder.resource("endpoints", name))},
            "resourceApiVersion": "V3",
        }
        change = {
            "applyTo": "CLUSTER",
            "match": {"context": "GATEWAY", "cluster": {"name": name}},
            "patch": {
                "operation": "MERGE",
                "value": {"edsClusterConfig": {"edsConfig": source}},
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
        """As Istio's own template has it, but for encryption and the folder of its files."""
        stream = {"address": {"socketAddress": {"address": "127.0.0.1", "portValue": self._stream}}}
        ads = {"ads": {}, "resourceApiVersion": "V3", "initialFetchTimeout": "0s"}
        return {
            "node": {
                "id": f"router~127.0.0.1~ingress.{_NAMESPACE}~{_NAMESPACE}.svc.cluster.local",
                "cluster": "ingress",
                "metadata": {
                    "NAMESPACE": _NAMESPACE, "LABELS": _LABELS, "CLUSTER_ID": "Kubernetes",
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


async def _follow(kubeconfig: str, namespace: str, service: str, folder: EnvoyFolder) -> None:
    """Keep the file with the addresses of Ready pods; outages leave it as it was."""
    configuration = client.Configuration()
    await load_kube_config(kubeconfig, client_configuration=configuration)
    configuration.proxy = None  # proxy settings of the environment are not for loopback
    name, written = cluster_name(namespace, service), ""
    async with client.ApiClient(configuration) as api:
        core = client.CoreV1Api(api)
        while True:
            with contextlib.suppress(*_UNREACHABLE):
                services = (await core.list_namespaced_service(namespace)).items
                found = GatewayObjects(
                    translated=(),
                    services={one.metadata.name: one for one in services},
                    pods=tuple((await core.list_namespaced_pod(namespace)).items),
                )
                resource = _endpoints(
                    name, found.addresses({"name": service, "sectionName": ENGINE_PORT})
                )
                if (print_of := fingerprint([resource])) != written:
                    folder.write_endpoints([resource])
                    written = print_of
            await asyncio.sleep(_LOOK_SECONDS)


def _endpoints(name: str, addresses: list[tuple[str, int]]) -> dict[str, Any]:
    return {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "clusterName": name,
        "endpoints": [
            {
                "lbEndpoints": [
                    {
                        "endpoint": {
                            "address": {"socketAddress": {"address": address, "portValue": port}}
                        }
                    }
                    for address, port in addresses
                ]
            }
        ],
    }


def main() -> None:
    """Keep the file of one Service's pods as a process."""
    parser = argparse.ArgumentParser(
        description="Where pods are, for an Envoy that istiod configures."
    )
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--service", required=True)
    parser.add_argument("--folder", required=True, type=Path, help="for Envoy's files")
    given = parser.parse_args()
    folder = EnvoyFolder(path=given.folder, admin_port=0)
    asyncio.run(until_signalled(_follow(given.kubeconfig, given.namespace, given.service, folder)))


if __name__ == "__main__":
    main()
