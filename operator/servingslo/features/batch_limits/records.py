"""Records in the annotation of a batch-limit canary, and the fields that hold its rollout.

A record is untrusted: any editor can write it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from servingslo.adapters.kubernetes.api.client import KubeObject
from servingslo.adapters.kubernetes.api.marked_objects import AS_WRITTEN, Count

# Fields of the spec that hold a rollout, by kind; only these are restored.
ROLLOUT_FIELDS = {
    "Deployment": ("strategy", "minReadySeconds", "paused"),
    "StatefulSet": ("updateStrategy",),
}
# A rollout can be paused only after it has begun. Until then, no second pod may be replaced.
_PAUSED_WITHIN_SECONDS = 60
# Source: apps/v1 DeploymentSpec, default of progressDeadlineSeconds; minReadySeconds is below it.
_PROGRESS_DEADLINE_SECONDS = 600


def one_pod(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The rollout fields that let only a single pod be replaced."""
    if kind == "StatefulSet":
        last = max((1 if spec.get("replicas") is None else spec["replicas"]) - 1, 0)
        return {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": last}}}
    surge = int(_surges(spec.get("strategy") or {}))
    deadline = spec.get("progressDeadlineSeconds") or _PROGRESS_DEADLINE_SECONDS
    least = max(spec.get("minReadySeconds") or 0, min(_PAUSED_WITHIN_SECONDS, deadline - 1))
    return {
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 1 - surge},
        },
        "minReadySeconds": least,
    }


def not_possible(kind: str, spec: Mapping[str, Any]) -> str:
    """Why a single pod cannot get the template first; '' if it can."""
    count = 1 if spec.get("replicas") is None else spec["replicas"]
    if kind == "StatefulSet":
        if spec.get("podManagementPolicy") != "Parallel":
            # Source: kubernetes#67250; processReplica in stateful_set_control.go of 1.36.
            return "without podManagementPolicy Parallel, a pod that is never ready blocks it"
        return _no_partition(spec.get("updateStrategy") or {}, count)
    if spec.get("paused"):
        return "the Deployment is paused"
    strategy: Mapping[str, Any] = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return "strategy Recreate stops all pods at once"
    if count < 2 and not _surges(strategy):
        return "one replica without maxSurge has no sibling"
    return ""


def _surges(strategy: Mapping[str, Any]) -> bool:
    """Whether maxSurge allows at least one extra pod; the default is a quarter more."""
    surge = (strategy.get("rollingUpdate") or {}).get("maxSurge", "25%")
    return str(surge).removesuffix("%") != "0"


def _no_partition(strategy: Mapping[str, Any], count: int) -> str:
    if strategy.get("type") == "OnDelete":
        return "updateStrategy OnDelete replaces no pod by itself"
    if (strategy.get("rollingUpdate") or {}).get("partition"):
        return "the StatefulSet's partition is in use"
    return "one replica has no sibling" if count < 2 else ""


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

    refused_queue: the engines' own bound, rolled back with them.
    """

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    refused: _Pair
    refused_queue: Count | None
    template: str
    wanted: str


Recorded = CanaryRecord | RefusedRecord
RECORDED: TypeAdapter[Recorded] = TypeAdapter(Recorded)


def digest(value: object) -> str:
    """A short name for a JSON value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fits(kind: str, item: KubeObject, canary: CanaryRecord) -> bool:
    """Whether the record of a canary is possible in this object."""
    containers = item["spec"]["template"]["spec"]["containers"]
    if not 0 <= canary.container < len(containers):
        return False
    has = {entry["name"] for entry in containers[canary.container].get("env") or ()}
    return canary.variables.keys() <= has and canary.written.keys() <= set(ROLLOUT_FIELDS[kind])
