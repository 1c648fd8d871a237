"""Envoy's files for a proxy that asks an endpoint picker (ext_proc) where each request goes.

Source: the Envoy of the inference extension's own chart (v1.5.0, config/charts/standalone/
values.yaml): whole bodies are streamed to the picker, and its answer names the pod in a header
that the cluster's load balancer reads. Left out: encryption, access logs, health checks.
"""

from typing import Any

_TYPES = "type.googleapis.com/envoy"
_PICKED_HEADER = "x-gateway-destination-endpoint"
# A request may wait in the picker's queue, and its answer may take minutes.
_LONG = "1000s"
_UNBOUNDED = 40_000


def bootstrap(*, port: int, admin_port: int, picker_port: int) -> dict[str, Any]:
    """Envoy's bootstrap: one listener on loopback, the picker, and whatever pod it names."""
    return {
        "admin": {"address": _socket(admin_port)},
        "staticResources": {
            "listeners": [
                {
                    "name": "picker",
                    "address": _socket(port),
                    "filterChains": [{"filters": [_connection_manager()]}],
                }
            ],
            "clusters": [_picked_pod(), _picker(picker_port)],
        },
    }


def _connection_manager() -> dict[str, Any]:
    route = {
        "match": {"prefix": "/"},
        "route": {"cluster": "picked_pod", "timeout": _LONG, "idleTimeout": _LONG},
    }
    hosts = [{"name": "all", "domains": ["*"], "routes": [route]}]
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typedConfig": {
            "@type": f"{_TYPES}.extensions.filters.network.http_connection_manager.v3."
            "HttpConnectionManager",
            "statPrefix": "picker",
            "routeConfig": {"name": "all", "virtualHosts": hosts},
            "httpFilters": [
                {"name": "envoy.filters.http.ext_proc", "typedConfig": _ask_the_picker()},
                {
                    "name": "envoy.filters.http.router",
                    "typedConfig": {"@type": f"{_TYPES}.extensions.filters.http.router.v3.Router"},
                },
            ],
        },
    }


def _ask_the_picker() -> dict[str, Any]:
    return {
        "@type": f"{_TYPES}.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpcService": {"envoyGrpc": {"clusterName": "picker"}, "timeout": "10s"},
        "processingMode": {
            "requestHeaderMode": "SEND",
            "responseHeaderMode": "SEND",
            "requestBodyMode": "FULL_DUPLEX_STREAMED",
            "responseBodyMode": "FULL_DUPLEX_STREAMED",
            "requestTrailerMode": "SEND",
            "responseTrailerMode": "SEND",
        },
        "messageTimeout": _LONG,
    }


def _picked_pod() -> dict[str, Any]:
    return {
        "name": "picked_pod",
        "type": "ORIGINAL_DST",
        "connectTimeout": "5s",
        "lbPolicy": "CLUSTER_PROVIDED",
        "circuitBreakers": _no_bound(),
        "originalDstLbConfig": {"useHttpHeader": True, "httpHeaderName": _PICKED_HEADER},
    }


def _picker(port: int) -> dict[str, Any]:
    options = {
        "@type": f"{_TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicitHttpConfig": {"http2ProtocolOptions": {}},
    }
    return {
        "name": "picker",
        "type": "STATIC",
        "connectTimeout": "5s",
        "circuitBreakers": _no_bound(),
        "typedExtensionProtocolOptions": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options
        },
        "loadAssignment": {
            "clusterName": "picker",
            "endpoints": [{"lbEndpoints": [{"endpoint": {"address": _socket(port)}}]}],
        },
    }


def _no_bound() -> dict[str, Any]:
    names = ("maxConnections", "maxPendingRequests", "maxRequests")
    return {"thresholds": [dict.fromkeys(names, _UNBOUNDED)]}


def _socket(port: int) -> dict[str, Any]:
    return {"socketAddress": {"address": "127.0.0.1", "portValue": port}}
