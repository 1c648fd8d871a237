"""The ServingSLO resources themselves: list them, and write their status.

What only machines read of a status is stored in its last field, because `kubectl describe` prints
fields by name: a thousand characters in the middle would part what people read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servingslo.adapters.kubernetes.api.cache import listed
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject, Patch
from servingslo.adapters.kubernetes.api.paths import GROUPS, ApiPath, api_path
from servingslo.api.v1alpha1 import API_VERSION, KIND, PLURAL
from servingslo.errors import NotFoundError, PermissionDeniedError
from servingslo.units import seconds_from_timestamp

NOT_SERVED = f"the cluster does not serve {PLURAL} in {API_VERSION}; is the CRD installed?"

_MACHINES_READ = "workingState"
# Field and key of a packed value, and its name in the last field.
_PACKED = (("lastDecision", "document", "decision"), ("learned", "data", "learned"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRef:
    """Reference to a ServingSLO: its coordinates, and the uid to distinguish a later namesake."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRecord:
    """One ServingSLO on the API server. spec and status are unparsed."""

    ref: ResourceRef
    generation: int
    created_seconds: float
    deleting: bool
    spec: Mapping[str, Any]
    status: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    version: str = ""


class PartlyListedError(PermissionDeniedError):
    """Some namespaces refuse their list, such as one that was deleted with its Role.

    refused: those namespaces. found: the ServingSLOs of the others.
    """

    def __init__(
        self, refused: Mapping[str, PermissionDeniedError], found: Sequence[ResourceRecord]
    ) -> None:
        super().__init__("; ".join(map(str, refused.values())))
        self.refused, self.found = frozenset(refused), tuple(found)


class KubernetesResources:
    """Lists ServingSLOs and patches their status."""

    def __init__(self, client: KubeClient, *, namespaces: Sequence[str] = ()) -> None:
        self._client = client
        self._namespaces = tuple(namespaces)

    async def read_all(self) -> tuple[ResourceRecord, ...]:
        """Every ServingSLO of the watched namespaces.

        Raises: PartlyListedError if some namespaces refuse; ClusterError otherwise.
        """
        found: list[ResourceRecord] = []
        refused: dict[str, PermissionDeniedError] = {}
        for namespace in self._namespaces or (None,):
            path = api_path(API_VERSION, PLURAL, namespace=namespace)
            try:
                found += map(resource_record, (await listed(self._client, path)).items)
            except NotFoundError as error:
                raise NotFoundError(NOT_SERVED) from error
            except PermissionDeniedError as error:
                if len(self._namespaces) <= 1:
                    raise
                refused[str(namespace)] = error
        if refused:
            raise PartlyListedError(refused, found)
        return tuple(found)

    async def read(self, ref: ResourceRef) -> ResourceRecord:
        """Read the current ServingSLO of that name, with any uid.

        Raises: NotFoundError if there is none; ClusterError otherwise.
        """
        return resource_record(await self._client.get(_path(ref)))

    async def patch_status(self, ref: ResourceRef, changed: Mapping[str, Any]) -> None:
        """Merge the changed fields of the status; a field of None is removed.

        Raises: NotFoundError if the resource is gone; WriteConflictError if it is a namesake with
        another uid; ClusterError otherwise.
        """
        body = {"metadata": {"uid": ref.uid}, "status": _stored(changed)}
        await self._client.patch(_path(ref, "status"), body, Patch.MERGE)

    async def hand_over(self, known: ResourceRecord, changed: Mapping[str, Any]) -> ResourceRecord:
        """Merge the changed fields of the status if nothing of the resource has changed since.

        Raises: WriteConflictError if something has; ClusterError otherwise.
        """
        metadata = {"uid": known.ref.uid, "resourceVersion": known.version}
        body = {"metadata": metadata, "status": _stored(changed)}
        return resource_record(
            await self._client.patch(_path(known.ref, "status"), body, Patch.MERGE)
        )

    async def served(self) -> bool:
        """Whether the API server serves the resource: its CRD is installed and established.

        Raises: ClusterError if the server does not answer.
        """
        groups = await self._client.get(GROUPS)
        group, _, version = API_VERSION.partition("/")
        return any(
            entry["name"] == group
            and any(served["version"] == version for served in entry["versions"])
            for entry in groups.get("groups") or ()
        )


def _path(ref: ResourceRef, subresource: str | None = None) -> ApiPath:
    return api_path(
        API_VERSION, PLURAL, namespace=ref.namespace, name=ref.name, subresource=subresource
    )


def _stored(changed: Mapping[str, Any]) -> dict[str, Any]:
    """Changed fields of a status with what only machines read in the last one."""
    stored, moved = dict(changed), {}
    for field_, key, name in _PACKED:
        part = changed.get(field_, {})
        if part is None or key in part:
            moved[name] = (part or {}).get(key)
            # Of a former version; a null that removes nothing changes nothing.
            stored[field_] = part and {**part, key: None}
    return {**stored, _MACHINES_READ: moved} if moved else stored


def _read(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """A status with each packed value in its own field; what a former version wrote is newer."""
    status, moved = dict(stored), stored.get(_MACHINES_READ) or {}
    status.pop(_MACHINES_READ, None)
    for field_, key, name in _PACKED:
        part = stored.get(field_)
        if name in moved and part and key not in part:
            status[field_] = {**part, key: moved[name]}
    return status


def resource_record(item: KubeObject) -> ResourceRecord:
    """The record of a ServingSLO object."""
    metadata: Mapping[str, Any] = item["metadata"]
    return ResourceRecord(
        ref=ResourceRef(
            namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"]
        ),
        generation=metadata.get("generation", 0),
        created_seconds=seconds_from_timestamp(metadata.get("creationTimestamp")) or 0.0,
        deleting=metadata.get("deletionTimestamp") is not None,
        spec=item.get("spec") or {},
        status=_read(item.get("status") or {}),
        labels=metadata.get("labels") or {},
        version=metadata.get("resourceVersion", ""),
    )


def object_reference(ref: ResourceRef) -> KubeObject:
    """The v1 ObjectReference of a ServingSLO."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "namespace": ref.namespace,
        "name": ref.name,
        "uid": ref.uid,
    }
