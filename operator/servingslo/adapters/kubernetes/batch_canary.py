"""New batch limits in one pod of a Deployment or StatefulSet, and the way back, to the letter.

What is written and what stood before it are in one annotation, set by the very patch that changes
the template: whoever finds the object, after whatever restart, can end what was begun.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from servingslo.adapters.kubernetes.batching import SUPPORTED_KINDS, changed_arguments, container_at
from servingslo.adapters.kubernetes.cache import listed
from servingslo.adapters.kubernetes.client import KubeClient, KubeObject, Patch
from servingslo.errors import (
    ArgumentsNotUnderstoodError,
    InvalidObjectError,
    WriteConflictError,
)
from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.ports import EngineArguments

CANARY_ANNOTATION = "servingslo.dev/batch-limits"
_ANNOTATION_PATH = f"/metadata/annotations/{CANARY_ANNOTATION.replace('/', '~1')}"
_API = "/apis/apps/v1"
_PLURALS = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
# Fields of the spec that hold a rollout, by kind; no others are put back.
_ROLLOUT_FIELDS = {
    "Deployment": ("strategy", "minReadySeconds", "paused"),
    "StatefulSet": ("updateStrategy",),
}
# Until the rollout is paused, which cannot be before it has begun, no second pod is replaced.
_PAUSED_WITHIN_SECONDS = 60
# Source: apps/v1 DeploymentSpec, default of progressDeadlineSeconds; minReadySeconds is below it.
_PROGRESS_DEADLINE_SECONDS = 600
_MOST_CHARACTERS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRecord:
    """What the annotation holds of a canary.

    owner, owner_uid: the resource that it is for. container: its index in the template. command,
    args: of the container before, None where it had none. before, after: both limits.
    template: digest of the pod template as it was written. former, written: fields of the rollout.
    """

    owner: str
    owner_uid: str
    since_seconds: int
    container: int
    command: list[str] | None
    args: list[str] | None
    before: list[int]
    after: list[int]
    flags_added: list[str]
    template: str
    former: dict[str, Any]
    written: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRecord:
    """What the annotation holds of limits that were taken back: until another template, or spec."""

    refused: list[int]
    template: str
    wanted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryOrder:
    """What a canary is begun with. before, after: both limits, as they are planned."""

    owner: str
    owner_uid: str
    since_seconds: int
    container: str | None
    before: tuple[int, int]
    after: tuple[int, int]
    flags_added: tuple[str, ...]
    runtime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTarget:
    """A target as it is now."""

    kind: str
    namespace: str
    name: str
    item: KubeObject
    canary: CanaryRecord | None = None
    refused: RefusedRecord | None = None

    @property
    def template(self) -> str:
        """Digest of its pod template."""
        return digest(self.item["spec"]["template"])

    @property
    def held(self) -> bool:
        """Whether the canary's rollout goes no further by itself."""
        return self.canary is not None and (
            self.kind != "Deployment" or self.canary.written.get("paused") is True
        )

    @property
    def edited(self) -> bool:
        """Whether somebody else changed the template, or lets the rollout go on."""
        canary = self.canary
        if canary is None:
            return False
        resumed = self.kind == "Deployment" and self.held and not self.item["spec"].get("paused")
        return resumed or canary.template != self.template

    @property
    def new_pods(self) -> int:
        """How many pods of the newest template there are; 0 until its controller has seen it."""
        status: Mapping[str, Any] = self.item.get("status") or {}
        seen = (status.get("observedGeneration") or 0) >= self.item["metadata"]["generation"]
        return int(status.get("updatedReplicas") or 0) if seen else 0

    @property
    def not_possible(self) -> str:
        """Why no single pod can go first here; '' where one can."""
        spec: Mapping[str, Any] = self.item["spec"]
        count = 1 if spec.get("replicas") is None else spec["replicas"]
        if self.kind == "StatefulSet":
            return _no_partition(spec.get("updateStrategy") or {}, count)
        if spec.get("paused"):
            return "the Deployment is paused"
        strategy: Mapping[str, Any] = spec.get("strategy") or {}
        if strategy.get("type") == "Recreate":
            return "strategy Recreate stops all pods at once"
        if count < 2 and not _surges(strategy):
            return "one replica without maxSurge has no sibling"
        return ""


