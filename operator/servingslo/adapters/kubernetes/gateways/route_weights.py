"""Read and write the weights of an HTTPRoute's backends, and restore the owner's exactly.

One JSON Patch sets the weights and an annotation with their owner and the former ones, under a test
of uid and resourceVersion: if the process is killed, both were written or neither. Only a route
that its owner labelled is changed, and only `weight` of backends that are there already.

Source: Gateway API v1.6.3, HTTPRoute: a backend gets its weight divided by the sum of the rule's;
the API server fills in 1. Envoy Gateway v1.9.1 leaves a backend of weight 0 out, and has one
cluster for all backends of a rule unless one of them has filters (internal/ir/xds.go,
NeedsClusterPerSetting). With a filter on each, every backend keeps a cluster of its own, with its
own counters and its own circuit breaker, whatever the weights are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from servingslo.adapters.kubernetes.api.annotations import AS_WRITTEN, Count, record_in
from servingslo.adapters.kubernetes.api.cache import listed
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.marked_objects import (
    annotated,
    annotations_of,
    is_managed,
    marked_released,
    patch_unchanged,
    removed_annotation,
    taken_again,
)
from servingslo.adapters.kubernetes.api.paths import ApiPath, api_path
from servingslo.errors import NotFoundError
from servingslo.policy.degradation import THOUSANDTHS

WEIGHTS_ANNOTATION = "servingslo.dev/weights"
KIND = "HTTPRoute"
# Sum of the owner's weights that can be written in thousandths: Gateway API allows each weight up
# to 1,000,000.
MOST_WEIGHT = 1_000_000 // THOUSANDTHS
_API_VERSION, _PLURAL = "gateway.networking.k8s.io/v1", "httproutes"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOwner:
    """The annotation's content: whose weights these are, and the former ones, by backend."""

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    name: str
    uid: str
    rule: Count
    weights: tuple[Count, ...]
    former: tuple[Count, ...]


_OWNER = TypeAdapter(WeightsOwner)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRoute:
    """One HTTPRoute. owner: None if the operator has not written into it.

    rules: numbers of its rules with backends.
    """

    namespace: str
    name: str
    uid: str
    version: str
    managed: bool
    rules: tuple[int, ...]
    owner: WeightsOwner | None
    item: KubeObject

    @property
    def title(self) -> str:
        """Kind and name, as kubectl writes them."""
        return f"{KIND}/{self.name}"

    def backends(self, rule: int) -> Sequence[Mapping[str, Any]]:
        """The backends of a rule; none of a rule that is not there."""
        rules = (self.item.get("spec") or {}).get("rules") or ()
        return (rules[rule].get("backendRefs") or ()) if rule < len(rules) else ()

    def weights(self, rule: int) -> tuple[int, ...]:
        """The present weights of a rule."""
        return tuple(int(one.get("weight", 1)) for one in self.backends(rule))

    @property
    def is_ours(self) -> bool:
        """Whether the present weights are the operator's last written ones."""
        return self.owner is not None and self.weights(self.owner.rule) == self.owner.weights


def weights_of(former: Sequence[int], fallback: int, share: int) -> tuple[int, ...]:
    """Weights that give a backend a share in thousandths, and divide the rest as before.

    former: the owner's weights, with none of the fallback, at most MOST_WEIGHT together.
    """
    total = sum(former)
    others = [weight * (THOUSANDTHS - share) for weight in former]
    return tuple(
        share * total if place == fallback else weight for place, weight in enumerate(others)
    )


class WeightedRoutes:
    """The HTTPRoutes of the watched namespaces; no namespace means all."""

    def __init__(self, client: KubeClient, *, namespaces: Sequence[str] = ()) -> None:
        self._client = client
        self._namespaces = tuple(namespaces)

    async def read(self, namespace: str, name: str) -> WeightedRoute:
        """The current state of one route. Raises: NotFoundError, ClusterError."""
        try:
            return route_of(await self._client.get(_path(namespace, name)))
        except NotFoundError as error:
            raise NotFoundError("there is none of that name in this namespace") from error

    async def owned(self) -> tuple[WeightedRoute, ...]:
        """Every route that the operator has written into. Raises: ClusterError.

        Empty if the cluster does not serve the kind.
        """
        found: list[KubeObject] = []
        for namespace in self._namespaces or (None,):
            try:
                found += (await listed(self._client, _path(namespace))).items
            except NotFoundError:
                continue
        return tuple(one for one in map(route_of, found) if one.owner is not None)

    async def write(self, route: WeightedRoute, owner: WeightsOwner) -> None:
        """Set the weights and record their owner.

        Raises: WriteConflictError if the route changed since it was read; ClusterError otherwise.
        """
        written = _OWNER.dump_json(owner).decode()
        changes = (*annotated(route.item, WEIGHTS_ANNOTATION, written), *taken_again(route.item))
        await self._patch(route, [*changes, *_set(owner.rule, owner.weights)])

    async def put_back(self, route: WeightedRoute, *, released: bool = False) -> bool:
        """Restore the owner's weights; those that another writer set meanwhile are kept.

        Returns False if there are none of ours. released: do not change the route for a while.
        Raises: WriteConflictError if the route changed since it was read; ClusterError otherwise.
        """
        owner = route.owner
        if owner is None:
            return False
        changes: list[KubeObject] = [removed_annotation(WEIGHTS_ANNOTATION)]
        if released:
            changes += marked_released(route.item)
        if route.is_ours:
            changes += _set(owner.rule, owner.former)
        await self._patch(route, changes)
        return True

    async def _patch(self, route: WeightedRoute, changes: Sequence[KubeObject]) -> None:
        path = _path(route.namespace, route.name)
        await patch_unchanged(self._client, path, route.item, route.title, changes)


def route_of(item: KubeObject) -> WeightedRoute:
    """The route in an object of the API server."""
    metadata: Mapping[str, Any] = item["metadata"]
    annotations = annotations_of(item)
    rules = (item.get("spec") or {}).get("rules") or ()
    return WeightedRoute(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        managed=is_managed(item),
        rules=tuple(number for number, rule in enumerate(rules) if rule.get("backendRefs")),
        owner=record_in(annotations.get(WEIGHTS_ANNOTATION) or "", _OWNER),
        item=item,
    )


def _set(rule: int, weights: Sequence[int]) -> list[KubeObject]:
    return [
        {"op": "add", "path": f"/spec/rules/{rule}/backendRefs/{place}/weight", "value": weight}
        for place, weight in enumerate(weights)
    ]


def _path(namespace: str | None, name: str | None = None) -> ApiPath:
    return api_path(_API_VERSION, _PLURAL, namespace=namespace, name=name)
