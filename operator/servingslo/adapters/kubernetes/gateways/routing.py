"""Whether Envoy Gateway keeps a workload's cluster without pods: routingType Service.

By default, Envoy Gateway routes to the pods' addresses. It removes the cluster from Envoy with the
last pod, and then nothing counts arrivals. Unreadable or unclear settings count as not kept.
Source: Envoy Gateway v1.9.1, internal/gatewayapi: IsServiceRouting (a policy before EnvoyProxy,
else endpoints), policyIndex.Lookup (rule, route, listener, Gateway; a route's policy without
mergeType is used alone, without the Gateway's). Defaults in Envoy Gateway's own configuration are
not known here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.cache import listed
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.paths import ApiPath, api_path
from servingslo.errors import ClusterError, NotFoundError

_POLICIES = "gateway.envoyproxy.io/v1alpha1"
_ROUTES = "gateway.networking.k8s.io/v1"
_KINDS = (("HTTPRoute", "httproutes"), ("GRPCRoute", "grpcroutes"))
_SERVICE, _REPLACES = "Service", "Replace"
# Results are cached this long, so most ticks need no request to the API server.
_REMEMBERED_SECONDS = 30.0
_SAY = "set routingType: Service in its BackendTrafficPolicy"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stated:
    """A policy for an object. whole: whether it is known to be for the whole object."""

    routing: str | None
    inherits: bool
    whole: bool


class GatewayRouting:
    """Reads routes, their policies, Gateways and EnvoyProxies; writes nothing."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._found: dict[tuple[str, str], tuple[float, str]] = {}

    async def not_kept(self, namespace: str, name: str) -> str:
        """Why requests to a route would not be counted without a pod; '' if they would."""
        now_seconds = SystemClock.elapsed_seconds()
        known = self._found.get((namespace, name))
        if known is not None and now_seconds - known[0] < _REMEMBERED_SECONDS:
            return known[1]
        try:
            found = await self._look(namespace, name)
        except ClusterError as error:
            found = f"how requests to {name} are routed cannot be read ({error}): {_SAY}"
        recent = {
            key: one
            for key, one in self._found.items()
            if now_seconds - one[0] < _REMEMBERED_SECONDS
        }
        self._found = {**recent, (namespace, name): (now_seconds, found)}
        return found

    async def _look(self, namespace: str, name: str) -> str:
        routes = [
            (kind, route)
            for kind, plural in _KINDS
            if (route := await self._get(api_path(_ROUTES, plural, namespace=namespace, name=name)))
        ]
        if not routes:
            return f"no HTTPRoute or GRPCRoute is named {name} in this namespace"
        for kind, route in routes:
            for backend in _backends(route):
                if backend.get("group") or backend.get("kind", _SERVICE) != _SERVICE:
                    return f"{kind}/{name} leads to {backend.get('kind')}/{backend['name']}"
            if not await self._keeps(kind, route):
                return f"{kind}/{name} is routed to pods' addresses: {_SAY}"
        return ""

    async def _keeps(self, kind: str, route: KubeObject) -> bool:
        own = await self._stated(kind, route)
        if (said := _verdict(own)) is not None:
            return said
        inherits = all(one.inherits for one in own)
        namespace = route["metadata"]["namespace"]
        parents = route["spec"].get("parentRefs") or ()
        for parent in parents:
            if parent.get("kind", "Gateway") != "Gateway":
                return False
            where = parent.get("namespace", namespace), parent["name"]
            if where[0] != namespace and not _is_accepted(route, where):
                return False
            if not await self._gateway_keeps(*where, inherits=inherits):
                return False
        return bool(parents)

    async def _gateway_keeps(self, namespace: str, name: str, *, inherits: bool) -> bool:
        """Whether a Gateway keeps the cluster. inherits: its policy applies to the route."""
        gateway = await self._get(api_path(_ROUTES, "gateways", namespace=namespace, name=name))
        if gateway is None:
            return False
        if inherits:
            said = _verdict(await self._stated("Gateway", gateway))
            if said is not None:
                return said
        of_class = gateway["spec"]["gatewayClassName"]
        found = await self._get(api_path(_ROUTES, "gatewayclasses", name=of_class))
        shared = await self._proxy((found or {"spec": {}})["spec"].get("parametersRef"))
        reference = (gateway["spec"].get("infrastructure") or {}).get("parametersRef")
        proxy = shared
        if reference is not None and not shared.get("mergeGateways"):
            own = await self._proxy({**reference, "namespace": namespace})
            proxy = own if own.get("mergeType", _REPLACES) == _REPLACES else {**shared, **own}
        return bool(proxy.get("routingType") == _SERVICE)

    async def _proxy(self, reference: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The spec of an EnvoyProxy; empty if it is of another kind or missing."""
        namespace = (reference or {}).get("namespace")
        if reference is None or reference["kind"] != "EnvoyProxy" or namespace is None:
            return {}
        path = api_path(_POLICIES, "envoyproxies", namespace=namespace, name=reference["name"])
        proxy = await self._get(path)
        return {} if proxy is None else proxy.get("spec") or {}

    async def _stated(self, kind: str, target: KubeObject) -> list[_Stated]:
        namespace = target["metadata"]["namespace"]
        path = api_path(_POLICIES, "backendtrafficpolicies", namespace=namespace)
        found = (await listed(self._client, path)).items
        return [stated for policy in found for stated in _stated_by(policy, kind, target)]

    async def _get(self, path: ApiPath) -> KubeObject | None:
        try:
            return await self._client.get(path)
        except NotFoundError:
            return None


def _verdict(found: Sequence[_Stated]) -> bool | None:
    """The decision of an object's policies for the whole object; None if they decide nothing."""
    said = {one.routing for one in found}
    if said - {None, _SERVICE}:
        return False
    return True if said == {_SERVICE} and any(one.whole for one in found) else None


def _stated_by(policy: KubeObject, kind: str, target: KubeObject) -> Iterator[_Stated]:
    spec: Mapping[str, Any] = policy["spec"]
    single = (spec["targetRef"],) if "targetRef" in spec else ()
    named = [
        bool(ref.get("sectionName"))
        for ref in (*(spec.get("targetRefs") or ()), *single)
        if (ref.get("kind"), ref.get("name")) == (kind, target["metadata"]["name"])
    ]
    labels: Mapping[str, str] = target["metadata"].get("labels") or {}
    chosen = [
        # Only the gateway evaluates expressions.
        bool(entry.get("matchExpressions"))
        for entry in spec.get("targetSelectors") or ()
        if entry.get("kind") == kind and (entry.get("matchLabels") or {}).items() <= labels.items()
    ]
    for in_part in (*named, *chosen):
        yield _Stated(
            routing=spec.get("routingType"),
            inherits=bool(spec.get("mergeType")),
            whole=not in_part and not _is_refused(policy),
        )


def _is_refused(policy: KubeObject) -> bool:
    """Whether the gateway rejects a policy, from the policy's status."""
    return any(
        (one.get("type"), one.get("status")) == ("Accepted", "False")
        for ancestor in (policy.get("status") or {}).get("ancestors") or ()
        for one in ancestor.get("conditions") or ()
    )


def _is_accepted(route: KubeObject, gateway: tuple[str, str]) -> bool:
    """Whether a Gateway, by namespace and name, accepts the route, from the route's status.

    A tenant may name any Gateway; whose listeners do not admit the route is not for them to see.
    """
    namespace = route["metadata"]["namespace"]
    return any(
        (one["parentRef"].get("namespace", namespace), one["parentRef"]["name"]) == gateway
        and condition.get("type") == "Accepted"
        and condition.get("status") == "True"
        for one in (route.get("status") or {}).get("parents") or ()
        for condition in one.get("conditions") or ()
    )


def _backends(route: KubeObject) -> Iterator[Mapping[str, Any]]:
    for rule in route["spec"].get("rules") or ():
        yield from rule.get("backendRefs") or ()