class BatchCanaries:
    """Begins, holds and ends canaries; each by one patch of an object that is as it was read."""

    def __init__(self, client: KubeClient, *, namespaces: Sequence[str] = ()) -> None:
        self._client = client
        self._namespaces = tuple(namespaces)

    async def read(self, namespace: str, target: ScaleTarget) -> CanaryTarget | None:
        """The target as it is now; None for kinds without a pod template known here.

        Raises: ClusterError.
        """
        if target.kind not in SUPPORTED_KINDS:
            return None
        return _target(
            target.kind, await self._client.get(_path(target.kind, namespace, target.name))
        )

    async def again(self, target: CanaryTarget) -> CanaryTarget:
        """The same target, read anew. Raises: ClusterError."""
        path = _path(target.kind, target.namespace, target.name)
        return _target(target.kind, await self._client.get(path))

    async def standing(self) -> tuple[CanaryTarget, ...]:
        """Every target with a canary. Raises: ClusterError."""
        found = []
        for kind, plural in _PLURALS.items():
            paths = [f"{_API}/namespaces/{name}/{plural}" for name in self._namespaces]
            for path in paths or [f"{_API}/{plural}"]:
                items = (await listed(self._client, path)).items
                found += [_target(kind, item) for item in items if _has_annotation(item)]
        return tuple(one for one in found if one.canary is not None)

    async def start(self, target: CanaryTarget, order: CanaryOrder) -> bool:
        """Set the limits in the template, for one pod. Returns False where they stand there.

        Raises: WriteConflictError when the object changed, or no pod can go first any more;
        ArgumentsNotUnderstoodError; ClusterError.
        """
        if target.not_possible:
            raise WriteConflictError(target.not_possible)
        index = container_at(target.item, order.container)
        limits = EngineArguments(max_num_seqs=order.after[0], max_num_batched_tokens=order.after[1])
        changes = changed_arguments(target.item, index, limits, order.runtime)
        if not changes:
            return False
        spec = target.item["spec"]
        container = spec["template"]["spec"]["containers"][index]
        template = json.loads(json.dumps(spec["template"]))
        for change in changes:
            key = change["path"].rpartition("/")[2]
            template["spec"]["containers"][index][key] = change["value"]
        written = _one_pod(target.kind, spec)
        record = CanaryRecord(
            owner=order.owner,
            owner_uid=order.owner_uid,
            since_seconds=order.since_seconds,
            container=index,
            command=container.get("command"),
            args=container.get("args"),
            before=list(order.before),
            after=list(order.after),
            flags_added=list(order.flags_added),
            template=digest(template),
            former={name: spec.get(name) for name in _ROLLOUT_FIELDS[target.kind]},
            written=written,
        )
        await self._patch(target, [*changes, *_set(written), *_annotated(target, record)])
        return True

    async def hold(self, target: CanaryTarget) -> bool:
        """Pause the rollout, which has begun. Raises: WriteConflictError; ClusterError."""
        canary = target.canary
        if canary is None or target.held:
            return False
        record = replace(canary, written={**canary.written, "paused": True})
        await self._patch(target, [*_set({"paused": True}), *_annotated(target, record)])
        return True

    async def complete(self, target: CanaryTarget) -> bool:
        """Let the rollout go on, as its owner has it. Raises: WriteConflictError; ClusterError."""
        if target.canary is None:
            return False
        changes = [*_released(target, target.canary), {"op": "remove", "path": _ANNOTATION_PATH}]
        await self._patch(target, changes)
        return True

    async def take_back(self, target: CanaryTarget, wanted: str) -> bool:
        """Put the container's command line back to the letter, and let the rollout go on.

        wanted: digest of what was asked for, with which these limits are not tried again.
        Raises: WriteConflictError; ClusterError.
        """
        canary = target.canary
        if canary is None:
            return False
        if target.edited:
            raise WriteConflictError(f"{target.kind}/{target.name} was changed meanwhile")
        changes = list(_former(target, canary))
        template = json.loads(json.dumps(target.item["spec"]["template"]))
        container = template["spec"]["containers"][canary.container]
        for key, value in (("command", canary.command), ("args", canary.args)):
            container.pop(key, None)
            if value is not None:
                container[key] = value
        refused = RefusedRecord(refused=canary.after, template=digest(template), wanted=wanted)
        changes += [*_released(target, canary), *_annotated(target, refused)]
        await self._patch(target, changes)
        return True

    async def _patch(self, target: CanaryTarget, changes: Sequence[KubeObject]) -> None:
        metadata = target.item["metadata"]
        tests: list[KubeObject] = [
            {"op": "test", "path": f"/metadata/{key}", "value": metadata[key]}
            for key in ("uid", "resourceVersion")
        ]
        path = _path(target.kind, target.namespace, target.name)
        try:
            await self._client.patch(path, [*tests, *changes], Patch.JSON)
        except InvalidObjectError as error:
            raise WriteConflictError(
                f"{target.kind}/{target.name} changed meanwhile: {error}"
            ) from error


