"""Write Envoy's files from the output of Envoy Gateway's own translator.

Envoy Gateway sends its resources over gRPC; here the same resources are in files. Only four things
change: the source of a resource (a file instead of the stream), the listeners' addresses
(loopback), their access log, and the endpoints. The translator routes to a Service's own address
(routingType Service). It is replaced by its pods' addresses, or without pods by one that refuses,
like kube-proxy.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Resource = dict[str, Any]
Address = tuple[str, int]
# Nothing listens on loopback's port 1 (tcpmux).
_REFUSING: Address = ("127.0.0.1", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The translator's output for one Gateway. bootstrap: settings of the whole proxy."""

    bootstrap: Resource
    clusters: tuple[Resource, ...]
    listeners: tuple[Resource, ...]
    routes: tuple[Resource, ...]
    endpoints: tuple[Resource, ...]


def translation_of(dump: Mapping[str, Any]) -> Translation:
    """One Gateway's part of the translator's answer. Raises: KeyError when parts are missing."""
    parts = {one["@type"].rpartition(".")[2]: one for one in dump["configs"]}
    listeners = [
        one["activeState"]["listener"]
        for one in parts["ListenersConfigDump"].get("dynamicListeners", ())
    ]
    return Translation(
        bootstrap=parts["BootstrapConfigDump"]["bootstrap"],
        clusters=tuple(
            one["cluster"] for one in parts["ClustersConfigDump"].get("dynamicActiveClusters", ())
        ),
        listeners=tuple(one for one in listeners if "defaultFilterChain" in one),
        routes=tuple(
            one["routeConfig"] for one in parts["RoutesConfigDump"].get("dynamicRouteConfigs", ())
        ),
        endpoints=tuple(
            one["endpointConfig"]
            for one in parts["EndpointsConfigDump"].get("dynamicEndpointConfigs", ())
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyFolder:
    """The folder of one proxy, and the port of its admin interface."""

    path: Path
    admin_port: int

    @property
    def bootstrap(self) -> Path:
        """Envoy's start-up configuration."""
        return self.path / "bootstrap.json"

    def resource(self, kind: str, name: str) -> Path:
        """The file of one route table or of one cluster's endpoints; one resource a file."""
        return self.path / f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"

    def write_bootstrap(self, found: Resource) -> None:
        """Envoy Gateway's own settings of statistics and runtime; everything else from files."""
        kept = ("deferredStatOptions", "layeredRuntime", "statsConfig")
        document = {
            **{name: found[name] for name in kept if name in found},
            "node": {"id": self.path.name, "cluster": "rig"},
            "admin": {"address": _socket(("127.0.0.1", self.admin_port))},
            "dynamicResources": {
                "cdsConfig": _from_file(self.path / "clusters.json"),
                "ldsConfig": _from_file(self.path / "listeners.json"),
            },
        }
        self.path.mkdir(parents=True, exist_ok=True)
        self.bootstrap.write_text(json.dumps(document), encoding="utf-8")

    def write(self, found: Translation, port_of: Callable[[int], int]) -> None:
        """Write clusters, routes and listeners, in an order that drops no request.

        port_of: the loopback port of a listener's own port.
        """
        clusters = [self._cluster(one) for one in found.clusters]
        _move_into(self.path / "clusters.json", clusters)
        for one in found.routes:
            _move_into(self.resource("routes", one["name"]), [one])
        listeners = [self._listener(one, port_of) for one in found.listeners]
        _move_into(self.path / "listeners.json", listeners)

    def write_endpoints(self, resources: Iterable[Resource]) -> None:
        """Write each cluster's endpoints."""
        for one in resources:
            _move_into(self.resource("endpoints", one["clusterName"]), [one])

    def _cluster(self, cluster: Resource) -> Resource:
        if cluster.get("type") != "EDS":
            return cluster
        name = cluster["edsClusterConfig"]["serviceName"]
        source = _from_file(self.resource("endpoints", name))
        return {**cluster, "edsClusterConfig": {"edsConfig": source, "serviceName": name}}

    def _listener(self, listener: Resource, port_of: Callable[[int], int]) -> Resource:
        own = listener["address"]["socketAddress"]["portValue"]
        chain = listener["defaultFilterChain"]
        return {
            **{name: value for name, value in listener.items() if name != "accessLog"},
            "address": _socket(("127.0.0.1", port_of(own))),
            "defaultFilterChain": {**chain, "filters": list(map(self._filter, chain["filters"]))},
        }

    def _filter(self, found: Resource) -> Resource:
        config = {name: v for name, v in found["typedConfig"].items() if name != "accessLog"}
        if "rds" in config:
            name = config["rds"]["routeConfigName"]
            source = _from_file(self.resource("routes", name))
            config["rds"] = {"configSource": source, "routeConfigName": name}
        return {**found, "typedConfig": config}


def with_endpoints(
    resource: Resource, addresses_of: Callable[[Mapping[str, Any]], Iterable[Address]]
) -> Resource:
    """A cluster's endpoints, with each Service's real addresses instead of the translator's.

    addresses_of: the addresses for the metadata's reference to a Service (namespace, name, port as
    sectionName). If there are none, an address that refuses is used.
    """
    return {
        **resource,
        "endpoints": [
            {
                **group,
                "lbEndpoints": [
                    _endpoint(one) for one in list(addresses_of(_service(group))) or [_REFUSING]
                ],
            }
            for group in resource.get("endpoints", ())
        ],
    }


def _service(group: Resource) -> Mapping[str, Any]:
    references: list[Mapping[str, Any]] = group["metadata"]["filterMetadata"]["envoy-gateway"][
        "resources"
    ]
    return next(one for one in references if one["kind"] == "Service")


def _endpoint(address: Address) -> Resource:
    return {"endpoint": {"address": _socket(address)}, "loadBalancingWeight": 1}


def _socket(address: Address) -> Resource:
    return {"socketAddress": {"address": address[0], "portValue": address[1]}}


def _from_file(path: Path) -> Resource:
    return {"pathConfigSource": {"path": str(path)}, "resourceApiVersion": "V3"}


def _move_into(path: Path, resources: list[Resource]) -> None:
    """Replace a file by moving: Envoy rereads a file only after a move."""
    version = hashlib.sha256(json.dumps(resources, sort_keys=True).encode()).hexdigest()[:16]
    document = {"versionInfo": version, "resources": resources}
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        json.dump(document, file)
    Path(file.name).replace(path)
