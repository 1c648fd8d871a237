"""The bound of a BackendTrafficPolicy (Envoy Gateway): read, written, and put back to the letter.

One JSON Patch sets the field and the annotation that says whose it is and what stood before, under
a test of uid and resourceVersion: killed in between, either both were written or neither. Only an
object that its owner labelled is touched, and of it only `spec.circuitBreaker.maxParallelRequests`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.annotations import AS_WRITTEN, Count, record_in
from servingslo.adapters.kubernetes.cache import listed
from servingslo.adapters.kubernetes.client import KubeClient, KubeObject, Patch
from servingslo.adapters.kubernetes.timestamps import seconds_from_timestamp, timestamp_from_seconds
from servingslo.errors import InvalidObjectError, NotFoundError, WriteConflictError

API = "/apis/gateway.envoyproxy.io/v1alpha1"
PLURAL = "backendtrafficpolicies"
MANAGED_LABEL = "servingslo.dev/managed"
LIMIT_ANNOTATION = "servingslo.dev/limit"
RELEASED_ANNOTATION = "servingslo.dev/released"
FIELD_MANAGER = "servingslo-operator"
# After `servingslo release` an object is left alone for so long: the operator ends meanwhile.
RELEASED_SECONDS = 600.0
# What the CRD fills in beside a field of a circuit breaker that is set (Envoy Gateway v1.9.1).
_DEFAULT = 1024
_DEFAULTED = ("maxConnections", "maxPendingRequests", "maxParallelRequests", "maxParallelRetries")
_PARENT, _FIELD = "circuitBreaker", "maxParallelRequests"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOwner:
    """What the annotation says: whose bound it is, which one, and what stood before.

    former: None where the field was absent. had_parent: whether there was a circuit breaker at all.
    """

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    name: str
    uid: str
    limit: Count
    former: Count | None
    had_parent: Annotated[bool, Field(alias="hadParent")]


_OWNER = TypeAdapter(LimitOwner)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObject:
    """One BackendTrafficPolicy. owner: None while the operator has written nothing into it.

    manager: that set the bound last, where it is another's. applied_by: who declares the bound by
    server-side apply, and would set it again.
    """

    namespace: str
    name: str
    uid: str
    version: str
    managed: bool
    limit: int | None
    owner: LimitOwner | None
    released_seconds: float | None
    manager: str | None
    applied_by: str | None
    item: KubeObject

    @property
    def is_ours(self) -> bool:
        """Whether what the operator wrote last stands there still."""
        return self.owner is not None and self.owner.limit == self.limit

    @property
    def is_released(self) -> bool:
        """Whether it was put back a moment ago, by `servingslo release`."""
        since = self.released_seconds
        return since is not None and SystemClock.now_seconds() - since < RELEASED_SECONDS


class BackendTrafficPolicies:
    """The policies of the namespaces that are watched; none means all."""

    def __init__(self, client: KubeClient, *, namespaces: Sequence[str] = ()) -> None:
        self._client = client
        self._namespaces = tuple(namespaces)

    async def read(self, namespace: str, name: str) -> PolicyObject:
        """One policy as it is now. Raises: NotFoundError, ClusterError."""
        try:
            return _policy(await self._client.get(_path(namespace, name)))
        except NotFoundError as error:
            raise NotFoundError("there is none of that name in this namespace") from error

    async def in_namespace(self, namespace: str) -> tuple[PolicyObject, ...]:
        """All policies of a namespace. Raises: ClusterError."""
        found = await listed(self._client, _path(namespace))
        return tuple(_policy(item) for item in found.items)

    async def owned(self) -> tuple[PolicyObject, ...]:
        """Every policy that the operator has written into. Raises: ClusterError.

        Empty where the cluster does not serve the kind.
        """
        paths = [_path(namespace) for namespace in self._namespaces] or [f"{API}/{PLURAL}"]
        found: list[KubeObject] = []
        for path in paths:
            try:
                found += (await listed(self._client, path)).items
            except NotFoundError:
                continue
        return tuple(one for one in map(_policy, found) if one.owner is not None)

    async def write(self, policy: PolicyObject, owner: LimitOwner) -> None:
        """Set the bound, and say whose it is. owner: with what stood before, where it is new.

        Raises: WriteConflictError when the object is not as it was read; ClusterError otherwise.
        """
        changes = [
            *_annotated(policy, LIMIT_ANNOTATION, _OWNER.dump_json(owner, by_alias=True).decode())
        ]
        if RELEASED_ANNOTATION in _annotations(policy.item):
            changes.append(_removed_annotation(RELEASED_ANNOTATION))
        if _PARENT not in policy.item["spec"]:
            changes.append({"op": "add", "path": f"/spec/{_PARENT}", "value": {}})
        changes.append(
            {"op": "add", "path": f"/spec/{_PARENT}/{_FIELD}", "value": owner.limit},
        )
        await self._patch(policy, changes)

    async def put_back(self, policy: PolicyObject, *, released: bool = False) -> None:
        """Put back what stood before the operator's bound.

        Where somebody else has set another meanwhile that one stays, and only the annotation goes.
        released: the object is to be left alone for a while.
        Raises: WriteConflictError when the object is not as it was read; ClusterError otherwise.
        """
        owner = policy.owner
        if owner is None:
            return
        changes: list[KubeObject] = [_removed_annotation(LIMIT_ANNOTATION)]
        if released:
            now = timestamp_from_seconds(SystemClock.now_seconds())
            changes += _annotated(policy, RELEASED_ANNOTATION, now)
        if policy.is_ours:
            changes += _restored(policy, owner)
        await self._patch(policy, changes)

    async def _patch(self, policy: PolicyObject, changes: Sequence[KubeObject]) -> None:
        tests: list[KubeObject] = [
            {"op": "test", "path": "/metadata/uid", "value": policy.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": policy.version},
        ]
        try:
            await self._client.patch(
                _path(policy.namespace, policy.name),
                [*tests, *changes],
                Patch.JSON,
                field_manager=FIELD_MANAGER,
            )
        except InvalidObjectError as error:
            raise WriteConflictError(
                f"BackendTrafficPolicy/{policy.name} changed meanwhile: {error}"
            ) from error


def _restored(policy: PolicyObject, owner: LimitOwner) -> Iterator[KubeObject]:
    """The changes that make the field what it was before ours."""
    if owner.former is not None:
        yield {"op": "add", "path": f"/spec/{_PARENT}/{_FIELD}", "value": owner.former}
        return
    parent: Mapping[str, Any] = policy.item["spec"][_PARENT]
    others = {key: value for key, value in parent.items() if key != _FIELD}
    filled_in = all(key in _DEFAULTED and value == _DEFAULT for key, value in others.items())
    if not owner.had_parent and filled_in:
        yield {"op": "remove", "path": f"/spec/{_PARENT}"}
    else:
        yield {"op": "remove", "path": f"/spec/{_PARENT}/{_FIELD}"}


def taken(policy: PolicyObject, name: str, uid: str, limit: int) -> LimitOwner:
    """The owner to write: with what stood before, which a bound of ours never becomes."""
    if policy.owner is not None:
        return replace(policy.owner, name=name, uid=uid, limit=limit)
    return LimitOwner(
        name=name,
        uid=uid,
        limit=limit,
        former=policy.limit,
        had_parent=_PARENT in policy.item["spec"],
    )


def _policy(item: KubeObject) -> PolicyObject:
    metadata: Mapping[str, Any] = item["metadata"]
    annotations = _annotations(item)
    limit = ((item.get("spec") or {}).get(_PARENT) or {}).get(_FIELD)
    return PolicyObject(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        managed=(metadata.get("labels") or {}).get(MANAGED_LABEL) == "true",
        limit=limit,
        owner=record_in(annotations.get(LIMIT_ANNOTATION) or "", _OWNER),
        released_seconds=seconds_from_timestamp(annotations.get(RELEASED_ANNOTATION)),
        manager=_manager(metadata.get("managedFields") or ()),
        applied_by=_manager(metadata.get("managedFields") or (), operation="Apply"),
        item=item,
    )


def _manager(entries: Sequence[Mapping[str, Any]], operation: str | None = None) -> str | None:
    """The field manager that set the bound last, where it is not the operator.

    operation: Apply or Update, by which it did; None for either.
    """
    owning = [
        entry
        for entry in entries
        if f"f:{_FIELD}"
        in (((entry.get("fieldsV1") or {}).get("f:spec") or {}).get(f"f:{_PARENT}") or {})
    ]
    others = [
        entry
        for entry in owning
        if entry.get("manager") != FIELD_MANAGER and operation in {None, entry.get("operation")}
    ]
    newest = max(others, key=lambda entry: str(entry.get("time")), default=None)
    return None if newest is None else str(newest.get("manager"))


def _annotations(item: KubeObject) -> Mapping[str, str]:
    found: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return found


def _annotated(policy: PolicyObject, key: str, value: str) -> Iterator[KubeObject]:
    if not _annotations(policy.item):
        yield {"op": "add", "path": "/metadata/annotations", "value": {}}
    yield {"op": "add", "path": _annotation_path(key), "value": value}


def _removed_annotation(key: str) -> KubeObject:
    return {"op": "remove", "path": _annotation_path(key)}


def _annotation_path(key: str) -> str:
    # Source: RFC 6901, section 3: a slash in a name is written ~1.
    return f"/metadata/annotations/{key.replace('/', '~1')}"


def _path(namespace: str, name: str = "") -> str:
    base = f"{API}/namespaces/{namespace}/{PLURAL}"
    return f"{base}/{name}" if name else base