def digest(value: object) -> str:
    """A short name for a JSON value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _one_pod(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the rollout with which a single pod is replaced."""
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


def _surges(strategy: Mapping[str, Any]) -> bool:
    """Whether its owner lets a pod more than asked for run; the default is a quarter more."""
    surge = (strategy.get("rollingUpdate") or {}).get("maxSurge", "25%")
    return str(surge).removesuffix("%") != "0"


def _no_partition(strategy: Mapping[str, Any], count: int) -> str:
    if strategy.get("type") == "OnDelete":
        return "updateStrategy OnDelete replaces no pod by itself"
    if (strategy.get("rollingUpdate") or {}).get("partition"):
        return "the StatefulSet's partition is in use"
    return "one replica has no sibling" if count < 2 else ""


def _set(values: Mapping[str, Any]) -> Iterator[KubeObject]:
    for name, value in values.items():
        yield {"op": "add", "path": f"/spec/{name}", "value": value}


def _released(target: CanaryTarget, canary: CanaryRecord) -> Iterator[KubeObject]:
    """The rollout's fields as they were; what somebody else set meanwhile stays."""
    spec: Mapping[str, Any] = target.item["spec"]
    for name in _ROLLOUT_FIELDS[target.kind]:
        if name not in canary.written or spec.get(name) != canary.written[name]:
            continue
        former = canary.former.get(name)
        if former is not None:
            yield {"op": "add", "path": f"/spec/{name}", "value": former}
        else:
            yield {"op": "remove", "path": f"/spec/{name}"}


def _former(target: CanaryTarget, canary: CanaryRecord) -> Iterator[KubeObject]:
    """The container's command line as it was; only what differs."""
    base = f"/spec/template/spec/containers/{canary.container}"
    container = target.item["spec"]["template"]["spec"]["containers"][canary.container]
    for key, value in (("command", canary.command), ("args", canary.args)):
        if container.get(key) == value:
            continue
        if value is None:
            yield {"op": "remove", "path": f"{base}/{key}"}
        else:
            yield {"op": "add", "path": f"{base}/{key}", "value": value}


def _annotated(target: CanaryTarget, record: CanaryRecord | RefusedRecord) -> Iterator[KubeObject]:
    if not target.item["metadata"].get("annotations"):
        yield {"op": "add", "path": "/metadata/annotations", "value": {}}
    yield {"op": "add", "path": _ANNOTATION_PATH, "value": json.dumps(asdict(record))}


def _target(kind: str, item: KubeObject) -> CanaryTarget:
    text = (item["metadata"].get("annotations") or {}).get(CANARY_ANNOTATION)
    found = _parsed(text)
    canary = _record(CanaryRecord, found)
    if canary is not None and not _fits(kind, item, canary):
        canary = None
    return CanaryTarget(
        kind=kind,
        namespace=item["metadata"]["namespace"],
        name=item["metadata"]["name"],
        item=item,
        canary=canary,
        refused=_record(RefusedRecord, found),
    )


def _has_annotation(item: KubeObject) -> bool:
    return CANARY_ANNOTATION in (item["metadata"].get("annotations") or {})


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


def _is_good(name: str, value: object) -> bool:
    if name in {"command", "args"}:
        return value is None or _all(str, value)
    if name in {"before", "after", "refused"}:
        return _all(int, value) and isinstance(value, list) and len(value) == 2
    if name == "flags_added":
        return _all(str, value)
    if name in {"former", "written"}:
        return isinstance(value, dict)
    wanted = int if name in {"since_seconds", "container"} else str
    return isinstance(value, wanted) and not isinstance(value, bool)


def _all(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, kind) and not isinstance(one, bool) for one in value
    )


def _fits(kind: str, item: KubeObject, canary: CanaryRecord) -> bool:
    """Whether the annotation can be of this object."""
    containers = item["spec"]["template"]["spec"]["containers"]
    return 0 <= canary.container < len(containers) and canary.written.keys() <= set(
        _ROLLOUT_FIELDS[kind]
    )


def _path(kind: str, namespace: str, name: str) -> str:
    try:
        return f"{_API}/namespaces/{namespace}/{_PLURALS[kind]}/{name}"
    except KeyError as error:
        raise ArgumentsNotUnderstoodError(f"{kind} has no pod template known here") from error
