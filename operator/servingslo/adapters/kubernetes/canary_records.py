"""What the annotation of a canary of batch limits holds: read as what anybody may have written."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from servingslo.adapters.kubernetes.client import KubeObject
from servingslo.adapters.kubernetes.rollouts import ROLLOUT_FIELDS

CANARY_ANNOTATION = "servingslo.dev/batch-limits"
_MOST_CHARACTERS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRecord:
    """What the annotation holds of a canary.

    owner, owner_uid: the resource that it is for. container: its index in the template. command,
    args: of the container before, None where it had none. variables: its own whose values changed,
    as they were. before, after: both limits. queue: the engines' own bound before and after; empty
    where it stays.
    template: digest of the pod template as it was written. former, written: fields of the rollout.
    """

    owner: str
    owner_uid: str
    since_seconds: int
    container: int
    command: list[str] | None
    args: list[str] | None
    variables: dict[str, str]
    before: list[int]
    after: list[int]
    queue: list[int | None]
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

    owner: str
    refused: list[int]
    refused_queue: int | None
    template: str
    wanted: str
    revision: str


def records_of(kind: str, item: KubeObject) -> tuple[CanaryRecord | None, RefusedRecord | None]:
    """What the annotation of an object says; None for what it does not hold, or cannot."""
    text = (item["metadata"].get("annotations") or {}).get(CANARY_ANNOTATION)
    found = _parsed(text)
    canary = _record(CanaryRecord, found)
    if canary is not None and not _fits(kind, item, canary):
        canary = None
    return canary, _record(RefusedRecord, found)


def digest(value: object) -> str:
    """A short name for a JSON value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parsed(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and len(text or "") <= _MOST_CHARACTERS else {}


def _record(kind: type, found: Mapping[str, Any]) -> Any:
    """The record that an annotation holds; None where it holds another: anybody may write one."""
    if found.keys() != {one.name for one in fields(kind)}:
        return None
    record = kind(**found)
    return record if all(_is_good(name, value) for name, value in found.items()) else None


def _is_queue(name: str, value: object) -> bool:
    """Whether it is a bound or none; in a canary's record one before and one after, or nothing."""
    if name == "queue":
        pair = value if isinstance(value, list) and len(value) in {0, 2} else [""]
        return all(_is_queue("", one) for one in pair)
    return value is None or _all(int, [value])


def _is_good(name: str, value: object) -> bool:
    if name in {"command", "args"}:
        return value is None or _all(str, value)
    if name in {"before", "after", "refused"}:
        return _all(int, value) and isinstance(value, list) and len(value) == 2
    if name == "flags_added":
        return _all(str, value)
    if name in {"queue", "refused_queue"}:
        return _is_queue(name, value)
    if name in {"former", "written", "variables"}:
        plain = name != "variables" or not isinstance(value, dict)
        return isinstance(value, dict) and (plain or _all(str, list(value.values())))
    wanted = int if name in {"since_seconds", "container"} else str
    return isinstance(value, wanted) and not isinstance(value, bool)


def _all(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, kind) and not isinstance(one, bool) for one in value
    )


def _fits(kind: str, item: KubeObject, canary: CanaryRecord) -> bool:
    """Whether the annotation can be of this object."""
    containers = item["spec"]["template"]["spec"]["containers"]
    if not 0 <= canary.container < len(containers):
        return False
    has = {entry["name"] for entry in containers[canary.container].get("env") or ()}
    return canary.variables.keys() <= has and canary.written.keys() <= set(ROLLOUT_FIELDS[kind])
