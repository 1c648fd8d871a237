"""Try new batch limits in one pod of a Deployment or StatefulSet, and restore them exactly.

The new and the former values are in one annotation. The same patch sets the annotation and changes
the template. So any operator process can finish the canary after any restart.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.marked_objects import RELEASED, is_released
from servingslo.adapters.kubernetes.api.owned_fields import OwnedField, OwnedObject
from servingslo.adapters.kubernetes.pods.config_references import literal_variables
from servingslo.adapters.kubernetes.pods.engine_container import engine_container, sidecar_refused
from servingslo.adapters.kubernetes.pods.records import container_records
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.errors import (
    ArgumentsNotUnderstoodError,
    NotFoundError,
    WriteConflictError,
)
from servingslo.features.batch_limits.decision import TemplateDecision
from servingslo.features.batch_limits.records import (
    CANARY_ANNOTATION,
    RECORDED,
    ROLLOUT_FIELDS,
    CanaryRecord,
    Recorded,
    RefusedRecord,
    digest,
    fits,
    not_possible,
    one_pod,
)
from servingslo.policy.inputs import ScaleTarget
from servingslo.runtimes import catalogue
from servingslo.runtimes.launch.arguments import (
    BatchArguments,
    replace_batch_arguments,
)
from servingslo.runtimes.launch.write_refusals import write_refused

_PLURALS = {"Deployment": "deployments", "StatefulSet": "statefulsets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTarget(OwnedObject[Recorded]):
    """The current state of a target."""

    @property
    def canary(self) -> CanaryRecord | None:
        """The canary in progress."""
        return self.owner if isinstance(self.owner, CanaryRecord) else None

    @property
    def refused(self) -> RefusedRecord | None:
        """The limits that were taken back."""
        return self.owner if isinstance(self.owner, RefusedRecord) else None

    @property
    def template(self) -> str:
        """Digest of its pod template."""
        return digest(self.item["spec"]["template"])

    @property
    def held(self) -> bool:
        """Whether the canary's rollout is held after the first pod."""
        return self.canary is not None and (
            self.kind != "Deployment" or self.canary.written.get("paused") is True
        )

    @property
    def edited(self) -> bool:
        """Whether another writer changed the template or resumed the rollout."""
        canary = self.canary
        if canary is None:
            return False
        resumed = self.kind == "Deployment" and self.held and not self.item["spec"].get("paused")
        return resumed or canary.template != self.template

    @property
    def new_pods(self) -> int:
        """Number of pods of the newest template; 0 until its controller has observed it."""
        status: Mapping[str, Any] = self.item.get("status") or {}
        seen = (status.get("observedGeneration") or 0) >= self.item["metadata"]["generation"]
        return int(status.get("updatedReplicas") or 0) if seen else 0

    @property
    def not_possible(self) -> str:
        """Why a canary in one pod is not possible here; '' if it is."""
        if is_released(self.item):
            return RELEASED
        return not_possible(self.kind, self.item["spec"])


