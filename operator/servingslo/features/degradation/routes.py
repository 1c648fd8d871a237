"""The weights of an HTTPRoute's backends, and the owner's: of those that are there already.

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

from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.marked_objects import AS_WRITTEN, Count
from servingslo.adapters.kubernetes.api.owned_fields import OwnedValue, OwnedValues
from servingslo.features.degradation.share import THOUSANDTHS

WEIGHTS_ANNOTATION = "servingslo.dev/weights"
KIND = "HTTPRoute"
# Sum of the owner's weights that can be written in thousandths: Gateway API allows each weight up
# to 1,000,000.
MOST_WEIGHT = 1_000_000 // THOUSANDTHS


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
class WeightedRoute(OwnedValue[WeightsOwner]):
    """One HTTPRoute."""

    @property
    def rules(self) -> tuple[int, ...]:
        """Numbers of its rules with backends."""
        rules = enumerate(self.spec.get("rules") or ())
        return tuple(number for number, rule in rules if rule.get("backendRefs"))

    def backends(self, rule: int) -> Sequence[Mapping[str, Any]]:
        """The backends of a rule; none of a rule that is not there."""
        rules = self.spec.get("rules") or ()
        return (rules[rule].get("backendRefs") or ()) if rule < len(rules) else ()

    def weights(self, rule: int) -> tuple[int, ...]:
        """The present weights of a rule."""
        return tuple(int(one.get("weight", 1)) for one in self.backends(rule))

    @property
    def is_ours(self) -> bool:
        """Whether the present weights are the operator's last written ones."""
        return self.owner is not None and self.weights(self.owner.rule) == self.owner.weights

    def written(self, owner: WeightsOwner) -> list[KubeObject]:
        """The changes that set the weights."""
        return _set(owner.rule, owner.weights)

    def restored(self, owner: WeightsOwner) -> list[KubeObject]:
        """The changes that set the owner's weights."""
        return _set(owner.rule, owner.former)


def weights_of(former: Sequence[int], fallback: int, share: int) -> tuple[int, ...]:
    """Weights that give a backend a share in thousandths, and divide the rest as before.

    former: the owner's weights, with none of the fallback, at most MOST_WEIGHT together.
    """
    total = sum(former)
    others = [weight * (THOUSANDTHS - share) for weight in former]
    return tuple(
        share * total if place == fallback else weight for place, weight in enumerate(others)
    )


WeightedRoutes = OwnedValues[WeightedRoute, WeightsOwner]


def weighted_routes(client: KubeClient, *, namespaces: Sequence[str] = ()) -> WeightedRoutes:
    """The HTTPRoutes of the watched namespaces; no namespace means all."""
    return OwnedValues(
        client=client,
        api_version="gateway.networking.k8s.io/v1",
        plural="httproutes",
        annotation=WEIGHTS_ANNOTATION,
        record=_OWNER,
        make=lambda item, owner: WeightedRoute(kind=KIND, item=item, owner=owner),
        namespaces=namespaces,
    )


def _set(rule: int, weights: Sequence[int]) -> list[KubeObject]:
    return [
        {"op": "add", "path": f"/spec/rules/{rule}/backendRefs/{place}/weight", "value": weight}
        for place, weight in enumerate(weights)
    ]
