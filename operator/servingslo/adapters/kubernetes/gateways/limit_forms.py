"""Kinds of object with the bound of each proxy: their API versions, and the field of the bound."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from servingslo.policy.inputs import LimitKind


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LimitForm:
    """One kind of object, and the field of its spec that is the bound.

    parents: objects around the field, from the outermost. defaulted: values that the API server
    fills in next to a set field.
    """

    kind: LimitKind
    api_version: str
    plural: str
    parents: tuple[str, ...]
    field: str
    defaulted: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def around(self, spec: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
        """The existing objects around the field, from the outermost."""
        found: list[Mapping[str, Any]] = []
        for name in self.parents:
            inner = spec.get(name)
            if inner is None:
                break
            found.append(inner)
            spec = inner
        return tuple(found)

    def limit(self, spec: Mapping[str, Any]) -> int | None:
        """The bound in a spec, None if it has none."""
        around = self.around(spec)
        return around[-1].get(self.field) if len(around) == len(self.parents) else None

    def pointer(self, depth: int) -> str:
        """JSON Pointer to the parent object at that depth; beyond the last, to the field."""
        return "/spec/" + "/".join((*self.parents, self.field)[: depth + 1])


# Source: Envoy Gateway v1.9.1, BackendTrafficPolicy's CRD: each of the four defaults to 1,024 if
# another field of the circuit breaker is set.
BACKEND_TRAFFIC_POLICY = LimitForm(
    kind=LimitKind.BACKEND_TRAFFIC_POLICY,
    api_version="gateway.envoyproxy.io/v1alpha1",
    plural="backendtrafficpolicies",
    parents=("circuitBreaker",),
    field="maxParallelRequests",
    defaulted=dict.fromkeys(
        ("maxConnections", "maxPendingRequests", "maxParallelRequests", "maxParallelRetries"), 1024
    ),
)
# Source: istio.io/api v1.31.4, networking/v1alpha3/destination_rule.proto: active requests to a
# destination, HTTP/1.1 included; there are no defaults.
DESTINATION_RULE = LimitForm(
    kind=LimitKind.DESTINATION_RULE,
    api_version="networking.istio.io/v1",
    plural="destinationrules",
    parents=("trafficPolicy", "connectionPool", "http"),
    field="http2MaxRequests",
)
LIMIT_FORMS = (BACKEND_TRAFFIC_POLICY, DESTINATION_RULE)
