"""A virtual gateway in front of the engines: routes, policies, and an Envoy's counters of them.

Objects are kept as an API server keeps them, so that the operator's own readers and writers of them
are used, with the faults of the story's server. Requests follow the weights and bounds in force.
"""

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from tests.chaos.cluster import Cluster
from tests.chaos.prometheus import NAMESPACE, SCRAPE_SECONDS

from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.adapters.kubernetes.gateways.limits import BACKEND_TRAFFIC_POLICY, limit_holders
from servingslo.controller.actuators.gateway_limits import GatewayLimits
from servingslo.errors import ClusterUnavailableError, InvalidObjectError, NotFoundError
from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.policy.inputs import LimitKind
from servingslo.policy.ports import ClusterMetrics
from servingslo.runtimes.gateways import CountedWhen

MANAGED = {"servingslo.dev/managed": "true"}
CHAT, JOB, ROUTE, SMALL = "chat", "job", "llama", "small"
# Of all requests, if there are classes.
JOB_PART = 1.0 / 3.0
MOST_SHARE = 0.5
# What the owners state before the operator comes.
OWN_WEIGHTS, OWN_LIMIT = (1, 0), 400
_FORM = BACKEND_TRAFFIC_POLICY
_POLICIES = api_path(_FORM.api_version, _FORM.plural, namespace=NAMESPACE)
_ROUTES = api_path("gateway.networking.k8s.io/v1", "httproutes", namespace=NAMESPACE)


def classes_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with two classes, whose lanes are written."""
    classes = [{"name": CHAT, "route": CHAT}, {"name": JOB, "route": JOB, "priority": -10}]
    return {**spec, "admission": {"mode": "Auto"}, "classes": classes}


def degradation_of(spec: Mapping[str, Any], most: int) -> dict[str, Any]:
    """The spec with a fallback, a bound, and so few replicas that the fallback is needed."""
    via = {"kind": "BackendTrafficPolicy", "name": ROUTE}
    wanted = {"route": ROUTE, "fallback": SMALL, "maxShare": MOST_SHARE}
    # A floor of more replicas than that would be refused.
    stated = {name: value for name, value in spec.items() if name != "fallback"}
    return {
        **stated,
        "replicas": {"min": 1, "max": most},
        "admission": {"mode": "Auto", "via": via},
        "degradation": wanted,
    }


@dataclass
class Objects:
    """What the operator's client needs of an API server: objects by path, JSON Patch with tests."""

    cluster: Cluster
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 1

    def put(self, path: str, name: str, spec: Mapping[str, Any]) -> None:
        """An object that its owner labelled."""
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{path}/{name}",
                    "resourceVersion": "1", "labels": dict(MANAGED)}  # fmt: skip
        self.items[f"{path}/{name}"] = {"metadata": metadata, "spec": copy.deepcopy(dict(spec))}

    async def get(self, path: str, _query: object = None) -> dict[str, Any]:
        """One object, or a list of one kind."""
        self.cluster._request()
        if path in self.items:
            return copy.deepcopy(self.items[path])
        plural = path.rpartition("/")[2]
        found = [one for at, one in self.items.items() if f"/{plural}/" in at]
        if not found:
            raise NotFoundError(path)
        return {"items": copy.deepcopy(found)}

    async def patch(
        self, path: str, changes: Sequence[Mapping[str, Any]], _kind: object, **_: object
    ) -> dict[str, Any]:
        """A JSON Patch: all of it, or none where a test does not hold."""
        self.cluster.at_point("write")
        cut = self.cluster._request(writes=True)
        if path not in self.items:
            raise NotFoundError(path)
        changed = copy.deepcopy(self.items[path])
        for one in changes:
            _apply(changed, one)
        self.cluster.pass_to(self.cluster.now)
        self.version += 1
        changed["metadata"]["resourceVersion"] = str(self.version)
        self.items[path] = changed
        self.cluster.at_point("written")
        if cut:
            raise ClusterUnavailableError("connection reset")
        return copy.deepcopy(changed)


def _apply(item: dict[str, Any], change: Mapping[str, Any]) -> None:
    keys = [key.replace("~1", "/") for key in change["path"].split("/")[1:]]
    inner: Any = item
    for key in keys[:-1]:
        inner = inner[int(key)] if isinstance(inner, list) else inner[key]
    match change["op"]:
        case "test":
            if inner[keys[-1]] != change["value"]:
                raise InvalidObjectError(f"{change['path']} is {inner[keys[-1]]}")
        case "add":
            inner[keys[-1]] = change["value"]
        case "remove":
            del inner[keys[-1]]


class _Reaches:
    """Every route leads to this workload, and the fallback serves."""

    async def check(self, *_: object) -> None:
        """It does."""

    async def check_serves(self, *_: object) -> None:
        """It does."""