class BatchCanaries:
    """Begins, holds and ends canaries; each step is one patch of an unchanged object."""

    def __init__(self, client: KubeClient, *, namespaces: Sequence[str] = ()) -> None:
        self._client = client
        self._fields = {kind: _field(client, kind, namespaces) for kind in _PLURALS}

    async def read(self, namespace: str, target: ScaleTarget) -> CanaryTarget | None:
        """The current target; None for kinds without a known pod template.

        Raises: ClusterError.
        """
        field = self._fields.get(target.kind)
        return None if field is None else await field.read(namespace, target.name)

    async def again(self, target: CanaryTarget) -> CanaryTarget:
        """The same target, read again. Raises: ClusterError."""
        return await self._fields[target.kind].read(target.namespace, target.name)

    async def standing(self) -> tuple[CanaryTarget, ...]:
        """Every target with a canary. Raises: ClusterError."""
        found = [one for field in self._fields.values() for one in await field.owned()]
        return tuple(one for one in found if one.canary is not None)

    async def start(
        self,
        target: CanaryTarget,
        owner: ResourceRef,
        since_seconds: int,
        batching: TemplateDecision,
        runtime: str,
    ) -> bool:
        """Set the limits in the template, for one pod. Returns False if they are already set.

        Raises: WriteConflictError if the object changed or a canary is no longer possible;
        ArgumentsNotUnderstoodError; ClusterError.
        """
        if target.not_possible:
            raise WriteConflictError(target.not_possible)
        before = batching.current_max_num_seqs, batching.current_max_num_batched_tokens
        after = batching.recommended_max_num_seqs, batching.recommended_max_num_batched_tokens
        if None in (*before, *after):
            raise WriteConflictError("limits in force are not known any more")
        index = container_at(target.item, batching.container, runtime)
        queue = batching.queue[-1] if batching.queue else None
        spec = target.item["spec"]
        container = spec["template"]["spec"]["containers"][index]
        changed = changed_container(container, after, runtime, queue=queue)
        if changed == container:
            return False
        template, change = _replaced(target, index, changed)
        env = zip(container.get("env") or (), changed.get("env") or (), strict=True)
        written = one_pod(target.kind, spec)
        record = CanaryRecord(
            owner=owner.name,
            owner_uid=owner.uid,
            since_seconds=since_seconds,
            container=index,
            command=container.get("command"),
            args=container.get("args"),
            variables={one["name"]: one["value"] for one, other in env if one != other},
            before=[one or 0 for one in before],
            after=[one or 0 for one in after],
            queue=list(batching.queue),
            flags_added=list(batching.flags_added),
            template=digest(template),
            former={name: spec.get(name) for name in ROLLOUT_FIELDS[target.kind]},
            written=written,
        )
        await self._fields[target.kind].put(target, record, [change, *_set(written)])
        return True

    async def hold(self, target: CanaryTarget) -> bool:
        """Pause the started rollout. Raises: WriteConflictError; ClusterError."""
        canary = target.canary
        if canary is None or target.held:
            return False
        record = replace(canary, written={**canary.written, "paused": True})
        await self._fields[target.kind].put(target, record, _set({"paused": True}))
        return True

    async def complete(self, target: CanaryTarget, *, released: bool = False) -> bool:
        """Resume the rollout, as its owner set it. Raises: WriteConflictError; ClusterError.

        released: begin no other for a while.
        """
        if target.canary is None:
            return False
        await self._fields[target.kind].put(
            target, None, _resumed(target, target.canary), released=released
        )
        return True

    async def take_back(self, target: CanaryTarget, wanted: str, *, released: bool = False) -> bool:
        """Restore the container's command line exactly, and resume the rollout.

        wanted: digest of the request; with the same request these limits are not tried again.
        released: try no others for a while.
        Raises: WriteConflictError; ClusterError.
        """
        canary = target.canary
        if canary is None:
            return False
        if target.edited:
            raise WriteConflictError(f"{target.title} was changed meanwhile")
        container = target.item["spec"]["template"]["spec"]["containers"][canary.container]
        former = with_line(container, canary.command, canary.args, canary.variables)
        template, change = _replaced(target, canary.container, former)
        refused = RefusedRecord(
            refused=canary.after,
            refused_queue=canary.queue[1] if canary.queue else None,
            template=digest(template),
            wanted=wanted,
        )
        changes = [change, *_resumed(target, canary)]
        await self._fields[target.kind].put(target, refused, changes, released=released)
        return True


def container_at(item: KubeObject, container: str | None, runtime: str | None = None) -> int:
    """Index of the engine's container in the pod template.

    runtime: of the engine. Raises: NotFoundError if there is no container of that name;
    ArgumentsNotUnderstoodError if the engine's container is ambiguous or an init container.
    """
    template: KubeObject = item["spec"]["template"]
    found = engine_container(container_records(template), container, runtime=runtime)
    if found is None:
        raise NotFoundError(f"container {container!r} is not in the pod template")
    if refused := (found.unread if not found.name else sidecar_refused(found)):
        raise ArgumentsNotUnderstoodError(refused)
    names = [entry["name"] for entry in template["spec"]["containers"]]
    return names.index(found.name)


