"""Records in the annotation of a batch-limit canary, untrusted: any editor can write them."""

import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from servingslo.adapters.kubernetes.api.annotations import AS_WRITTEN, Count, record_in
from servingslo.adapters.kubernetes.api.client import KubeObject
from servingslo.adapters.kubernetes.batch_limits.rollouts import ROLLOUT_FIELDS

CANARY_ANNOTATION = "servingslo.dev/batch-limits"
_Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]
_Bounds = Annotated[list[Count | None], Field(min_length=2, max_length=2)]
_Unchanged = Annotated[list[Count], Field(max_length=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRecord:
    """The record of a canary.

    owner, owner_uid: the resource that it belongs to. container: its index in the template.
    command, args: the container's former ones, None if it had none. variables: former values of
    the container's changed variables. before, after: both limits. queue: the engines' own bound
    before and after; empty if it does not change.
    template: digest of the pod template as written. former, written: fields of the rollout.
    """

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    owner: str
    owner_uid: str
    since_seconds: Count
    container: Count
    command: list[str] | None
    args: list[str] | None
    variables: dict[str, str]
    before: _Pair
    after: _Pair
    queue: _Bounds | _Unchanged
    flags_added: list[str]
    template: str
    former: dict[str, Any]
    written: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRecord:
    """The record of limits that were rolled back; valid until the template or spec changes.

    refused_queue: the engines' own bound, rolled back with them. owner: the resource that they
    belonged to. revision: of the StatefulSet's pods that had them, '' if none existed yet.
    """

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    owner: str
    refused: _Pair
    refused_queue: Count | None
    template: str
    wanted: str
    revision: str


_CANARY, _REFUSED = TypeAdapter(CanaryRecord), TypeAdapter(RefusedRecord)


def records_of(kind: str, item: KubeObject) -> tuple[CanaryRecord | None, RefusedRecord | None]:
    """The records in an object's annotation; None for a missing or impossible record."""
    text = (item["metadata"].get("annotations") or {}).get(CANARY_ANNOTATION) or ""
    canary = record_in(text, _CANARY)
    if canary is not None and not _fits(kind, item, canary):
        canary = None
    return canary, record_in(text, _REFUSED)


def digest(value: object) -> str:
    """A short name for a JSON value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fits(kind: str, item: KubeObject, canary: CanaryRecord) -> bool:
    """Whether the record fits this object."""
    containers = item["spec"]["template"]["spec"]["containers"]
    if not 0 <= canary.container < len(containers):
        return False
    has = {entry["name"] for entry in containers[canary.container].get("env") or ()}
    return canary.variables.keys() <= has and canary.written.keys() <= set(ROLLOUT_FIELDS[kind])
