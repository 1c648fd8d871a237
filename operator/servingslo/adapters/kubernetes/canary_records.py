"""What the annotation of a canary of batch limits holds: read as what anybody may have written."""

import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from servingslo.adapters.kubernetes.annotations import AS_WRITTEN, Count, record_in
from servingslo.adapters.kubernetes.client import KubeObject
from servingslo.adapters.kubernetes.rollouts import ROLLOUT_FIELDS

CANARY_ANNOTATION = "servingslo.dev/batch-limits"
_Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]
_Bounds = Annotated[list[Count | None], Field(min_length=2, max_length=2)]
_Unchanged = Annotated[list[Count], Field(max_length=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRecord:
    """What the annotation holds of a canary.

    owner, owner_uid: the resource that it is for. container: its index in the template. command,
    args: of the container before, None where it had none. variables: its own whose values changed,
    as they were. before, after: both limits. queue: the engines' own bound before and after; empty
    where it stays.
    template: digest of the pod template as it was written. former, written: fields of the rollout.
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
    """What the annotation holds of limits that were taken back: until another template, or spec.

    refused_queue: the engines' own bound that was taken back with them. owner: the resource that
    they were for. revision: of a StatefulSet's pods with them, '' where there was none yet.
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
    """What the annotation of an object says; None for what it does not hold, or cannot."""
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
    """Whether the annotation can be of this object."""
    containers = item["spec"]["template"]["spec"]["containers"]
    if not 0 <= canary.container < len(containers):
        return False
    has = {entry["name"] for entry in containers[canary.container].get("env") or ()}
    return canary.variables.keys() <= has and canary.written.keys() <= set(ROLLOUT_FIELDS[kind])