def changed_container(
    entry: KubeObject,
    limits: tuple[int | None, int | None],
    runtime: str,
    *,
    queue: int | None = None,
) -> KubeObject:
    """The container with a command line that sets both limits; the same if it sets them already.

    queue: bound on running plus waiting requests, if the runtime has one; None: unchanged.
    Raises: ArgumentsNotUnderstoodError if a flag would not have the intended effect.
    """
    command, args = entry.get("command"), entry.get("args")
    wanted = BatchArguments(
        max_num_seqs=limits[0], max_num_batched_tokens=limits[1], max_num_queued_reqs=queue
    )
    profile = catalogue.profile(runtime)
    variables = literal_variables(entry)
    if refused := write_refused(command, args, profile, variables, image=entry.get("image")):
        raise ArgumentsNotUnderstoodError(refused)
    line = replace_batch_arguments(command, args, wanted, profile, variables=variables)
    lines = [
        list(new or ()) if new or entry.get(key) == [] else None
        for key, new in (("command", line.command), ("args", line.args))
    ]
    return with_line(entry, lines[0], lines[1], line.variables)


def with_line(
    entry: KubeObject,
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    variables: Mapping[str, str],
) -> KubeObject:
    """The container with this command line; None for a part that it does not have.

    Of several variables with one name, the last one counts.
    """
    changed = {key: value for key, value in entry.items() if key not in {"command", "args"}}
    stated = {"command": command, "args": args}
    changed |= {key: list(value) for key, value in stated.items() if value is not None}
    if variables:
        env = list(entry["env"])
        places = {one["name"]: place for place, one in enumerate(env)}
        for name, value in variables.items():
            env[places[name]] = {"name": name, "value": value}
        changed["env"] = env
    return changed


def _set(values: Mapping[str, Any]) -> Iterator[KubeObject]:
    for name, value in values.items():
        yield {"op": "add", "path": f"/spec/{name}", "value": value}


def _resumed(target: CanaryTarget, canary: CanaryRecord) -> Iterator[KubeObject]:
    """The rollout's former fields; values that another writer set meanwhile are kept."""
    spec: Mapping[str, Any] = target.item["spec"]
    for name in ROLLOUT_FIELDS[target.kind]:
        if name not in canary.written or not _has(spec.get(name), canary.written[name]):
            continue
        former = canary.former.get(name)
        if former is not None:
            yield {"op": "add", "path": f"/spec/{name}", "value": former}
        else:
            yield {"op": "remove", "path": f"/spec/{name}"}


def _has(value: Any, written: Any) -> bool:
    """Whether a field is as written, apart from what the API server added to it.

    Source: apps/v1 defaults of Kubernetes 1.37: a StatefulSet's rollingUpdate gets maxUnavailable.
    """
    if not isinstance(value, dict) or not isinstance(written, dict):
        return bool(value == written)
    return all(_has(value.get(key), inner) for key, inner in written.items())


def _replaced(
    target: CanaryTarget, index: int, container: KubeObject
) -> tuple[KubeObject, KubeObject]:
    """The pod template with another container at this place, and the change that makes it so."""
    template: KubeObject = json.loads(json.dumps(target.item["spec"]["template"]))
    template["spec"]["containers"][index] = container
    path = f"/spec/template/spec/containers/{index}"
    return template, {"op": "replace", "path": path, "value": container}


def _field(
    client: KubeClient, kind: str, namespaces: Sequence[str]
) -> OwnedField[CanaryTarget, Recorded]:
    def target(item: KubeObject, record: Recorded | None) -> CanaryTarget:
        possible = not isinstance(record, CanaryRecord) or fits(kind, item, record)
        return CanaryTarget(kind=kind, item=item, owner=record if possible else None)

    return OwnedField(
        client=client,
        api_version="apps/v1",
        plural=_PLURALS[kind],
        annotation=CANARY_ANNOTATION,
        record=RECORDED,
        make=target,
        namespaces=namespaces,
        manager=None,
    )
