"""The fields of pods and their owners that the operator keeps in memory."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from servingslo.adapters.kubernetes.api.client import KubeObject
from servingslo.adapters.kubernetes.api.field_managers import replicas_set_by
from servingslo.adapters.kubernetes.api.selectors import Selector, selector_from_spec
from servingslo.adapters.kubernetes.pods.config_references import (
    ConfigMapUse,
    config_map_use,
    literal_variables,
    unset_variables,
)
from servingslo.adapters.kubernetes.pods.container_failures import container_failure, repeated_ends
from servingslo.adapters.kubernetes.pods.container_fields import (
    asks_for_card,
    asks_for_device,
    asks_for_part,
    is_scraped,
    native_sidecars,
    nodes_asked,
    ports_of,
)
from servingslo.adapters.kubernetes.pods.parents import PartOf, part_of
from servingslo.adapters.kubernetes.pods.queued import queue_group, queued_by
from servingslo.adapters.kubernetes.pods.refusals import refusal_words
from servingslo.adapters.kubernetes.pods.replica_gpus import replica_gpus
from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.estimation.sample import EngineLaunch, PodSample
from servingslo.policy.inputs import NO_GPUS_KNOWN, ReplicaGpus
from servingslo.units import seconds_from_timestamp

_TEMPLATE_HASH_LABELS = ("pod-template-hash", "controller-revision-hash")
FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
# KEDA triggers that are measured on pods, so they are never active without a pod.
_NEVER_WAKING = frozenset({"cpu", "memory"})
# KEDA triggers that ask a server for the metric. Source: KEDA 2.21, external scalers.
_ASKING = frozenset({"external", "external-push"})
# More pod templates than one operator has workloads for.
_TEMPLATES_KEPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """A container of a pod template: its name and its start command.

    environment: literal variables that command or args refer to; values from Secrets and fields
    are not read. unset: referred variables that the pod does not set. config_maps: references of
    command or args to ConfigMaps, None if there are none. accelerator: whether it requests a device
    of any kind; card: one that serves models; part: of a card, not all of it. ports: its declared
    ports. scraped: the pod's
    annotation names one of them. sidecar: an init container that keeps running. unread: why command
    and args are not kept; '' if they are.
    """

    name: str
    image: str | None
    command: tuple[str, ...]
    args: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    unset: frozenset[str] = frozenset()
    config_maps: ConfigMapUse | None = field(default=None, hash=False)
    accelerator: bool = False
    card: bool = False
    part: bool = False
    ports: tuple[int, ...] = ()
    scraped: bool = False
    sidecar: bool = False
    unread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """One pod. Times are seconds since the epoch.

    first_ready_seconds: when it became ready for the first time, if observed or visible in its
    status. started_seconds: when its last container started, if none restarted.
    address: its own; None before it has one, or if it uses its node's. queued_by: the scheduling
    gates that hold it, in words; None if there are none. queue_group: Kueue's group of pods, '' if
    it is in none. failing: why a container cannot start; None if all can. ends: the containers that
    ended repeatedly since the pod was ready, in words by their names. unready_since_seconds: None
    while it is ready.
    """

    namespace: str
    name: str
    uid: str
    owner_uid: str | None
    labels: Mapping[str, str]
    containers: tuple[ContainerRecord, ...]
    finished: bool
    deleting: bool
    ready: bool
    created_seconds: float | None
    scheduled_seconds: float | None
    started_seconds: float | None
    ready_since_seconds: float | None
    first_ready_seconds: float | None
    restarts: int
    unschedulable_reason: str | None
    address: str | None = None
    queued_by: str | None = None
    queue_group: str = ""
    failing: str | None = None
    ends: Mapping[str, str] = field(default_factory=dict)
    unready_since_seconds: float | None = None

    def sample(
        self,
        now_seconds: float,
        *,
        engine: ContainerRecord | None,
        launch: EngineLaunch | None = None,
        metrics_off: str = "",
    ) -> PodSample:
        """The pod as a sample for the planner; engine data is joined later.

        engine: the engine's container; None or without a name if it is unknown. launch,
        metrics_off: from its command line.
        """
        return PodSample(
            name=self.name,
            template_hash=next(
                (self.labels[label] for label in _TEMPLATE_HASH_LABELS if label in self.labels),
                None,
            ),
            image=None if engine is None else engine.image,
            ready=self.ready,
            deleting=self.deleting,
            age_seconds=_between(self.created_seconds, now_seconds),
            scheduled_after_seconds=_between(self.created_seconds, self.scheduled_seconds),
            started_after_seconds=_between(self.created_seconds, self.started_seconds),
            ready_after_seconds=_between(self.created_seconds, self.first_ready_seconds),
            ready_for_seconds=_between(self.ready_since_seconds, now_seconds),
            restarts=self.restarts,
            unschedulable_reason=self.unschedulable_reason,
            queued_reason=self.queued_by,
            failing_reason=self.failing or (engine and self.ends.get(engine.name)) or None,
            unready_for_seconds=_between(self.unready_since_seconds, now_seconds),
            launch=launch,
            metrics_off=metrics_off,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRecord:
    """A ReplicaSet: its owner and desired replica count."""

    namespace: str
    uid: str
    owner_uid: str | None
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecord:
    """A Deployment or StatefulSet.

    replicas: of its spec, None if absent. rollout_in_progress: pods of an older template exist.
    pods_refused: why the API server refuses its pods, None if it does not. replicas_set_by: the
    field manager that set the replica count last. version: its resourceVersion, 0 if not a number.
    gpus: of one replica. part_of: the object that made it and keeps its template, if known here.
    """

    namespace: str
    name: str
    uid: str
    owner_uid: str | None
    replicas: int | None
    current_replicas: int | None
    selector: Selector
    rollout_in_progress: bool
    containers: tuple[ContainerRecord, ...]
    pods_refused: str | None = None
    replicas_set_by: str | None = None
    version: int = 0
    gpus: ReplicaGpus = NO_GPUS_KNOWN
    part_of: PartOf | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerRecord:
    """An HPA or a KEDA ScaledObject: its name and its target.

    wakes: besides the trigger for our replica count, another one scales the target up from zero.
    asks: a trigger of it asks an external scaler, or KEDA made it for such a ScaledObject.
    """

    namespace: str
    name: str
    group: str
    target_kind: str
    target_name: str
    wakes: bool = False
    asks: bool = True


def pod_record(item: KubeObject, previous: PodRecord | None) -> PodRecord:
    """The record of a v1 Pod."""
    metadata: Mapping[str, Any] = item["metadata"]
    status: Mapping[str, Any] = item.get("status") or {}
    conditions = {entry["type"]: entry for entry in status.get("conditions") or ()}
    ready = _holds(conditions.get("Ready"))
    since = seconds_from_timestamp((conditions.get("Ready") or {}).get("lastTransitionTime"))
    restarts = sum(entry.get("restartCount", 0) for entry in status.get("containerStatuses") or ())
    scheduled = conditions.get("PodScheduled")
    known = previous if previous is not None and previous.uid == metadata["uid"] else None
    first_ready = known.first_ready_seconds if known is not None else None
    if first_ready is None and ready and restarts == 0:
        first_ready = since
    return PodRecord(
        namespace=sys.intern(metadata["namespace"]),
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=_controller_uid(metadata),
        labels={sys.intern(key): value for key, value in (metadata.get("labels") or {}).items()},
        containers=container_records(item),
        finished=status.get("phase") in FINISHED_PHASES,
        deleting=metadata.get("deletionTimestamp") is not None,
        ready=ready,
        created_seconds=seconds_from_timestamp(metadata.get("creationTimestamp")),
        scheduled_seconds=seconds_from_timestamp((scheduled or {}).get("lastTransitionTime"))
        if _holds(scheduled)
        else None,
        started_seconds=_started(status.get("containerStatuses") or ()) if not restarts else None,
        ready_since_seconds=since if ready else None,
        first_ready_seconds=first_ready,
        restarts=restarts,
        unschedulable_reason=_unschedulable(scheduled),
        address=None if (item.get("spec") or {}).get("hostNetwork") else status.get("podIP"),
        queued_by=queued_by(item),
        queue_group=queue_group(item),
        failing=container_failure(status, ready=ready),
        ends=repeated_ends(status, ready=ready),
        unready_since_seconds=None if ready else since,
    )


def replica_set_record(item: KubeObject, _previous: OwnerRecord | None) -> OwnerRecord:
    """The record of an apps/v1 ReplicaSet."""
    metadata: Mapping[str, Any] = item["metadata"]
    return OwnerRecord(
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        owner_uid=_controller_uid(metadata),
        replicas=(item.get("spec") or {}).get("replicas") or 0,
    )


def deployment_record(item: KubeObject, _previous: TargetRecord | None) -> TargetRecord:
    """The record of an apps/v1 Deployment.

    A plain scale-up is no rollout: the pods it adds are of the newest template.
    """
    status: Mapping[str, Any] = item.get("status") or {}
    outdated = (status.get("replicas") or 0) - (status.get("updatedReplicas") or 0)
    return replace(
        _target_record(item, rollout_in_progress=outdated > 0),
        pods_refused=_pods_refused(status.get("conditions") or ()),
    )


def stateful_set_record(item: KubeObject, _previous: TargetRecord | None) -> TargetRecord:
    """The record of an apps/v1 StatefulSet."""
    status: Mapping[str, Any] = item.get("status") or {}
    changed = status.get("updateRevision") != status.get("currentRevision")
    outdated = (status.get("replicas") or 0) - (status.get("updatedReplicas") or 0)
    return _target_record(item, rollout_in_progress=changed and outdated > 0)


def autoscaler_record(item: KubeObject, _previous: ScalerRecord | None) -> ScalerRecord:
    """The record of an autoscaling HorizontalPodAutoscaler; KEDA owns those that it makes."""
    owners = item["metadata"].get("ownerReferences") or ()
    asks = any(one.get("controller") and one.get("kind") == "ScaledObject" for one in owners)
    return replace(_scaler_record(item), asks=asks)


def scaled_object_record(item: KubeObject, _previous: ScalerRecord | None) -> ScalerRecord:
    """The record of a keda.sh ScaledObject; its target is an apps/v1 Deployment by default."""
    spec: Mapping[str, Any] = item.get("spec") or {}
    waking = [one for one in spec.get("triggers") or () if one.get("type") not in _NEVER_WAKING]
    to_zero = not spec.get("minReplicaCount")
    return replace(
        _scaler_record(item),
        wakes=to_zero and len(waking) > 1,
        asks=any(one.get("type") in _ASKING for one in waking),
    )


def group_of(api_version: str) -> str:
    """The group of an apiVersion: 'apps' of 'apps/v1', '' of 'v1'."""
    return api_version.rpartition("/")[0]


def _target_record(item: KubeObject, *, rollout_in_progress: bool) -> TargetRecord:
    metadata: Mapping[str, Any] = item["metadata"]
    spec: Mapping[str, Any] = item.get("spec") or {}
    status: Mapping[str, Any] = item.get("status") or {}
    return TargetRecord(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=_controller_uid(metadata),
        replicas=spec.get("replicas"),
        current_replicas=status.get("replicas") or 0,
        selector=selector_from_spec(spec.get("selector")),
        rollout_in_progress=rollout_in_progress,
        containers=container_records(spec.get("template") or {}),
        replicas_set_by=replicas_set_by(metadata),
        version=_version_number(metadata.get("resourceVersion")),
        gpus=replica_gpus(spec.get("template") or {}),
        part_of=part_of(metadata),
    )


def _version_number(text: str | None) -> int:
    """A resourceVersion as a number: later ones are larger (all of one etcd, Kubernetes 1.35)."""
    return int(text) if text and text.isdecimal() else 0


def _scaler_record(item: KubeObject) -> ScalerRecord:
    reference: Mapping[str, str] = (item.get("spec") or {}).get("scaleTargetRef") or {}
    return ScalerRecord(
        namespace=item["metadata"]["namespace"],
        name=item["metadata"]["name"],
        group=group_of(reference.get("apiVersion") or "apps/v1"),
        target_kind=reference.get("kind") or "Deployment",
        target_name=reference.get("name", ""),
    )


def container_records(pod: Mapping[str, Any]) -> tuple[ContainerRecord, ...]:
    """The containers of a pod or pod template, followed by native sidecars.

    Pods of one template share their records.
    """
    spec: Mapping[str, Any] = pod.get("spec") or {}
    annotations: Mapping[str, str] = (pod.get("metadata") or {}).get("annotations") or {}
    entries: Sequence[Mapping[str, Any]] = spec.get("containers") or ()
    volumes: Sequence[Mapping[str, Any]] = spec.get("volumes") or ()
    nodes = nodes_asked(spec)
    found = (
        *(_container(entry, volumes, annotations, nodes) for entry in entries),
        *(
            replace(_container(entry, volumes, annotations, nodes), sidecar=True)
            for entry in native_sidecars(spec)
        ),
    )
    return _shared(found)


@lru_cache(maxsize=_TEMPLATES_KEPT)
def _shared(containers: tuple[ContainerRecord, ...]) -> tuple[ContainerRecord, ...]:
    """The first records that are equal to these."""
    return containers


def _container(
    entry: Mapping[str, Any],
    volumes: Sequence[Mapping[str, Any]],
    annotations: Mapping[str, str],
    nodes: Sequence[str],
) -> ContainerRecord:
    resources: Mapping[str, Any] = entry.get("resources") or {}
    bare = ContainerRecord(
        name=entry["name"],
        image=entry.get("image"),
        command=(),
        args=(),
        accelerator=asks_for_device(resources),
        card=asks_for_card(resources),
        part=asks_for_part(resources, annotations, nodes),
        ports=ports_of(entry),
        scraped=is_scraped(entry, annotations),
    )
    try:
        environment = literal_variables(entry)
    except ArgumentsNotUnderstoodError as error:
        return replace(bare, unread=str(error))
    return replace(
        bare,
        command=tuple(entry.get("command") or ()),
        args=tuple(entry.get("args") or ()),
        environment=environment,
        unset=unset_variables(entry),
        config_maps=config_map_use(entry, volumes),
    )


def _controller_uid(metadata: Mapping[str, Any]) -> str | None:
    owners: Sequence[Mapping[str, Any]] = metadata.get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def _holds(condition: Mapping[str, Any] | None) -> bool:
    return condition is not None and condition.get("status") == "True"


def _started(containers: Sequence[Mapping[str, Any]]) -> float | None:
    """Start time of the last container; None if any has not started."""
    running = [(entry.get("state") or {}).get("running") or {} for entry in containers]
    times = [seconds_from_timestamp(state.get("startedAt")) for state in running]
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None


def _pods_refused(conditions: Sequence[Mapping[str, Any]]) -> str | None:
    """Why pods are not created, from a Deployment's conditions; StatefulSets only have events."""
    failed = next((entry for entry in conditions if entry.get("type") == "ReplicaFailure"), None)
    if failed is None or not _holds(failed):
        return None
    return refusal_words(failed.get("message") or failed.get("reason") or "no pod is made")


def _unschedulable(scheduled: Mapping[str, Any] | None) -> str | None:
    if scheduled is None or scheduled.get("status") != "False":
        return None
    if scheduled.get("reason") != "Unschedulable":
        return None
    return scheduled.get("message") or "Unschedulable"


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)
