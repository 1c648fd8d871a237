"""Read and write the bound in a gateway's object, and restore the former value exactly.

One JSON Patch sets the field and an annotation with the bound's owner and the former value, under a
test of uid and resourceVersion. If the process is killed, both were written or neither. Only an
object that its owner labelled is changed, and only this one field (`limit_forms.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from servingslo.adapters.kubernetes.api.annotations import AS_WRITTEN, Count, record_in
from servingslo.adapters.kubernetes.api.cache import listed
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.marked_objects import (
    FIELD_MANAGER,
    annotated,
    annotations_of,
    is_managed,
    marked_released,
    patch_unchanged,
    removed_annotation,
    taken_again,
)
from servingslo.adapters.kubernetes.api.paths import ApiPath, api_path
from servingslo.adapters.kubernetes.gateways.limit_forms import LimitForm
from servingslo.errors import NotFoundError

LIMIT_ANNOTATION = "servingslo.dev/limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOwner:
    """The annotation's content: the bound's owner, the bound, and the former value.

    former: None if the field was absent. had_parent: whether the object around the field existed.
    had_parents: if not, how many of the objects around that one existed.
    """

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    name: str
    uid: str
    limit: Count
    former: Count | None
    had_parent: Annotated[bool, Field(alias="hadParent")]
    had_parents: Annotated[Count, Field(alias="hadParents")] = 0


_OWNER = TypeAdapter(LimitOwner)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHolder:
    """One object with a bound. owner: None if the operator has not written into it.

    manager: the one that set the bound last, if not the operator. applied_by: the manager that
    declares the bound by server-side apply, and would set it again.
    """

    form: LimitForm
    namespace: str
    name: str
    uid: str
    version: str
    managed: bool
    limit: int | None
    owner: LimitOwner | None
    manager: str | None
    applied_by: str | None
    item: KubeObject

    @property
    def spec(self) -> Mapping[str, Any]:
        """Its spec, empty if it has none."""
        return _spec(self.item)

    @property
    def title(self) -> str:
        """Kind and name, as kubectl writes them."""
        return f"{self.form.kind}/{self.name}"

    @property
    def is_ours(self) -> bool:
        """Whether the current value is the operator's last written one."""
        return self.owner is not None and self.owner.limit == self.limit


class LimitHolders:
    """The objects of one kind in the watched namespaces; no namespace means all."""

    def __init__(
        self, client: KubeClient, form: LimitForm, *, namespaces: Sequence[str] = ()
    ) -> None:
        self._client = client
        self._form = form
        self._namespaces = tuple(namespaces)

    async def read(self, namespace: str, name: str) -> LimitHolder:
        """The current state of one object. Raises: NotFoundError, ClusterError."""
        try:
            return self._holder(await self._client.get(self._path(namespace, name)))
        except NotFoundError as error:
            raise NotFoundError("there is none of that name in this namespace") from error

    async def in_namespace(self, namespace: str) -> tuple[LimitHolder, ...]:
        """All objects of a namespace. Raises: ClusterError."""
        found = await listed(self._client, self._path(namespace))
        return tuple(self._holder(item) for item in found.items)

    async def owned(self) -> tuple[LimitHolder, ...]:
        """Every object that the operator has written into. Raises: ClusterError.

        Empty if the cluster does not serve the kind.
        """
        found: list[KubeObject] = []
        for namespace in self._namespaces or (None,):
            try:
                found += (await listed(self._client, self._path(namespace))).items
            except NotFoundError:
                continue
        return tuple(one for one in map(self._holder, found) if one.owner is not None)

    async def write(self, holder: LimitHolder, owner: LimitOwner) -> None:
        """Set the bound and record its owner. owner: with the former value, if it is new.

        Raises: WriteConflictError if the object changed since it was read; ClusterError otherwise.
        """
        record = _OWNER.dump_json(owner, by_alias=True, exclude_defaults=True).decode()
        changes = [
            *annotated(holder.item, LIMIT_ANNOTATION, record),
            *taken_again(holder.item),
        ]
        form, inner = self._form, len(self._form.parents)
        missing = range(len(form.around(holder.spec)), inner)
        changes += [{"op": "add", "path": form.pointer(depth), "value": {}} for depth in missing]
        changes.append({"op": "add", "path": form.pointer(inner), "value": owner.limit})
        await self._patch(holder, changes)

    async def put_back(self, holder: LimitHolder, *, released: bool = False) -> bool:
        """Restore the value from before the operator's bound.

        If another writer set another value meanwhile, it is kept; only the annotation is removed.
        Returns False if there is none of ours. released: do not change the object for a while.
        Raises: WriteConflictError if the object changed since it was read; ClusterError otherwise.
        """
        owner = holder.owner
        if owner is None:
            return False
        changes: list[KubeObject] = [removed_annotation(LIMIT_ANNOTATION)]
        if released:
            changes += marked_released(holder.item)
        if holder.is_ours:
            changes.append(_restored(holder, owner))
        await self._patch(holder, changes)
        return True

    async def _patch(self, holder: LimitHolder, changes: Sequence[KubeObject]) -> None:
        path = self._path(holder.namespace, holder.name)
        await patch_unchanged(self._client, path, holder.item, holder.title, changes)

    def _path(self, namespace: str | None, name: str | None = None) -> ApiPath:
        return api_path(self._form.api_version, self._form.plural, namespace=namespace, name=name)

    def _holder(self, item: KubeObject) -> LimitHolder:
        metadata: Mapping[str, Any] = item["metadata"]
        annotations = annotations_of(item)
        entries = [
            entry for entry in metadata.get("managedFields") or () if _sets(entry, self._form)
        ]
        return LimitHolder(
            form=self._form,
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            version=metadata["resourceVersion"],
            managed=is_managed(item),
            limit=self._form.limit(_spec(item)),
            owner=record_in(annotations.get(LIMIT_ANNOTATION) or "", _OWNER),
            manager=_manager(entries),
            applied_by=_manager(entries, operation="Apply"),
            item=item,
        )


