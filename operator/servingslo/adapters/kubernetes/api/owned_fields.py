"""A field of other people's objects that the operator sets for a while: read, written, put back.

One JSON Patch sets the field and an annotation with its owner and the former value, under a test of
uid and resourceVersion. If the process is killed, both were written or neither. Only an object that
its owner labelled is changed, and only this field of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from servingslo.adapters.kubernetes.api.annotations import record_in
from servingslo.adapters.kubernetes.api.cache import listed
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.marked_objects import (
    annotated,
    annotations_of,
    is_managed,
    marked_released,
    patch_unchanged,
    removed_annotation,
    taken_again,
)
from servingslo.adapters.kubernetes.api.paths import ApiPath, api_path
from servingslo.errors import NotFoundError


class Owner(Protocol):
    """What an annotation says at least: the name and uid of the ServingSLO that set the field."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def uid(self) -> str:
        """Its uid."""
        ...


Record = TypeVar("Record", bound=Owner)
One = TypeVar("One", bound="OwnedObject[Any]")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedObject(ABC, Generic[Record]):
    """One object as it was read. owner: None if the operator has not written into it."""

    item: KubeObject
    owner: Record | None

    @property
    @abstractmethod
    def kind(self) -> str:
        """Its kind."""

    @property
    @abstractmethod
    def is_ours(self) -> bool:
        """Whether the present value is the operator's last written one."""

    @abstractmethod
    def written(self, owner: Record) -> Iterable[KubeObject]:
        """The changes that set the recorded value."""

    @abstractmethod
    def restored(self, owner: Record) -> Iterable[KubeObject]:
        """The changes that set the former value."""

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.item["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.item["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Its uid."""
        return str(self.item["metadata"]["uid"])

    @property
    def title(self) -> str:
        """Kind and name, as kubectl writes them."""
        return f"{self.kind}/{self.name}"

    @property
    def spec(self) -> Mapping[str, Any]:
        """Its spec, empty if it has none."""
        return self.item.get("spec") or {}

    @property
    def managed(self) -> bool:
        """Whether its owner labelled it for the operator."""
        return is_managed(self.item)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedField(Generic[One, Record]):
    """Reads and changes one field in the objects of a kind; no namespaces: in all of them.

    record: of the annotation's content. make: an object as read, with that content.
    """

    client: KubeClient
    api_version: str
    plural: str
    annotation: str
    record: TypeAdapter[Record]
    make: Callable[[KubeObject, Record | None], One]
    namespaces: Sequence[str] = ()

    async def read(self, namespace: str, name: str) -> One:
        """The current state of one object. Raises: NotFoundError, ClusterError."""
        try:
            return self.seen(await self.client.get(self._path(namespace, name)))
        except NotFoundError as error:
            raise NotFoundError("there is none of that name in this namespace") from error

    async def in_namespace(self, namespace: str) -> tuple[One, ...]:
        """All objects of a namespace. Raises: ClusterError."""
        return tuple(map(self.seen, (await listed(self.client, self._path(namespace))).items))

    async def owned(self) -> tuple[One, ...]:
        """Every object that the operator has written into. Raises: ClusterError.

        Empty if the cluster does not serve the kind.
        """
        found: list[One] = []
        for namespace in self.namespaces or (None,):
            try:
                found += map(self.seen, (await listed(self.client, self._path(namespace))).items)
            except NotFoundError:
                continue
        return tuple(one for one in found if one.owner is not None)

    async def write(self, one: One, owner: Record) -> None:
        """Set the field and record its owner. owner: with the former value, if it is new.

        Raises: WriteConflictError if the object changed since it was read; ClusterError otherwise.
        """
        record = self.record.dump_json(owner, by_alias=True, exclude_defaults=True).decode()
        changes = (*annotated(one.item, self.annotation, record), *taken_again(one.item))
        await self._patch(one, [*changes, *one.written(owner)])

    async def put_back(self, one: One, *, released: bool = False) -> bool:
        """Restore the value from before the operator's.

        If another writer set another value meanwhile, it is kept; only the annotation is removed.
        Returns False if there is none of ours. released: do not change the object for a while.
        Raises: WriteConflictError if the object changed since it was read; ClusterError otherwise.
        """
        if one.owner is None:
            return False
        changes: list[KubeObject] = [removed_annotation(self.annotation)]
        if released:
            changes += marked_released(one.item)
        if one.is_ours:
            changes += one.restored(one.owner)
        await self._patch(one, changes)
        return True

    def seen(self, item: KubeObject) -> One:
        """The object that the API server told."""
        text = annotations_of(item).get(self.annotation) or ""
        return self.make(item, record_in(text, self.record))

    async def _patch(self, one: One, changes: Sequence[KubeObject]) -> None:
        path = self._path(one.namespace, one.name)
        await patch_unchanged(self.client, path, one.item, one.title, changes)

    def _path(self, namespace: str | None, name: str | None = None) -> ApiPath:
        return api_path(self.api_version, self.plural, namespace=namespace, name=name)
