"""Find the engine's container in a pod.

A pod may have several containers, and the engine need not be the first: service meshes inject
containers before it, and sign-on or metrics proxies run in front of it. A wrong choice would read a
proxy's command line as the engine's and write batch limits into it. So a container is chosen only
if all evidence points at it. Otherwise the ambiguity is reported and nothing is written.
"""

import re
from collections.abc import Collection, Sequence

from servingslo.adapters.kubernetes.pods.records import ContainerRecord
from servingslo.runtimes import catalogue
from servingslo.runtimes.launch.command_line import expanded
from servingslo.runtimes.launch.programs import Naming, naming
from servingslo.runtimes.profile import RuntimeProfile

# The field in which a user names the container.
FIELD = "spec.batching.container"
# Containers known to serve no model, by the names that their injectors use.
# Source: Istio, Linkerd, Consul, Kuma, Knative and KServe, Dapr, Vault, oauth2-proxy, OpenShift,
# kube-rbac-proxy, Cloud SQL, Cloud Storage FUSE, OpenTelemetry, Fluent Bit, AWS App Mesh, llm-d.
_NO_ENGINES = frozenset(
    {"istio-proxy", "linkerd-proxy", "consul-dataplane", "consul-connect-envoy-sidecar"}
    | {"kuma-sidecar", "envoy", "envoy-sidecar", "envoy-proxy", "queue-proxy", "daprd"}
    | {"vault-agent", "oauth2-proxy", "oauth-proxy", "auth-proxy", "kube-rbac-proxy"}
    | {"cloud-sql-proxy", "cloudsql-proxy", "gke-gcsfuse-sidecar", "otc-container"}
    | {"otel-collector", "fluent-bit", "fluentd", "filebeat", "promtail", "routing-proxy"}
    | {"storage-initializer", "xray-daemon", "dcgm-exporter"}
)
# Words in the names of helper containers; used only if nothing else decides.
_BESIDE = frozenset({"proxy", "sidecar", "exporter", "agent", "collector", "logger", "mesh"})
_SHOWN = 5


def engine_container(
    containers: Sequence[ContainerRecord],
    name: str | None,
    *,
    runtime: str | None = None,
    scraped_ports: Collection[int] = (),
    among: Collection[str] = (),
) -> ContainerRecord | None:
    """The engine's container: the named one, else the only one that all evidence points at.

    runtime: of the engine; None while it is not known. scraped_ports: the ports of the metrics.
    among: names of the template's containers: others were injected and are no engine.
    Returns None if there is no container of that name, or none at all. If it is ambiguous, the
    record has no name and no command line, and `unread` has the reason.
    """
    if name is not None:
        return next((one for one in containers if one.name == name), None)
    if not containers:
        return None
    known = [one for one in containers if one.name in among] or containers
    profiles = [one for one in catalogue.known() if one.name == runtime]
    candidates = _candidates(known, profiles, scraped_ports)
    return candidates[0] if len(candidates) == 1 else _unclear(known, candidates)


def sidecar_refused(container: ContainerRecord) -> str:
    """Why limits are not written into this container: a native sidecar; '' for others."""
    return f"{container.name} is an init container, which is not changed" * container.sidecar


def _candidates(
    containers: Sequence[ContainerRecord],
    profiles: Sequence[RuntimeProfile],
    scraped_ports: Collection[int],
) -> Sequence[ContainerRecord]:
    """The containers that may be the engine, from their devices, names and command lines."""
    every = catalogue.known()
    serving = [one for one in containers if one.name not in _NO_ENGINES or _naming(one, every)]
    asking = [one for one in serving if one.card]
    named = _surest(serving, profiles) or _surest(serving, every)
    starting = [one for one in named if _naming(one, every) is Naming.COMMAND]
    if asking and starting and not any(one in asking for one in starting):
        return [*asking, *starting]
    found = (
        [one for one in asking if one in named]
        or asking
        or named
        or [one for one in serving if one.accelerator]
        or _not_beside([one for one in serving if not one.sidecar])
    )
    if len(found) == 1:
        return found
    # A proxy may forward the engine's metrics page, so a port is only a tie-breaker.
    ports = frozenset(scraped_ports)
    scraped = [one for one in found if one.scraped or not ports.isdisjoint(one.ports)]
    return scraped or found


def _not_beside(containers: Sequence[ContainerRecord]) -> Sequence[ContainerRecord]:
    """Those without a helper's name; all of them if every one has such a name."""
    return [
        one for one in containers if _BESIDE.isdisjoint(re.split(r"[-.]", one.name))
    ] or containers


def _surest(
    containers: Sequence[ContainerRecord], profiles: Sequence[RuntimeProfile]
) -> Sequence[ContainerRecord]:
    """Those that name a runtime; if none does, those that only start a script."""
    told = [(one, _naming(one, profiles)) for one in containers]
    sure = [one for one, how in told if how > Naming.SCRIPT]
    return sure or [one for one, how in told if how]


def _naming(container: ContainerRecord, profiles: Sequence[RuntimeProfile]) -> Naming:
    """How certainly its command line or image names one of the runtimes."""
    command = expanded(container.command, container.environment)
    args = expanded(container.args, container.environment)
    # A sidecar with the engine's image fetches weights or adapters for it.
    image = None if container.sidecar else container.image
    told = (naming(command, args, image, profile) for profile in profiles)
    return max(told, default=Naming.NOT_AT_ALL)


def _unclear(
    containers: Sequence[ContainerRecord], candidates: Sequence[ContainerRecord]
) -> ContainerRecord:
    """A placeholder record for an ambiguous engine: only its devices are known."""
    told = list(dict.fromkeys(one.name for one in candidates or containers))
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    names = f"{', '.join(told[:_SHOWN])}{more}"
    why = "may each be the engine" if candidates and len(told) > 1 else "do not look like an engine"
    if len(told) == 1:
        why = "does not look like an engine"
    return ContainerRecord(
        name="",
        image=None,
        command=(),
        args=(),
        accelerator=any(one.accelerator for one in candidates or containers),
        unread=f"the engine's container is unclear ({names} {why}): set {FIELD}",
    )
