"""A Lease on the API server: read, create, and renew only if it is unchanged since the read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject, Patch
from servingslo.adapters.kubernetes.api.paths import ApiPath, api_path
from servingslo.adapters.kubernetes.events import EVENTS_VERSION, event_body, micro_time
from servingslo.errors import NotFoundError
from servingslo.reasons import Reason

_API_VERSION = "coordination.k8s.io/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The state of a Lease on the API server.

    version: changes with every write. holder: '' if there is none. transitions: number of changes
    of the holder. duration_seconds: its validity after each renewal.
    """

    uid: str
    version: str
    holder: str
    duration_seconds: float
    transitions: int
    annotations: Mapping[str, str] = field(default_factory=dict)


class KubernetesLease:
    """One Lease. Its times are only for people; holder and validity are decided without them.

    states: annotations that its holder writes; None for one that there should not be.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        states: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._states = states

    async def read(self) -> LeaseRecord | None:
        """The current Lease, None if there is none. Raises: ClusterError."""
        try:
            return _record(await self._client.get(self._path()))
        except NotFoundError:
            return None

    async def create(self, holder: str, duration_seconds: int) -> LeaseRecord:
        """Create a held Lease. Raises: WriteConflictError if there is one; ClusterError."""
        now = micro_time(SystemClock.now_seconds())
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration_seconds,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        }
        body = {
            "apiVersion": _API_VERSION,
            "kind": "Lease",
            "metadata": {"name": self._name, **self._stated({})},
            "spec": spec,
        }
        return _record(await self._client.create_named(self._path(), body))

    async def write(self, known: LeaseRecord, holder: str, duration_seconds: int) -> LeaseRecord:
        """Take or renew the known Lease, or release it with a holder of ''.

        Raises: WriteConflictError if it has changed since it was read; ClusterError otherwise.
        """
        now = micro_time(SystemClock.now_seconds())
        spec: dict[str, Any] = {"holderIdentity": holder, "renewTime": now}
        if holder:
            spec["leaseDurationSeconds"] = duration_seconds
        if holder and holder != known.holder:
            spec |= {"acquireTime": now, "leaseTransitions": known.transitions + 1}
        stated = self._stated(known.annotations) if holder else {}
        metadata = {"resourceVersion": known.version, "uid": known.uid, **stated}
        body = {"metadata": metadata, "spec": spec}
        return _record(await self._client.patch(self._path(), body, Patch.MERGE))

    def _path(self) -> ApiPath:
        return api_path(_API_VERSION, "leases", namespace=self._namespace, name=self._name)

    def _stated(self, before: Mapping[str, str]) -> dict[str, Any]:
        """The annotations that differ from before, as part of the metadata."""
        new = {name: text for name, text in self._states.items() if text != before.get(name)}
        return {"annotations": new} if new else {}


async def post_warning(
    client: KubeClient, namespace: str, name: str, reason: Reason, message: str
) -> None:
    """Post an event about a Lease. Raises: ClusterError if the API server refuses."""
    regarding = {
        "apiVersion": _API_VERSION,
        "kind": "Lease",
        "namespace": namespace,
        "name": name,
    }
    body = event_body(
        {"generateName": f"{name}-", "namespace": namespace},
        regarding,
        type_="Warning",
        reason=reason,
        note=message,
        now_seconds=SystemClock.now_seconds(),
    )
    await client.create(api_path(EVENTS_VERSION, "events", namespace=namespace), body)


def _record(item: KubeObject) -> LeaseRecord:
    metadata: KubeObject = item["metadata"]
    spec: KubeObject = item.get("spec") or {}
    return LeaseRecord(
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        holder=spec.get("holderIdentity") or "",
        duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
        transitions=int(spec.get("leaseTransitions") or 0),
        annotations=metadata.get("annotations") or {},
    )