def _spec(item: KubeObject) -> Mapping[str, Any]:
    found: Mapping[str, Any] = item.get("spec") or {}
    return found


def _restored(holder: LimitHolder, owner: LimitOwner) -> KubeObject:
    """The change that restores the field's former value.

    Objects that were created around it are removed too, if they contain nothing else.
    """
    form, inner = holder.form, len(holder.form.parents)
    if owner.former is not None:
        return {"op": "add", "path": form.pointer(inner), "value": owner.former}
    around, depth = form.around(holder.spec), inner
    others = {key: value for key, value in around[-1].items() if key != form.field}
    filled_in = all(form.defaulted.get(key) == value for key, value in others.items())
    ours = inner if owner.had_parent else owner.had_parents
    if filled_in and ours < inner:
        depth = inner - 1
        while depth > ours and len(around[depth - 1]) == 1:
            depth -= 1
    return {"op": "remove", "path": form.pointer(depth)}


def taken(holder: LimitHolder, name: str, uid: str, limit: int) -> LimitOwner:
    """The owner to write, with the former value; our own bound never becomes the former value."""
    if holder.owner is not None:
        return replace(holder.owner, name=name, uid=uid, limit=limit)
    around, parents = len(holder.form.around(holder.spec)), len(holder.form.parents)
    had_parent = around == parents
    return LimitOwner(
        name=name,
        uid=uid,
        limit=limit,
        former=holder.limit,
        had_parent=had_parent,
        had_parents=0 if had_parent else around,
    )


def _sets(entry: Mapping[str, Any], form: LimitForm) -> bool:
    """Whether an entry of managedFields contains the field."""
    fields: Mapping[str, Any] = (entry.get("fieldsV1") or {}).get("f:spec") or {}
    for name in form.parents:
        fields = fields.get(f"f:{name}") or {}
    return f"f:{form.field}" in fields


def _manager(entries: Sequence[Mapping[str, Any]], operation: str | None = None) -> str | None:
    """The field manager that set the bound last, if it is not the operator.

    operation: Apply or Update; None for either.
    """
    others = [
        entry
        for entry in entries
        if entry.get("manager") != FIELD_MANAGER and operation in {None, entry.get("operation")}
    ]
    newest = max(others, key=lambda entry: str(entry.get("time")), default=None)
    return None if newest is None else str(newest.get("manager"))
