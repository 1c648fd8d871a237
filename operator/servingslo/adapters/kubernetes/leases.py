"""A Lease on the API server: read, create, and renew only if it is unchanged since the read."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.client import KubeClient, KubeObject, Patch
from servingslo.adapters.kubernetes.events import COMPONENT
from servingslo.adapters.kubernetes.timestamps import timestamp_from_seconds
from servingslo.errors import NotFoundError
from servingslo.reasons import Reason

_API = "/apis/coordination.k8s.io/v1"


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


class KubernetesLease:
    """One Lease. Its times are only for people; holder and validity are decided without them."""

    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self._base = f"{_API}/namespaces/{namespace}/leases"
        self._name = name

    async def read(self) -> LeaseRecord | None:
        """The current Lease, None if there is none. Raises: ClusterError."""
        try:
            return _record(await self._client.get(f"{self._base}/{self._name}"))
        except NotFoundError:
            return None

    async def create(self, holder: str, duration_seconds: int) -> LeaseRecord:
        """Create a held Lease. Raises: WriteConflictError if there is one; ClusterError."""
        now = _micro_time()
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration_seconds,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        }
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": spec,
        }
        return _record(await self._client.create(self._base, body))

    async def write(self, known: LeaseRecord, holder: str, duration_seconds: int) -> LeaseRecord:
        """Take or renew the known Lease, or release it with a holder of ''.

        Raises: WriteConflictError if it has changed since it was read; ClusterError otherwise.
        """
        now = _micro_time()
        spec: dict[str, Any] = {"holderIdentity": holder, "renewTime": now}
        if holder:
            spec["leaseDurationSeconds"] = duration_seconds
        if holder and holder != known.holder:
            spec |= {"acquireTime": now, "leaseTransitions": known.transitions + 1}
        precondition = {"resourceVersion": known.version, "uid": known.uid}
        body = {"metadata": precondition, "spec": spec}
        path = f"{self._base}/{self._name}"
        return _record(await self._client.patch(path, body, Patch.MERGE))


async def post_warning(
    client: KubeClient, namespace: str, name: str, reason: Reason, message: str
) -> None:
    """Post an event about a Lease. Raises: ClusterError if the API server refuses."""
    now = timestamp_from_seconds(SystemClock.now_seconds())
    body = {
        "metadata": {"generateName": f"{name}.", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "namespace": namespace,
            "name": name,
        },
        "type": "Warning",
        "reason": reason.value,
        "message": message,
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
    }
    await client.create(f"/api/v1/namespaces/{namespace}/events", body)


def _record(item: KubeObject) -> LeaseRecord:
    metadata: KubeObject = item["metadata"]
    spec: KubeObject = item.get("spec") or {}
    return LeaseRecord(
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        holder=spec.get("holderIdentity") or "",
        duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
        transitions=int(spec.get("leaseTransitions") or 0),
    )


def _micro_time() -> str:
    """The current time as metav1.MicroTime; the API server accepts only six decimal digits."""
    now = datetime.fromtimestamp(SystemClock.now_seconds(), tz=UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