class Gateway:
    """Routes of one workload, and what Envoy counted of each.

    kind: classes or degradation. refused: requests of a class that its lane kept out. broken: what
    the operator left wrong at some time, for the checker. permitted: by the administrator, to a
    process that starts.
    """

    def __init__(self, cluster: Cluster, kind: str, rng: random.Random) -> None:
        self.cluster, self.kind, self.rng = cluster, kind, rng
        self.objects = Objects(cluster)
        self.names = (CHAT, JOB) if kind == "classes" else (ROUTE,)
        limit = {"circuitBreaker": {"maxParallelRequests": OWN_LIMIT}}
        for name in self.names:
            target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name}
            own = limit if rng.random() < 0.5 else {}
            self.objects.put(_POLICIES, name, {"targetRefs": [target], **own})
        marked = {"port": 8000, "filters": [{"type": "ResponseHeaderModifier"}]}
        backends = [{"name": ROUTE, "weight": 1, **marked}, {"name": SMALL, "weight": 0, **marked}]
        self.objects.put(_ROUTES, ROUTE, {"rules": [{"backendRefs": backends}]})
        self.owned = copy.deepcopy(self.specs())
        self.passed = dict.fromkeys(self.names, 0.0)
        self.refused = dict.fromkeys(self.names, 0.0)
        self.there, self._until = 0.0, 0.0
        self.broken: list[str] = []
        self.permitted = True
        self._follow(cluster.world)

    def specs(self) -> dict[str, Any]:
        """The spec of each object."""
        return {path: one["spec"] for path, one in self.objects.items.items()}

    @property
    def actuators(self) -> tuple[Any, ...]:
        """The operator's own, on these objects."""
        kind = LimitKind.BACKEND_TRAFFIC_POLICY
        holders = limit_holders(self.objects, BACKEND_TRAFFIC_POLICY)
        kinds = frozenset({kind} if self.permitted else ())
        limits = GatewayLimits({kind: (holders, _Reaches())}, kinds)
        # Of the feature in play alone: the other one may be gone.
        own = import_module(f"servingslo.features.{self.kind}.actuator")
        if self.kind == "classes":
            return (limits, own.Lanes(limits))
        weights = own.weighted_routes(self.objects)
        return (own.RouteWeights(weights, _Reaches(), enabled=self.permitted), limits)

    def limit(self, name: str) -> int | None:
        """The bound of a policy."""
        spec = self.objects.items[f"{_POLICIES}/{name}"]["spec"]
        return (spec.get("circuitBreaker") or {}).get("maxParallelRequests")

    @property
    def weights(self) -> tuple[int, ...]:
        """Of the route's backends."""
        spec = self.objects.items[f"{_ROUTES}/{ROUTE}"]["spec"]
        return tuple(one["weight"] for one in spec["rules"][0]["backendRefs"])

    @property
    def share(self) -> float:
        """Of the requests, to the fallback."""
        return self.weights[1] / sum(self.weights)

    def added(self, metrics: ClusterMetrics) -> ClusterMetrics:
        """The reading with the gateway's counts, where Prometheus answers."""
        prometheus = self.cluster.prometheus
        if metrics.problem is not None or prometheus.scrapes_stop:
            return replace(metrics, gateways={})
        gateways = {(NAMESPACE, name): self._sample(name) for name in self.names}
        backends = {}
        if self.weights[1]:
            there = replace(
                self._instance(ROUTE), requests_total=self.there, rejected_total=0.0, active=0.0
            )
            ended = replace(there, failed_total=0.0, ended_total=self.there,
                            ended_milliseconds_total=2000.0 * self.there)  # fmt: skip
            sample = GatewaySample(counted=CountedWhen.PASSED_ON, instances=(ended,))
            backends[NAMESPACE, ROUTE, 0, 1] = sample
        return replace(metrics, gateways=gateways, backends=backends)

    def check(self, at: float) -> None:
        """What must hold of the objects at any time, whatever goes wrong."""
        if self.share > MOST_SHARE or not sum(self.weights):
            self.broken.append(f"t={at:.0f} weights {self.weights}")
        if self.kind != "classes":
            return
        chat, job = (self._written(name) for name in (CHAT, JOB))
        if chat is not None and job is not None and job > chat:
            self.broken.append(f"t={at:.0f} lane of {JOB} {job} above that of {CHAT} {chat}")

    def _written(self, name: str) -> int | None:
        """The bound of a policy if it is the operator's."""
        item = self.objects.items[f"{_POLICIES}/{name}"]
        return self.limit(name) if item["metadata"].get("annotations") else None

    def left(self) -> list[str]:
        """Objects that are not as their owners had them."""
        now = self.specs()
        return [
            f"{path.rpartition('/')[2]} is {now[path]}, not {spec}"
            for path, spec in self.owned.items()
            if now[path] != spec or self.objects.items[path]["metadata"].get("annotations")
        ]

    def _follow(self, world: Any) -> None:
        """Requests of the world pass this gateway."""
        whole, offer = world.rate, world.service.offer
        of_chat = 1.0 - JOB_PART if self.kind == "classes" else 1.0

        def rate(seconds: float) -> float:
            return (1.0 - self.share) * whole(seconds) / of_chat

        def passed(**request: Any) -> Any:
            name = self.names[0] if self.rng.random() < of_chat else self.names[-1]
            limit = self.limit(name)
            if limit is not None and self._in_flight(name) >= limit:
                self.refused[name] += 1.0
                return None
            self.passed[name] += 1.0
            return offer(**request)

        self._whole = whole
        world.rate, world.service.offer = rate, passed

    def _in_flight(self, name: str) -> float:
        """By the class's part of what passed: engines know no classes."""
        total = sum(self.passed.values())
        part = self.passed[name] / total if total else 1.0 / len(self.names)
        return part * sum(engine.in_system for engine in self.cluster.engines.values())

    def _sample(self, name: str) -> GatewaySample:
        return GatewaySample(counted=CountedWhen.PASSED_ON, instances=(self._instance(name),))

    def _instance(self, name: str) -> GatewayInstance:
        now = self.cluster.now
        while self._until < now:
            step = min(SCRAPE_SECONDS, now - self._until)
            self.there += step * self.share * self._whole(self._until)
            self._until += step
        there = self.there if name == ROUTE else 0.0
        return GatewayInstance(
            name="envoy",
            age_seconds=0.0,
            requests_total=self.passed[name] + self.refused[name] + there,
            rejected_total=self.refused[name],
            queued=0.0,
            active=self._in_flight(name),
        )
