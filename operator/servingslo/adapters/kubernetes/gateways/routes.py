"""Check that a policy's bound applies to one workload only: its targets, route and Services.

Source: Envoy Gateway v1.9.1, BackendTrafficPolicy: `targetRefs`, `targetSelectors`, `mergeType`;
on routes to an InferencePool the circuit breaker stays at its default (envoyproxy/gateway#9997).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.adapters.kubernetes.gateways.limits import LimitHolder
from servingslo.adapters.kubernetes.gateways.services import GatewayServices, found_or, refuse
from servingslo.errors import LimitNotEnforceableError

_ROUTE_GROUP, _ROUTE_KIND = "gateway.networking.k8s.io", "HTTPRoute"


class GatewayRoutes:
    """Reads HTTPRoutes and Services, only in the policy's own namespace."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._services = GatewayServices(client)

    async def check(
        self,
        policy: LimitHolder,
        others: Sequence[LimitHolder],
        pods: Collection[str],
        fallback: str | None = None,
    ) -> None:
        """Check that the policy's bound applies to exactly these pods.

        others: every policy of the namespace. fallback: a Service with a circuit breaker of its
        own, as every backend of the rule has a filter.
        Raises: LimitNotEnforceableError if it does not; ClusterError if that cannot be determined.
        """
        name = _route_of(policy)
        path = api_path(f"{_ROUTE_GROUP}/v1", "httproutes", namespace=policy.namespace, name=name)
        missing = f"HTTPRoute/{name} is not in this namespace"
        route = await found_or(missing, self._client.get(path))
        for rival in _rivals(policy, others, route):
            raise LimitNotEnforceableError(f"{rival} is for HTTPRoute/{name} as well")
        rules = [rule for rule in route["spec"].get("rules") or () if rule.get("backendRefs")]
        if len(rules) != 1:
            raise LimitNotEnforceableError(
                f"HTTPRoute/{name} has {len(rules)} rules with backends, each counted apart"
            )
        apart = all(backend.get("filters") for backend in rules[0]["backendRefs"])
        for backend in rules[0]["backendRefs"]:
            if apart and backend["name"] == fallback:
                continue
            try:
                await self._check_backend(policy.namespace, backend, pods)
            except LimitNotEnforceableError as error:
                raise LimitNotEnforceableError(f"HTTPRoute/{name}: {error}") from error

    async def _check_backend(
        self, namespace: str, backend: Mapping[str, Any], pods: Collection[str]
    ) -> None:
        kind, name = backend.get("kind", "Service"), backend["name"]
        if kind != "Service" or backend.get("group"):
            raise LimitNotEnforceableError(
                f"it leads to {kind}/{name}, which a circuit breaker does not reach"
            )
        if backend.get("namespace", namespace) != namespace:
            raise LimitNotEnforceableError("it leads to another namespace")
        await self._services.check(namespace, name, pods)


def _route_of(policy: LimitHolder) -> str:
    """The policy's only HTTPRoute. Raises: LimitNotEnforceableError."""
    spec = policy.spec
    refs = _references(spec)
    ref = refs[0] if refs else {}
    target = f"{ref.get('kind')}/{ref.get('name')}"
    others = _refusals(policy)
    refuse(
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
    return str(ref["name"])


def names_of_targets(policy: LimitHolder) -> tuple[str, ...]:
    """The names of what the policy is for."""
    return tuple(str(ref.get("name")) for ref in _references(policy.spec))


def _references(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    single = (spec["targetRef"],) if "targetRef" in spec else ()
    return (*(spec.get("targetRefs") or ()), *single)


def _refusals(policy: LimitHolder) -> str:
    """Why the gateway rejects the policy, from the policy's status; '' if it does not."""
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


def _rivals(policy: LimitHolder, others: Sequence[LimitHolder], route: KubeObject) -> Iterator[str]:
    """Other policies for the same route: the gateway uses one of them, or merges them."""
    name = route["metadata"]["name"]
    labels: Mapping[str, str] = route["metadata"].get("labels") or {}
    for other in others:
        if other.uid == policy.uid:
            continue
        spec = other.spec
        named = any(
            (ref.get("kind"), ref.get("name")) == (_ROUTE_KIND, name) for ref in _references(spec)
        )
        # A selector with expressions counts as a match: only the gateway evaluates it.
        selected = any(
            entry.get("kind") == _ROUTE_KIND
            and all(
                labels.get(key) == value for key, value in (entry.get("matchLabels") or {}).items()
            )
            for entry in spec.get("targetSelectors") or ()
        )
        if named or selected:
            yield other.title
