"""Read one Gateway's objects from the API server for the translator, and write back its answer."""

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubernetes.aio import client

Object = dict[str, Any]

_GATEWAY_API = ("gateway.networking.k8s.io", "v1")
_ENVOY = ("gateway.envoyproxy.io", "v1alpha1")
# Kind, group and version, plural, and the name in the translator's answer.
_KINDS = (
    ("Gateway", *_GATEWAY_API, "gateways", "gateways"),
    ("HTTPRoute", *_GATEWAY_API, "httproutes", "httpRoutes"),
    ("BackendTrafficPolicy", *_ENVOY, "backendtrafficpolicies", "backendTrafficPolicies"),
)
_REQUEST_SECONDS = 5.0
# The client's exceptions if the API server does not answer.
UNREACHABLE = (client.ApiException, OSError, TimeoutError, client.rest.aiohttp.ClientError)
# Where the rig's engines listen.
ENGINE_PORT = 8000
_KEPT_METADATA = ("name", "namespace", "labels", "annotations", "creationTimestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayObjects:
    """The objects of one namespace, with the cluster's GatewayClasses.

    translated: the translator's input. services, pods: the source of endpoints.
    """

    translated: tuple[Object, ...]
    services: Mapping[str, Any] = field(default_factory=dict)
    pods: tuple[Any, ...] = ()

    def addresses(self, service: Mapping[str, Any]) -> list[tuple[str, int]]:
        """Addresses of the Ready pods behind a port of a Service, in order."""
        found = self.services.get(service["name"])
        if found is None or not found.spec.selector:
            return []
        wanted = int(service["sectionName"])
        port = next((one for one in found.spec.ports if one.port == wanted), None)
        if port is None:
            return []
        target = port.target_port if isinstance(port.target_port, int) else port.port
        ready = [
            pod.status.pod_ip
            for pod in self.pods
            if found.spec.selector.items() <= (pod.metadata.labels or {}).items() and _ready(pod)
        ]
        return sorted((address, target) for address in ready)


def _ready(pod: Any) -> bool:
    conditions = {one.type: one.status for one in (pod.status.conditions or [])}
    gone = pod.metadata.deletion_timestamp is not None
    return bool(pod.status.pod_ip) and conditions.get("Ready") == "True" and not gone


async def read_objects(
    api: client.ApiClient, namespace: str, *, with_policies: bool = True
) -> GatewayObjects:
    """Read all objects. Raises: the client's errors if the API server does not answer.

    Namespaces and EndpointSlices are not read: each namespace is translated separately, and the API
    server accepts no EndpointSlice with a loopback address.
    """
    custom, core = client.CustomObjectsApi(api), client.CoreV1Api(api)
    timeout = {"_request_timeout": _REQUEST_SECONDS}
    classes = await custom.list_cluster_custom_object(*_GATEWAY_API, "gatewayclasses", **timeout)
    translated = [_for_translator(one, "GatewayClass", _GATEWAY_API) for one in classes["items"]]
    for kind, group, version, plural, _ in _KINDS:
        if group == _ENVOY[0] and not with_policies:
            continue
        found = await custom.list_namespaced_custom_object(
            group, version, namespace, plural, **timeout
        )
        translated += [_for_translator(one, kind, (group, version)) for one in found["items"]]
    services = (await core.list_namespaced_service(namespace, **timeout)).items
    pods = (await core.list_namespaced_pod(namespace, **timeout)).items
    plain = (api.sanitize_for_serialization(one) for one in services)
    translated += [_for_translator(one, "Service", ("", "v1")) for one in plain]
    return GatewayObjects(
        translated=tuple(translated),
        services={one.metadata.name: one for one in services},
        pods=tuple(pods),
    )


def _for_translator(found: Object, kind: str, group_version: tuple[str, str]) -> Object:
    """An object without the fields that the translator ignores or that change by themselves."""
    metadata = {name: v for name, v in found["metadata"].items() if name in _KEPT_METADATA}
    group, version = group_version
    return {
        "apiVersion": f"{group}/{version}" if group else version,
        "kind": kind,
        "metadata": metadata,
        "spec": found.get("spec", {}),
    }


class StatusWriter:
    """Writes the translator's verdicts (Accepted, Overridden, ...) into status, on change only."""

    def __init__(self, api: client.ApiClient) -> None:
        self._custom = client.CustomObjectsApi(api)
        self._written: dict[tuple[str, str], str] = {}

    async def write(self, answer: Mapping[str, Any]) -> None:
        """Write what changed since the last answer."""
        for _, group, version, plural, listed in _KINDS:
            for found in answer.get(listed, ()):
                name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
                status = json.dumps(found.get("status", {}), sort_keys=True)
                if self._written.get((plural, name)) == status:
                    continue
                with contextlib.suppress(client.ApiException):  # it is gone or was written again
                    await self._custom.patch_namespaced_custom_object_status(
                        group, version, namespace, plural, name,
                        {"status": _dated(json.loads(status))},
                        _request_timeout=_REQUEST_SECONDS,
                        _content_type="application/merge-patch+json",
                    )  # fmt: skip
                    self._written[plural, name] = status


def _dated(value: Any) -> Any:
    """A status whose conditions get the current time if the translator sets none."""
    if isinstance(value, dict):
        return {
            name: _now() if name == "lastTransitionTime" and inner is None else _dated(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_dated(one) for one in value]
    return value


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def fingerprint(objects: Iterable[Object]) -> str:
    """A text that changes with every change of the translator's input."""
    return json.dumps(list(objects), sort_keys=True, default=str)
