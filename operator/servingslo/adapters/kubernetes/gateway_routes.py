"""Whether a policy's bound reaches a workload, and it alone: the policy's targets, route, Services.

Source: Envoy Gateway v1.9.1, BackendTrafficPolicy: `targetRefs`, `targetSelectors`, `mergeType`;
on routes to an InferencePool the circuit breaker stays at its default (envoyproxy/gateway#9997).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.gateway_limits import PolicyObject
from servingslo.adapters.kubernetes.timestamps import seconds_from_timestamp
from servingslo.errors import LimitNotEnforceableError, NotFoundError

_ROUTE_GROUP, _ROUTE_KIND = "gateway.networking.k8s.io", "HTTPRoute"
_ROUTES = f"/apis/{_ROUTE_GROUP}/v1"
_PODS_LIMIT = "1000"
# How late a watch may tell of a new pod.
_SEEN_SECONDS = 30.0


class GatewayRoutes:
    """Reads HTTPRoutes and Services, in the policy's own namespace alone."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def check(
        self, policy: PolicyObject, others: Sequence[PolicyObject], pods: Collection[str]
    ) -> None:
        """Whether the policy's bound is that of these pods, and of no others.

        others: every policy of the namespace.
        Raises: LimitNotEnforceableError where it is not; ClusterError where that cannot be told.
        """
        name = _route_of(policy)
        base = f"{_ROUTES}/namespaces/{policy.namespace}/httproutes"
        route = await self._get(f"{base}/{name}", f"HTTPRoute/{name} is not in this namespace")
        for rival in _rivals(policy, others, route):
            raise LimitNotEnforceableError(f"{rival} is for HTTPRoute/{name} as well")
        rules = [rule for rule in route["spec"].get("rules") or () if rule.get("backendRefs")]
        if len(rules) != 1:
            raise LimitNotEnforceableError(
                f"HTTPRoute/{name} has {len(rules)} rules with backends, each counted apart"
            )
        for backend in rules[0]["backendRefs"]:
            try:
                await self._check_backend(policy.namespace, backend, frozenset(pods))
            except LimitNotEnforceableError as error:
                raise LimitNotEnforceableError(f"HTTPRoute/{name}: {error}") from error

    async def _check_backend(
        self, namespace: str, backend: Mapping[str, Any], pods: frozenset[str]
    ) -> None:
        kind, name = backend.get("kind", "Service"), backend["name"]
        if kind != "Service" or backend.get("group"):
            raise LimitNotEnforceableError(
                f"it leads to {kind}/{name}, which a circuit breaker does not reach"
            )
        if backend.get("namespace", namespace) != namespace:
            raise LimitNotEnforceableError("it leads to another namespace")
        path = f"/api/v1/namespaces/{namespace}/services/{name}"
        service = await self._get(path, f"Service/{name} is not in this namespace")
        selector = service["spec"].get("selector")
        if not selector:
            raise LimitNotEnforceableError(f"Service/{name} selects no pods")
        labels = ",".join(f"{key}={value}" for key, value in selector.items())
        query = {"labelSelector": labels, "limit": _PODS_LIMIT}
        found = (await self._client.get(f"/api/v1/namespaces/{namespace}/pods", query))["items"]
        if not {item["metadata"]["name"] for item in found} & pods:
            raise LimitNotEnforceableError(f"Service/{name} selects none of this workload's pods")
        settled = {item["metadata"]["name"] for item in found if _is_settled(item)}
        for strange in sorted(settled - pods):
            raise LimitNotEnforceableError(
                f"Service/{name} selects pods of others as well, such as {strange}"
            )

    async def _get(self, path: str, missing: str) -> KubeObject:
        try:
            return await self._client.get(path)
        except NotFoundError as error:
            raise LimitNotEnforceableError(missing) from error


def _is_settled(pod: KubeObject) -> bool:
    """Whether the view of the workload must know the pod by now; a watch tells late."""
    metadata = pod["metadata"]
    made = seconds_from_timestamp(metadata.get("creationTimestamp")) or 0.0
    age_seconds = SystemClock.now_seconds() - made
    return not metadata.get("deletionTimestamp") and age_seconds >= _SEEN_SECONDS


def _route_of(policy: PolicyObject) -> str:
    """The one HTTPRoute that a policy is for. Raises: LimitNotEnforceableError."""
    spec: Mapping[str, Any] = policy.item["spec"]
    refs = _references(spec)
    ref = refs[0] if refs else {}
    target = f"{ref.get('kind')}/{ref.get('name')}"
    others = _refusals(policy)
    problems = (
        (spec.get("targetSelectors"), "it names its targets by labels, not one HTTPRoute"),
        (len(refs) != 1, f"it has {len(refs)} targets, not one HTTPRoute"),
        (
            (ref.get("group"), ref.get("kind")) != (_ROUTE_GROUP, _ROUTE_KIND),
            f"its target is {target}, not one HTTPRoute",
        ),
        (ref.get("sectionName"), "it is for one rule of its route (sectionName)"),
        (spec.get("mergeType"), "it is merged with the policy of the Gateway (mergeType)"),
        (others, f"the gateway says {others}"),
    )
    for found, problem in problems:
        if found:
            raise LimitNotEnforceableError(problem)
    return str(ref["name"])


def _references(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    single = (spec["targetRef"],) if "targetRef" in spec else ()
    return (*(spec.get("targetRefs") or ()), *single)


def _refusals(policy: PolicyObject) -> str:
    """What the gateway says against the policy, in the policy's status; '' where nothing."""
    said = (
        condition
        for ancestor in (policy.item.get("status") or {}).get("ancestors") or ()
        for condition in ancestor.get("conditions") or ()
    )
    against = {("Accepted", "False"), ("Overridden", "True"), ("Conflicted", "True")}
    return next(
        (
            f"{one['type']}={one['status']}: {one.get('message')}"
            for one in said
            if (one.get("type"), one.get("status")) in against
        ),
        "",
    )


def _rivals(
    policy: PolicyObject, others: Sequence[PolicyObject], route: KubeObject
) -> Iterator[str]:
    """Other policies for the same route: of two the gateway takes one, or they are merged."""
    name = route["metadata"]["name"]
    labels: Mapping[str, str] = route["metadata"].get("labels") or {}
    for other in others:
        if other.uid == policy.uid:
            continue
        spec: Mapping[str, Any] = other.item["spec"]
        named = any(
            (ref.get("kind"), ref.get("name")) == (_ROUTE_KIND, name) for ref in _references(spec)
        )
        # A selector by expressions is taken to match: what it selects is the gateway's to say.
        selected = any(
            entry.get("kind") == _ROUTE_KIND
            and all(
                labels.get(key) == value for key, value in (entry.get("matchLabels") or {}).items()
            )
            for entry in spec.get("targetSelectors") or ()
        )
        if named or selected:
            yield f"BackendTrafficPolicy/{other.name}"
