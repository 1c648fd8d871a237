"""Try new batch limits in one pod of a Deployment or StatefulSet, and restore them exactly.

The new and the former values are in one annotation. The same patch sets the annotation and changes
the template. So any operator process can finish the canary after any restart.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.marked_objects import RELEASED, is_released
from servingslo.adapters.kubernetes.api.owned_fields import OwnedField, OwnedObject
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.adapters.kubernetes.batch_limits.canary_records import (
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
    waits_for_each_pod,
)
from servingslo.adapters.kubernetes.batch_limits.writer import (
    changed_arguments,
    container_at,
    line_changes,
    variable_changes,
)
from servingslo.errors import (
    WriteConflictError,
)
from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.ports import EngineArguments

_PLURALS = {"Deployment": "deployments", "StatefulSet": "statefulsets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryOrder:
    """The parameters of a canary. before, after: both limits, as planned.

    queue: the engines' own bound, before and after; empty if it does not change.
    """

    owner: str
    owner_uid: str
    since_seconds: int
    container: str | None
    before: tuple[int, int]
    after: tuple[int, int]
    flags_added: tuple[str, ...]
    runtime: str
    queue: tuple[int | None, ...] = ()


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
        return int(self._status.get("updatedReplicas") or 0)

    @property
    def _status(self) -> Mapping[str, Any]:
        """The status; empty until its controller has observed the current object."""
        status: Mapping[str, Any] = self.item.get("status") or {}
        seen = (status.get("observedGeneration") or 0) >= self.item["metadata"]["generation"]
        return status if seen else {}

    @property
    def not_possible(self) -> str:
        """Why a canary in one pod is not possible here; '' if it is."""
        if is_released(self.item):
            return RELEASED
        return not_possible(self.kind, self.item["spec"])

    @property
    def revision(self) -> str:
        """Revision of a StatefulSet's pods with the current template; '' while not known."""
        return str(self._status.get("updateRevision") or "")

    @property
    def blocking_revision(self) -> str:
        """Revision of pods with rejected limits that may block the controller; '' if none."""
        refused = "" if self.refused is None else self.refused.revision
        waits = waits_for_each_pod(self.kind, self.item["spec"])
        return refused if waits and self.revision not in {"", refused} else ""


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
        """Every target with a canary or possible leftovers of one. Raises: ClusterError."""
        found = [one for field in self._fields.values() for one in await field.owned()]
        return tuple(one for one in found if one.canary is not None or one.blocking_revision)

    async def start(self, target: CanaryTarget, order: CanaryOrder) -> bool:
        """Set the limits in the template, for one pod. Returns False if they are already set.

        Raises: WriteConflictError if the object changed or a canary is no longer possible;
        ArgumentsNotUnderstoodError; ClusterError.
        """
        if target.not_possible:
            raise WriteConflictError(target.not_possible)
        index = container_at(target.item, order.container, order.runtime)
        limits = EngineArguments(max_num_seqs=order.after[0], max_num_batched_tokens=order.after[1])
        queue = order.queue[-1] if order.queue else None
        changes = changed_arguments(target.item, index, limits, order.runtime, queue=queue)
        if not changes:
            return False
        spec = target.item["spec"]
        container = spec["template"]["spec"]["containers"][index]
        template = json.loads(json.dumps(spec["template"]))
        changed = template["spec"]["containers"][index]
        variables = {}
        for change in changes:
            key, _, place = change["path"].partition(f"/containers/{index}/")[2].partition("/")
            if place:
                variables[change["value"]["name"]] = changed[key][int(place)]["value"]
                changed[key][int(place)] = change["value"]
            else:
                changed[key] = change["value"]
        written = one_pod(target.kind, spec)
        record = CanaryRecord(
            owner=order.owner,
            owner_uid=order.owner_uid,
            since_seconds=order.since_seconds,
            container=index,
            command=container.get("command"),
            args=container.get("args"),
            variables=variables,
            before=list(order.before),
            after=list(order.after),
            queue=list(order.queue),
            flags_added=list(order.flags_added),
            template=digest(template),
            former={name: spec.get(name) for name in ROLLOUT_FIELDS[target.kind]},
            written=written,
        )
        await self._put(target, record, [*changes, *_set(written)])
        return True

    async def hold(self, target: CanaryTarget) -> bool:
        """Pause the started rollout. Raises: WriteConflictError; ClusterError."""
        canary = target.canary
        if canary is None or target.held:
            return False
        record = replace(canary, written={**canary.written, "paused": True})
        await self._put(target, record, _set({"paused": True}))
        return True

    async def complete(self, target: CanaryTarget, *, released: bool = False) -> bool:
        """Resume the rollout, as its owner set it. Raises: WriteConflictError; ClusterError.

        released: begin no other for a while.
        """
        if target.canary is None:
            return False
        await self._put(target, None, _resumed(target, target.canary), released=released)
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
        template = json.loads(json.dumps(target.item["spec"]["template"]))
        container = template["spec"]["containers"][canary.container]
        for key, value in (("command", canary.command), ("args", canary.args)):
            container.pop(key, None)
            if value is not None:
                container[key] = value
        for entry in container.get("env") or ():
            if entry["name"] in canary.variables:
                entry["value"] = canary.variables[entry["name"]]
        refused = RefusedRecord(
            owner=canary.owner,
            refused=canary.after,
            refused_queue=canary.queue[1] if canary.queue else None,
            template=digest(template),
            wanted=wanted,
            revision=target.revision if target.new_pods else "",
        )
        changes = [*_former(target, canary), *_resumed(target, canary)]
        await self._put(target, refused, changes, released=released)
        return True

    async def free(self, target: CanaryTarget) -> int:
        """Evict unready pods that still have the rejected limits; returns their number.

        Raises: ClusterError, for example while a PodDisruptionBudget forbids it.
        """
        if not target.blocking_revision:
            return 0
        path = api_path("v1", "pods", namespace=target.namespace)
        selector = {"labelSelector": f"controller-revision-hash={target.blocking_revision}"}
        pods = (await self._client.get(path, selector))["items"]
        stuck = [pod["metadata"] for pod in pods if _is_stuck(pod, target.item["metadata"]["uid"])]
        for metadata in stuck:
            name = metadata["name"]
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": target.namespace},
                "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
            }
            path = api_path(
                "v1", "pods", namespace=target.namespace, name=name, subresource="eviction"
            )
            await self._client.create(path, eviction)
        return len(stuck)

    async def _put(
        self,
        target: CanaryTarget,
        record: Recorded | None,
        changes: Iterable[KubeObject],
        *,
        released: bool = False,
    ) -> None:
        field = self._fields[target.kind]
        await field.put(target, record, changes, released=released)


