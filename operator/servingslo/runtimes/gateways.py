"""Gateways that count requests: their metric names, and the labels that identify the workload.

The administrator chooses one profile for the cluster; nothing in it comes from a tenant. Series are
read raw, for each instance (each proxy, each endpoint picker). Differences are computed for each
instance before adding, because a sum over instances falls when one of them disappears.
"""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from servingslo.errors import InvalidInputError

NO_GATEWAY = "none"
_LABEL_NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")
# Istio's reporters: a client's proxy or an ingress gateway, the server's proxy, a waypoint.
REPORTERS = ("source", "destination", "waypoint")
# Requests that no engine computes anything for, so they are no demand. 408, 429 and 499 are demand.
_CLIENT_ERRORS = "400|401|403|404|405|413|414|415|422"


class CountedWhen(StrEnum):
    """When a gateway counts a request.

    ARRIVED: at its arrival. PASSED_ON: when it leaves the gateway's own queue, so arrivals are the
    counts plus the growth of the queue. ENDED: at its end; a stream ends a whole response time
    later. Such counts do not show current arrivals; only refusals are known at once.
    """

    ARRIVED = "arrived"
    PASSED_ON = "passed-on"
    ENDED = "ended"


class GatewayField(StrEnum):
    """The fields that a gateway's metrics are added to."""

    REQUESTS = "requests_total"
    REJECTED = "rejected_total"
    RETRIED = "retried_total"
    QUEUED = "queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayMetric:
    """One metric that adds to one or more fields of a GatewayInstance.

    names: newest first; the first one that an instance exports is used. label, values: if given,
    only series count whose label contains one of these comma-separated values.
    """

    fields: tuple[GatewayField, ...]
    names: tuple[str, ...]
    label: str = ""
    values: frozenset[str] = frozenset()

    def counts(self, label_value: str) -> bool:
        """Whether a series with this value of the label counts."""
        return not self.label or not self.values.isdisjoint(label_value.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayProfile:
    """Everything this package knows of one gateway.

    metrics: the first one is exported wherever requests are counted, and its age is the age of all.
    known_by: metrics of a workload that an instance exports from the beginning, while counters
    appear only with the first request. Until then the count is zero.
    matchers: of the selector. workload_label: has the workload's name. namespace_label: its
    namespace; '' if `pattern` or the scrape shows it. pattern: of workload_label's value, with the
    groups `name` and `namespace`. pages: metrics whose workload_label names the only workload of
    all requests on the same page. service_labels: namespace and name of a service, used if a series
    has no workload. forgets_empty: with its default routing it does not count requests for a
    workload without pods.
    """

    name: str
    counted: CountedWhen
    metrics: tuple[GatewayMetric, ...]
    workload_label: str
    known_by: tuple[str, ...] = ()
    namespace_label: str = ""
    matchers: tuple[str, ...] = ()
    pattern: str = ""
    pages: tuple[str, ...] = ()
    service_labels: tuple[str, str] | None = None
    forgets_empty: bool = False


_UNKNOWN_WORKLOADS = frozenset({"", "unknown"})


def is_unknown(workload: str) -> bool:
    """Whether the proxy does not know the workload; Istio then writes 'unknown'."""
    return workload in _UNKNOWN_WORKLOADS


# Source: istio.io/latest/docs/reference/config/metrics for names and labels; istio/proxy
# source/extensions/filters/http/istio_stats/istio_stats.cc: istio_requests_total is incremented in
# log(), at the end of the stream. A request without a host has an unknown workload but a known
# service. response_flags are those of Envoy's access log: UO upstream overflow (circuit breaker),
# UH no healthy upstream, RL rate limited, DO dropped by load shedding, OM overload manager.
ISTIO = GatewayProfile(
    name="istio",
    counted=CountedWhen.ENDED,
    metrics=(
        GatewayMetric(fields=(GatewayField.REQUESTS,), names=("istio_requests_total",)),
        GatewayMetric(
            fields=(GatewayField.REJECTED,),
            names=("istio_requests_total",),
            label="response_flags",
            values=frozenset({"UO", "UH", "RL", "DO", "OM"}),
        ),
    ),
    workload_label="destination_workload",
    namespace_label="destination_workload_namespace",
    matchers=('reporter="source"', f'response_code!~"{_CLIENT_ERRORS}"'),
    service_labels=("destination_service_namespace", "destination_service_name"),
)

# Source: envoyproxy/envoy docs, configuration/upstream/cluster_manager/cluster_stats, and
# source/common/conn_pool/conn_pool_base.cc: upstream_rq_total is incremented when a stream is
# attached to a connection, retries included; one that overflows a circuit breaker or finds no
# healthy host is not in it. A capture of Envoy 1.40.0 (tests/golden/data/envoy_1.40.0_metrics.txt):
# beyond max_requests a request counts only as active_overflow, beyond max_pending_requests as
# pending_overflow; older versions have only the latter, for both. One whose connection was refused
# (a Service without pods, where the cluster holds the Service's address) is pending_failure_eject.
# envoyproxy/gateway names the cluster of a route's rule httproute/<namespace>/<name>/rule/<number>
# (test/e2e/tests/retry.go queries it so) and has Envoy create a cluster's counters with its first
# request (internal/xds/bootstrap: enable_deferred_creation_stats); membership_total comes before.
ENVOY_GATEWAY = GatewayProfile(
    name="envoy-gateway",
    counted=CountedWhen.PASSED_ON,
    metrics=(
        GatewayMetric(fields=(GatewayField.REQUESTS,), names=("envoy_cluster_upstream_rq_total",)),
        GatewayMetric(
            fields=(GatewayField.REQUESTS, GatewayField.REJECTED),
            names=("envoy_cluster_upstream_rq_pending_overflow",),
        ),
        GatewayMetric(
            fields=(GatewayField.REQUESTS, GatewayField.REJECTED),
            names=("envoy_cluster_upstream_rq_active_overflow",),
        ),
        GatewayMetric(
            fields=(GatewayField.REQUESTS, GatewayField.REJECTED),
            names=("envoy_cluster_upstream_cx_none_healthy",),
        ),
        GatewayMetric(
            fields=(GatewayField.REQUESTS, GatewayField.REJECTED),
            names=("envoy_cluster_upstream_rq_pending_failure_eject",),
        ),
        GatewayMetric(fields=(GatewayField.RETRIED,), names=("envoy_cluster_upstream_rq_retry",)),
        GatewayMetric(
            fields=(GatewayField.QUEUED,), names=("envoy_cluster_upstream_rq_pending_active",)
        ),
    ),
    workload_label="envoy_cluster_name",
    known_by=("envoy_cluster_membership_total",),
    forgets_empty=True,
    pattern=r"(?:http|grpc)route/(?P<namespace>[^/]+)/(?P<name>[^/]+)/rule/.*",
)

# Source: kubernetes-sigs/gateway-api-inference-extension and llm-d/llm-d-router, pkg/epp/metrics
# and pkg/epp/handlers/server.go: a request is counted when a pod was found for it. A refused one
# (429 at saturation, 503 without pods) is only in the error counter. An endpoint picker
# serves one InferencePool and names it in its pool metrics, not on the counters. Versions in
# transition export the old and the new names on one page.
INFERENCE_EXTENSION = GatewayProfile(
    name="gateway-api-inference-extension",
    counted=CountedWhen.PASSED_ON,
    metrics=(
        GatewayMetric(
            fields=(GatewayField.REQUESTS,),
            names=(
                "llm_d_epp_request_total",
                "inference_objective_request_total",
                "inference_model_request_total",
            ),
        ),
        GatewayMetric(
            fields=(GatewayField.REQUESTS, GatewayField.REJECTED),
            names=(
                "llm_d_epp_request_error_total",
                "inference_objective_request_error_total",
                "inference_model_request_error_total",
            ),
            label="error_code",
            values=frozenset({"InferencePoolResourceExhausted", "ServiceUnavailable"}),
        ),
        GatewayMetric(
            fields=(GatewayField.QUEUED,),
            names=(
                "llm_d_epp_flow_control_queue_size",
                "inference_extension_flow_control_queue_size",
            ),
        ),
    ),
    workload_label="name",
    pages=("llm_d_epp_ready_endpoints", "inference_pool_ready_pods"),
)

GATEWAYS: tuple[GatewayProfile, ...] = (ISTIO, ENVOY_GATEWAY, INFERENCE_EXTENSION)


def gateway_profile(
    name: str,
    *,
    workload_label: str = "",
    namespace_label: str = "",
    reporter: str = "",
    pattern: str = "",
) -> GatewayProfile | None:
    """The profile of that name with the administrator's overrides, '' for none; None for 'none'.

    Raises: InvalidInputError for an unknown name, or an override that is malformed or unused by the
    profile.
    """
    if name == NO_GATEWAY:
        return None
    found = next((known for known in GATEWAYS if known.name == name), None)
    if found is None:
        allowed = ", ".join((*(known.name for known in GATEWAYS), NO_GATEWAY))
        raise InvalidInputError("gateway.profile", name, allowed)
    for field, label in (("workload", workload_label), ("namespace", namespace_label)):
        if label and not _LABEL_NAME.match(label):
            raise InvalidInputError(f"gateway.labels.{field}", label, "a label name: [a-zA-Z0-9_]+")
    if pattern:
        _check_pattern(found, pattern)
    if reporter:
        found = replace(found, matchers=_reported_by(found, reporter))
    return replace(
        found,
        workload_label=workload_label or found.workload_label,
        namespace_label=namespace_label or found.namespace_label,
        pattern=pattern or found.pattern,
    )


def _reported_by(profile: GatewayProfile, reporter: str) -> tuple[str, ...]:
    if reporter not in REPORTERS:
        raise InvalidInputError("gateway.reporter", reporter, ", ".join(REPORTERS))
    if profile is not ISTIO:
        raise InvalidInputError("gateway.reporter", reporter, f"only with {ISTIO.name}")
    return (f'reporter="{reporter}"', *profile.matchers[1:])


def _check_pattern(profile: GatewayProfile, pattern: str) -> None:
    if profile is not ENVOY_GATEWAY:
        raise InvalidInputError("gateway.pattern", pattern, f"only with {ENVOY_GATEWAY.name}")
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise InvalidInputError("gateway.pattern", pattern, "a regular expression") from error
    if not {"namespace", "name"} <= groups.keys():
        raise InvalidInputError(
            "gateway.pattern", pattern, "a pattern with the groups namespace and name"
        )
