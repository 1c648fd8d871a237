"""A field of other people's objects that the operator sets for a while: read, written, put back.

One JSON Patch sets the field and an annotation with its owner and the former value, under a test of
uid and resourceVersion. If the process is killed, both were written or neither. Only an object that
its owner labelled is changed, and only this field of it.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from servingslo.adapters.kubernetes.api.cache import listed
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.marked_objects import (
    FIELD_MANAGER,
    annotated,
    annotations_of,
    is_managed,
    marked_released,
    patch_unchanged,
    record_in,
    removed_annotation,
    taken_again,
)
from servingslo.adapters.kubernetes.api.paths import ApiPath, api_path
from servingslo.errors import NotFoundError, PermissionDeniedError

_LOG = logging.getLogger(__name__)


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


Record = TypeVar("Record")
Owned = TypeVar("Owned", bound=Owner)
One = TypeVar("One", bound="OwnedObject[Any]")
Value = TypeVar("Value", bound="OwnedValue[Any]")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedObject(Generic[Record]):
    """One object as it was read. owner: None if the operator has not written into it."""

    kind: str
    item: KubeObject
    owner: Record | None

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
class OwnedValue(OwnedObject[Owned], ABC):
    """One object with a field that is set and put back in one step."""

    @property
    @abstractmethod
    def is_ours(self) -> bool:
        """Whether the present value is the operator's last written one."""

    @abstractmethod
    def written(self, owner: Owned) -> Iterable[KubeObject]:
        """The changes that set the recorded value."""

    @abstractmethod
    def restored(self, owner: Owned) -> Iterable[KubeObject]:
        """The changes that set the former value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedField(Generic[One, Record]):
    """Reads and changes one field in the objects of a kind; no namespaces: in all of them.

    record: of the annotation's content. make: an object as read, with that content. manager: of the
    fields; None: as of all other writes.
    """

    client: KubeClient
    api_version: str
    plural: str
    annotation: str
    record: TypeAdapter[Record]
    make: Callable[[KubeObject, Record | None], One]
    namespaces: Sequence[str] = ()
    manager: str | None = FIELD_MANAGER

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

        Empty if the cluster does not serve the kind. A namespace that refuses, such as one that was
        deleted with its Role, keeps none from the others.
        """
        found: list[One] = []
        refused: list[PermissionDeniedError] = []
        for namespace in self.namespaces or (None,):
            try:
                found += map(self.seen, (await listed(self.client, self._path(namespace))).items)
            except NotFoundError:
                continue
            except PermissionDeniedError as error:
                refused.append(error)
        if refused and len(refused) >= len(self.namespaces):
            raise refused[0]
        for refusal in refused:
            _LOG.warning("left as it is kind=%s detail=%r", self.plural, str(refusal))
        return tuple(one for one in found if one.owner is not None)

    async def put(
        self,
        one: One,
        owner: Record | None,
        changes: Iterable[KubeObject],
        *,
        released: bool = False,
    ) -> None:
        """Make these changes and record them, in one patch. owner: None: nothing of ours is left.

        released: do not change the object for a while.
        Raises: WriteConflictError if the object changed since it was read; ClusterError otherwise.
        """
        if owner is None:
            noted = [removed_annotation(self.annotation)]
        else:
            text = self.record.dump_json(owner, by_alias=True, exclude_defaults=True).decode()
            noted = list(annotated(one.item, self.annotation, text))
        if released:
            noted += marked_released(one.item)
        elif owner is not None:
            noted += taken_again(one.item)
        path = self._path(one.namespace, one.name)
        patch = [*noted, *changes]
        await patch_unchanged(self.client, path, one.item, one.title, patch, self.manager)

    def seen(self, item: KubeObject) -> One:
        """The object that the API server told."""
        text = annotations_of(item).get(self.annotation) or ""
        return self.make(item, record_in(text, self.record))

    def _path(self, namespace: str | None, name: str | None = None) -> ApiPath:
        return api_path(self.api_version, self.plural, namespace=namespace, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedValues(OwnedField[Value, Owned]):
    """A field that is set and put back in one step."""

    async def write(self, one: Value, owner: Owned) -> None:
        """Set the value and record its owner. owner: with the former value, if it is new.

        Raises: as `put`.
        """
        await self.put(one, owner, one.written(owner))

    async def put_back(self, one: Value, *, released: bool = False) -> bool:
        """Restore the value from before the operator's.

        If another writer set another value meanwhile, it is kept; only the annotation is removed.
        Returns False if there is none of ours. released, Raises: as `put`.
        """
        if one.owner is None:
            return False
        restored = one.restored(one.owner) if one.is_ours else ()
        await self.put(one, None, restored, released=released)
        return True
