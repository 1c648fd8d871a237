"""Objects that their owner labelled for the operator: change one only as it was read.

A tenant can have the operator write only into such an object. Annotations record what it wrote;
they are untrusted, because anyone who may edit the object can write them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject, Patch
from servingslo.adapters.kubernetes.api.paths import ApiPath
from servingslo.adapters.kubernetes.api.timestamps import (
    seconds_from_timestamp,
    timestamp_from_seconds,
)
from servingslo.errors import InvalidObjectError, WriteConflictError

_MOST_CHARACTERS = 65_536
# A float holds it exactly.
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
AS_WRITTEN = ConfigDict(extra="forbid", strict=True)

_Record = TypeVar("_Record")


def record_in(text: str, adapter: TypeAdapter[_Record]) -> _Record | None:
    """The record in an annotation; None if it is another record or not JSON."""
    try:
        return adapter.validate_json(text) if len(text) <= _MOST_CHARACTERS else None
    except ValidationError:
        return None


MANAGED_LABEL = "servingslo.dev/managed"
FIELD_MANAGER = "servingslo-operator"
RELEASED_ANNOTATION = "servingslo.dev/released"
# After `servingslo release` an object is not changed for this long; the operator ends meanwhile, or
# one with other rights takes its place.
RELEASED_SECONDS = 600.0
RELEASED = "`servingslo release` put it back a moment ago"
NOT_MANAGED = f'it does not carry the label {MANAGED_LABEL}: "true"'


def is_managed(item: KubeObject) -> bool:
    """Whether the object's owner labelled it for the operator."""
    return (item["metadata"].get("labels") or {}).get(MANAGED_LABEL) == "true"


def annotations_of(item: KubeObject) -> Mapping[str, str]:
    """The annotations of an object; empty if it has none."""
    found: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return found


async def patch_unchanged(
    client: KubeClient,
    path: ApiPath,
    item: KubeObject,
    title: str,
    changes: Sequence[KubeObject],
    manager: str | None = FIELD_MANAGER,
) -> None:
    """Change an object only as it was read. manager: of the fields; None: as all other writes.

    Raises: WriteConflictError if it changed since; ClusterError otherwise.
    """
    metadata = item["metadata"]
    tests: list[KubeObject] = [
        {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
    ]
    try:
        await client.patch(path, [*tests, *changes], Patch.JSON, field_manager=manager)
    except InvalidObjectError as error:
        raise WriteConflictError(f"{title} changed meanwhile: {error}") from error


def annotated(item: KubeObject, key: str, value: str) -> Iterator[KubeObject]:
    """The changes that set an annotation of this object."""
    if not annotations_of(item):
        yield {"op": "add", "path": "/metadata/annotations", "value": {}}
    yield {"op": "add", "path": _annotation_path(key), "value": value}


def removed_annotation(key: str) -> KubeObject:
    """The change that removes an annotation."""
    return {"op": "remove", "path": _annotation_path(key)}


def is_released(item: KubeObject) -> bool:
    """Whether `servingslo release` restored it recently."""
    since = seconds_from_timestamp(annotations_of(item).get(RELEASED_ANNOTATION))
    return since is not None and SystemClock.now_seconds() - since < RELEASED_SECONDS


def marked_released(item: KubeObject) -> Iterator[KubeObject]:
    """The changes that say so from now on."""
    now = timestamp_from_seconds(SystemClock.now_seconds())
    yield from annotated(item, RELEASED_ANNOTATION, now)


def taken_again(item: KubeObject) -> Iterator[KubeObject]:
    """The change that says so no more, if it was said."""
    if RELEASED_ANNOTATION in annotations_of(item):
        yield removed_annotation(RELEASED_ANNOTATION)


def _annotation_path(key: str) -> str:
    # Source: RFC 6901, section 3: a slash in a name is written ~1.
    return f"/metadata/annotations/{key.replace('/', '~1')}"