def _is_stuck(pod: KubeObject, owner_uid: str) -> bool:
    metadata = pod["metadata"]
    owners = [one["uid"] for one in metadata.get("ownerReferences") or () if one.get("controller")]
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return owners == [owner_uid] and not ready and not metadata.get("deletionTimestamp")


def _set(values: Mapping[str, Any]) -> Iterator[KubeObject]:
    for name, value in values.items():
        yield {"op": "add", "path": f"/spec/{name}", "value": value}


def _resumed(target: CanaryTarget, canary: CanaryRecord) -> Iterator[KubeObject]:
    """The rollout's former fields; values that another writer set meanwhile are kept."""
    spec: Mapping[str, Any] = target.item["spec"]
    for name in ROLLOUT_FIELDS[target.kind]:
        if name not in canary.written or spec.get(name) != canary.written[name]:
            continue
        former = canary.former.get(name)
        if former is not None:
            yield {"op": "add", "path": f"/spec/{name}", "value": former}
        else:
            yield {"op": "remove", "path": f"/spec/{name}"}


def _former(target: CanaryTarget, canary: CanaryRecord) -> Iterator[KubeObject]:
    """The container's former command line; only the differences."""
    base = f"/spec/template/spec/containers/{canary.container}"
    container = target.item["spec"]["template"]["spec"]["containers"][canary.container]
    yield from line_changes(container, base, canary.command, canary.args)
    yield from variable_changes(container, base, canary.variables)


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
