"""Gateways that count requests: their metric names, and the labels that identify the workload.

The administrator chooses one profile for the cluster; nothing in it comes from a tenant. Series are
read raw, for each instance (each proxy, each endpoint picker). Differences are computed for each
instance before adding, because a sum over instances falls when one of them disappears.
"""

from dataclasses import dataclass
from enum import StrEnum

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
    ACTIVE = "active"
    FAILED = "failed_total"
    ERRORS = "errors_total"
    ABORTED = "aborted_total"
    CUT = "cut_total"
    ENDED = "ended_total"
    ENDED_MILLISECONDS = "ended_milliseconds_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayMetric:
    """One metric that adds to one or more fields of a GatewayInstance.

    names: newest first; the first one that an instance exports is used. label, values: if given,
    only series count whose label contains one of these comma-separated values. less: fields from
    which it is subtracted.
    """

    fields: tuple[GatewayField, ...] = ()
    names: tuple[str, ...]
    less: tuple[GatewayField, ...] = ()
    label: str = ""
    values: frozenset[str] = frozenset()

    def counts(self, label_value: str) -> bool:
        """Whether a series with this value of the label counts."""
        return not self.label or not self.values.isdisjoint(label_value.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLatency:
    """The histogram of whole requests, until the last byte of the answer.

    names: base names, newest first. unit: of the exported values, in seconds. matchers: of the
    selector, in addition to the profile's.
    """

    names: tuple[str, ...]
    unit: float = 1.0
    matchers: tuple[str, ...] = ()


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
    workload without pods. latency: None if it has no histogram of whole requests by workload.
    backend_metrics: further metrics, read of each backend of a route that is counted apart.
    `pattern` may have the groups `rule` and `backend`, their numbers.
    priority_label: has the priority of a request, an integer; priority_metrics: the metrics that
    have it, if any. saturation: gauge of how full the gateway takes its workload to be; it holds
    requests from 1 on.
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
    priority_label: str = ""
    priority_metrics: tuple[GatewayMetric, ...] = ()
    saturation: tuple[str, ...] = ()
    latency: GatewayLatency | None = None
    backend_metrics: tuple[GatewayMetric, ...] = ()

    @property
    def all_metrics(self) -> tuple[GatewayMetric, ...]:
        """The metrics of a workload, then those of a backend."""
        return (*self.metrics, *self.backend_metrics)


_UNKNOWN_WORKLOADS = frozenset({"", "unknown"})


def is_unknown(workload: str) -> bool:
    """Whether the proxy does not know the workload; Istio then writes 'unknown'."""
    return workload in _UNKNOWN_WORKLOADS


# Source: istio.io/latest/docs/reference/config/metrics for names and labels; istio/proxy
# source/extensions/filters/http/istio_stats/istio_stats.cc: istio_requests_total is incremented in
# log(), at the end of the stream. A request without a host has an unknown workload but a known
# service. response_flags are those of Envoy's access log: UO upstream overflow (circuit breaker),
# UH no healthy upstream, RL rate limited, DO dropped by load shedding, OM overload manager; DC the
# client left, UC and UR the server broke the answer off. The duration is of the whole stream,
# istio_request_duration_milliseconds, in milliseconds; answers other than 2xx are short.
ISTIO = GatewayProfile(
    name="istio",
    counted=CountedWhen.ENDED,
    metrics=(
        GatewayMetric(fields=(GatewayField.REQUESTS,), names=("istio_requests_total",)),
        GatewayMetric(
            fields=(GatewayField.REJECTED,),
            names=("istio_requests_total",),
            less=(GatewayField.ERRORS,),
            label="response_flags",
            values=frozenset({"UO", "UH", "RL", "DO", "OM"}),
        ),
        GatewayMetric(
            fields=(GatewayField.ERRORS,),
            names=("istio_requests_total",),
            label="response_code",
            values=frozenset(map(str, range(500, 600))),
        ),
        GatewayMetric(
            fields=(GatewayField.ABORTED,),
            names=("istio_requests_total",),
            label="response_flags",
            values=frozenset({"DC"}),
        ),
        GatewayMetric(
            fields=(GatewayField.CUT,),
            names=("istio_requests_total",),
            label="response_flags",
            values=frozenset({"UC", "UR"}),
        ),
    ),
    workload_label="destination_workload",
    namespace_label="destination_workload_namespace",
    matchers=('reporter="source"', f'response_code!~"{_CLIENT_ERRORS}"'),
    service_labels=("destination_service_namespace", "destination_service_name"),
    latency=GatewayLatency(
        names=("istio_request_duration_milliseconds",),
        unit=1e-3,
        matchers=('response_code=~"2.."',),
    ),
)

# Source: envoyproxy/envoy docs, configuration/upstream/cluster_manager/cluster_stats, and
# source/common/conn_pool/conn_pool_base.cc: upstream_rq_total is incremented when a stream is
# attached to a connection, retries included; one that overflows a circuit breaker or finds no
# healthy host is not in it. A capture of Envoy 1.40.0 (tests/golden/data/envoy_1.40.0_metrics.txt):
# beyond max_requests a request counts only as active_overflow, beyond max_pending_requests as
# pending_overflow; older versions have only the latter, for both. One whose connection was refused
# (a Service without pods, where the cluster holds the Service's address) is pending_failure_eject.
# envoyproxy/gateway names the cluster of a route's rule httproute/<namespace>/<name>/rule/<number>
# (test/e2e/tests/retry.go queries it so), with /backend/<number> after it for each backend if one
# of them has filters (internal/ir/xds.go, NeedsClusterPerSetting). It has Envoy create a cluster's
# counters with its first request (internal/xds/bootstrap: enable_deferred_creation_stats);
# membership_total comes before.
# A capture of how requests end (tests/golden/data/envoy_1.40.0_endings.txt): upstream_rq_xx counts
# final answers alone, refusals (503) and timeouts (504) included. A client that leaves, a timeout
# and a retried answer each close a connection in use (destroy_local_with_active_rq; tx_reset over
# HTTP/2); a server that breaks off is destroy_remote_with_active_rq (rx_reset). upstream_rq_time is
# of whole answers, in milliseconds, from the last byte of the request: filters and the client's own
# network are not in it.
_ENVOY_REFUSALS = (
    "envoy_cluster_upstream_rq_pending_overflow",
    "envoy_cluster_upstream_rq_active_overflow",
    "envoy_cluster_upstream_cx_none_healthy",
    "envoy_cluster_upstream_rq_pending_failure_eject",
)
ENVOY_GATEWAY = GatewayProfile(
    name="envoy-gateway",
    counted=CountedWhen.PASSED_ON,
    metrics=(
        GatewayMetric(fields=(GatewayField.REQUESTS,), names=("envoy_cluster_upstream_rq_total",)),
        *(
            GatewayMetric(
                fields=(GatewayField.REQUESTS, GatewayField.REJECTED),
                less=(GatewayField.ERRORS,),
                names=(refusals,),
            )
            for refusals in _ENVOY_REFUSALS
        ),
        GatewayMetric(
            fields=(GatewayField.RETRIED,),
            less=(GatewayField.ABORTED,),
            names=("envoy_cluster_upstream_rq_retry",),
        ),
        GatewayMetric(
            fields=(GatewayField.ERRORS,),
            names=("envoy_cluster_upstream_rq_xx",),
            label="envoy_response_code_class",
            values=frozenset({"5"}),
        ),
        GatewayMetric(
            fields=(GatewayField.ABORTED,),
            names=("envoy_cluster_upstream_cx_destroy_local_with_active_rq",),
        ),
        GatewayMetric(
            fields=(GatewayField.ABORTED,), names=("envoy_cluster_upstream_rq_tx_reset",)
        ),
        GatewayMetric(less=(GatewayField.ABORTED,), names=("envoy_cluster_upstream_rq_timeout",)),
        GatewayMetric(
            fields=(GatewayField.CUT,),
            names=("envoy_cluster_upstream_cx_destroy_remote_with_active_rq",),
        ),
        GatewayMetric(fields=(GatewayField.CUT,), names=("envoy_cluster_upstream_rq_rx_reset",)),
        GatewayMetric(
            fields=(GatewayField.QUEUED,), names=("envoy_cluster_upstream_rq_pending_active",)
        ),
        GatewayMetric(fields=(GatewayField.ACTIVE,), names=("envoy_cluster_upstream_rq_active",)),
    ),
    workload_label="envoy_cluster_name",
    known_by=("envoy_cluster_membership_total",),
    forgets_empty=True,
    latency=GatewayLatency(names=("envoy_cluster_upstream_rq_time",), unit=1e-3),
    pattern=r"(?:http|grpc)route/(?P<namespace>[^/]+)/(?P<name>[^/]+)/rule/"
    r"(?:(?P<rule>\d{1,9})/backend/(?P<backend>\d{1,9})|.*)",
    # Envoy answers a request beyond a circuit breaker with 503 itself, and counts that here too.
    backend_metrics=(
        GatewayMetric(
            fields=(GatewayField.FAILED,),
            names=("envoy_cluster_upstream_rq_xx",),
            label="envoy_response_code_class",
            values=frozenset({"5"}),
        ),
        GatewayMetric(
            fields=(GatewayField.FAILED,),
            names=("envoy_cluster_upstream_rq",),
            label="envoy_response_code",
            values=frozenset({"429"}),
        ),
        GatewayMetric(
            fields=(GatewayField.ENDED,), names=("envoy_cluster_upstream_rq_time_count",)
        ),
        GatewayMetric(
            fields=(GatewayField.ENDED_MILLISECONDS,),
            names=("envoy_cluster_upstream_rq_time_sum",),
        ),
    ),
)

# Source: kubernetes-sigs/gateway-api-inference-extension and llm-d/llm-d-router, pkg/epp/metrics
# and pkg/epp/handlers/server.go: a request is counted when a pod was found for it. A refused one
# (429 at saturation, 503 without pods) is only in the error counter. An endpoint picker
# serves one InferencePool and names it in its pool metrics, not on the counters. Versions in
# transition export the old and the new names on one page. ModelServerError is an answer other than
# 200. The duration is from the request's headers to the end of the answer. v1.5.0 calls a 429
# ResourceExhausted, earlier ones InferencePoolResourceExhausted (pkg/common/error).
# The error counter has no priority; the flow control layer, if it is on, counts refusals by
# priority as outcomes (pkg/epp/flowcontrol/types/outcomes.go; those that
# pkg/epp/requestcontrol/admission.go turns into 429 and 503).
_PICKER_REQUESTS = GatewayMetric(
    fields=(GatewayField.REQUESTS,),
    names=(
        "llm_d_epp_request_total",
        "inference_objective_request_total",
        "inference_model_request_total",
    ),
)
_PICKER_ERRORS = (
    "llm_d_epp_request_error_total",
    "inference_objective_request_error_total",
    "inference_model_request_error_total",
)
_PICKER_QUEUE = GatewayMetric(
    fields=(GatewayField.QUEUED,),
    names=(
        "llm_d_epp_flow_control_queue_size",
        "inference_extension_flow_control_queue_size",
    ),
)
INFERENCE_EXTENSION = GatewayProfile(
    name="gateway-api-inference-extension",
    counted=CountedWhen.PASSED_ON,
    metrics=(
        _PICKER_REQUESTS,
        GatewayMetric(
            fields=(GatewayField.REQUESTS, GatewayField.REJECTED),
            names=_PICKER_ERRORS,
            label="error_code",
            values=frozenset(
                {"ResourceExhausted", "InferencePoolResourceExhausted", "ServiceUnavailable"}
            ),
        ),
        GatewayMetric(
            fields=(GatewayField.ERRORS,),
            names=_PICKER_ERRORS,
            label="error_code",
            values=frozenset({"Internal", "ModelServerError"}),
        ),
        _PICKER_QUEUE,
    ),
    workload_label="name",
    pages=("llm_d_epp_ready_endpoints", "inference_pool_ready_pods"),
    priority_label="priority",
    priority_metrics=(
        _PICKER_REQUESTS,
        GatewayMetric(
            fields=(GatewayField.REQUESTS, GatewayField.REJECTED),
            names=(
                "llm_d_epp_flow_control_request_queue_duration_seconds_count",
                "inference_extension_flow_control_request_queue_duration_seconds_count",
            ),
            label="outcome",
            values=frozenset({"RejectedCapacity", "EvictedTTL", "EvictedContextCancelled"}),
        ),
        _PICKER_QUEUE,
    ),
    saturation=(
        "llm_d_epp_flow_control_pool_saturation",
        "inference_extension_flow_control_pool_saturation",
    ),
    latency=GatewayLatency(
        names=(
            "llm_d_epp_request_duration_seconds",
            "inference_objective_request_duration_seconds",
            "inference_model_request_duration_seconds",
        )
    ),
)
