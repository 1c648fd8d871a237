"""Reads a target and its pods: implements `policy.ports.WorkloadSource`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.discovery import ApiResource, Discovery
from servingslo.adapters.kubernetes.api.selectors import Selector, parse_selector
from servingslo.adapters.kubernetes.children import Children
from servingslo.adapters.kubernetes.pods.config_maps import ConfigMapData
from servingslo.adapters.kubernetes.pods.engine_container import FIELD
from servingslo.adapters.kubernetes.pods.inventory import Collection, Inventory
from servingslo.adapters.kubernetes.pods.launches import Launch, Launches
from servingslo.adapters.kubernetes.pods.parents import PartOf
from servingslo.adapters.kubernetes.pods.queued import KUEUE_GATE, KueueMessages
from servingslo.adapters.kubernetes.pods.records import (
    ContainerRecord,
    PodRecord,
    TargetRecord,
    deployment_record,
    group_of,
    stateful_set_record,
)
from servingslo.adapters.kubernetes.pods.refusals import stateful_set_refusal
from servingslo.adapters.kubernetes.pods.replica_gpus import not_read
from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    NoScaleSubresourceError,
    NotFoundError,
    PermissionDeniedError,
)
from servingslo.policy.inputs import (
    NO_GPUS_KNOWN,
    ReplicaGpus,
    ScaleTarget,
    SignalProblem,
)
from servingslo.policy.ports import WorkloadView
from servingslo.reasons import Reason
from servingslo.runtimes import catalogue
from servingslo.runtimes.profile import RuntimeProfile
from servingslo.runtimes.recognition import Recognition, Recognize

# Each is a request at each tick.
_MOST_ASKED = 3
_PARSERS = {"Deployment": deployment_record, "StatefulSet": stateful_set_record}
_REASON_OF_ERROR: tuple[tuple[type[ClusterError], Reason], ...] = (
    (NoScaleSubresourceError, Reason.TARGET_NOT_SCALABLE),
    (NotFoundError, Reason.TARGET_NOT_FOUND),
    (PermissionDeniedError, Reason.PERMISSION_DENIED),
    (ClusterUnavailableError, Reason.CLUSTER_UNAVAILABLE),
    (ClusterError, Reason.TARGET_NOT_READABLE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A target of any kind. containers: of its pod template, None for unknown kinds."""

    uid: str | None
    desired: int | None
    current: int | None
    selector: Selector
    rollout_in_progress: bool = False
    containers: Sequence[ContainerRecord] | None = None
    pods_refused: str | None = None
    replicas_set_by: str | None = None
    gpus: ReplicaGpus = NO_GPUS_KNOWN
    part_of: PartOf | None = None


class KubernetesWorkloads:
    """Targets and pods from the inventory; targets of other kinds through their /scale."""

    def __init__(
        self,
        client: KubeClient,
        discovery: Discovery,
        inventory: Inventory,
        config_maps: ConfigMapData,
    ) -> None:
        self._client = client
        self._discovery = discovery
        self._inventory = inventory
        self._launches = Launches(config_maps)
        self._kueue = KueueMessages(client)
        self._children = Children(client, discovery, inventory)
        # The version below which watched data is outdated; None until it is looked up.
        self._distrusted: dict[tuple[str, ScaleTarget], int | None] = {}

    def invalidate(self, namespace: str, target: ScaleTarget) -> None:
        """Read this target from the API server until its watch has caught up."""
        self._distrusted[namespace, self.stands_for(namespace, target)] = None

    def stands_for(self, namespace: str, target: ScaleTarget) -> ScaleTarget:
        """The workload that a target stood for when it was last read."""
        return self._children.stands_for(namespace, target)

    async def other_scalers(self, namespace: str, target: ScaleTarget) -> tuple[SignalProblem, ...]:
        """The target's other scalers, read from the API server instead of the watch.

        Raises: ClusterError if it does not answer.
        """
        scaled = await self._children.find(namespace, target)
        names = await self._inventory.scalers_now(
            namespace, group_of(scaled.api_version), scaled.kind, scaled.name
        )
        return _other_scalers(names, scaled)

    async def read(
        self, namespace: str, target: ScaleTarget, container: str | None, recognize: Recognize
    ) -> WorkloadView:
        """The target and its pods; command lines are parsed with the flags of their runtime.

        Never raises for an absent or unreadable target: the view's problems contain that.
        """
        try:
            target = await self._children.find(namespace, target)
            found = await self._read_target(namespace, target)
        except ClusterError as error:
            return WorkloadView(target=target, problems=(_problem_of(error),))
        pods = self._inventory.workload_pods(
            namespace,
            target_uid=found.uid,
            selector=found.selector,
            strict=found.containers is not None,
        )
        now_seconds = SystemClock.now_seconds()
        read_as = recognize(tuple(pod.name for pod in pods))
        chosen = self._engines(pods, found, container, read_as)
        profile = None if read_as.runtime is None else catalogue.profile(read_as.runtime)
        launches = {
            pod.name: await self._launches.of(
                chosen[pod.name], namespace, pod.started_seconds, profile
            )
            for pod in pods
        }
        # A pod of an unknown kind is a replica, or leads a group that is one.
        if found.containers is None:
            launches = {name: one.of_replica for name, one in launches.items()}
        waiting = await self._queued(namespace, pods)
        refused = self._refusal(found, container, profile)
        return WorkloadView(
            target=target,
            desired_replicas=found.desired,
            replicas_set_by=found.replicas_set_by,
            current_replicas=found.current,
            rollout_in_progress=found.rollout_in_progress,
            replica_gpus=found.gpus,
            pods=tuple(
                waiting.get(pod.name, pod).sample(
                    now_seconds,
                    engine=chosen[pod.name],
                    launch=launches[pod.name].launch,
                    metrics_off=launches[pod.name].metrics_off,
                )
                for pod in pods
            ),
            read_as=read_as,
            arguments={
                name: one.arguments for name, one in launches.items() if one.arguments is not None
            },
            problems=(
                *self._inventory_problems(namespace),
                *self._scaler_problems(namespace, target),
                *_pods_refused(found),
                *_nodes(launches.values()),
            ),
            batching_change_refused=refused,
            woken_by_others=self._inventory.woken_by_keda(
                namespace, group_of(target.api_version), target.kind, target.name
            ),
        )

    async def _queued(self, namespace: str, pods: Sequence[PodRecord]) -> Mapping[str, PodRecord]:
        """The oldest pod that waits in a queue of Kueue, by name, with Kueue's message.

        Kueue says nothing of those that are alike and come after it: they wait without a look.
        """
        waiting = [pod for pod in pods if KUEUE_GATE in (pod.queued_by or "") and not pod.deleting]
        for pod in sorted(waiting, key=lambda one: one.created_seconds or 0.0)[:_MOST_ASKED]:
            if said := await self._kueue.message(namespace, pod.uid, pod.queue_group):
                return {pod.name: replace(pod, queued_by=f"{pod.queued_by}: {said}")}
        return {}

    async def _read_target(self, namespace: str, target: ScaleTarget) -> _Target:
        resource = await self._discovery.resolve_scalable(target.api_version, target.kind)
        collection = self._inventory.target_collection(target)
        if collection is None:
            return await self._read_scale(namespace, target, resource)
        record = await self._read_record(namespace, target, resource, collection)
        # The API server defaults an absent replica count to 1 in both kinds.
        desired = 1 if record.replicas is None else record.replicas
        refused = record.pods_refused
        if target.kind == "StatefulSet" and (record.current_replicas or 0) < desired:
            refused = await stateful_set_refusal(self._client, namespace, record.uid)
        return _Target(
            uid=record.uid,
            desired=desired,
            current=record.current_replicas,
            selector=record.selector,
            rollout_in_progress=record.rollout_in_progress
            or self._inventory.rolls_out(namespace, record.uid),
            containers=record.containers,
            pods_refused=refused,
            replicas_set_by=record.replicas_set_by,
            gpus=record.gpus,
            part_of=record.part_of,
        )

    async def _read_record(
        self,
        namespace: str,
        target: ScaleTarget,
        resource: ApiResource,
        collection: Collection[TargetRecord],
    ) -> TargetRecord:
        problem = collection.problem(namespace)
        if problem is not None:
            raise problem
        record = collection.get(namespace, target.name)
        key = (namespace, target)
        # The watch may not have reported a new target yet.
        if record is not None and not self._is_behind(key, record):
            self._distrusted.pop(key, None)
            return record
        item = await self._get(namespace, target, resource)
        now: TargetRecord = _PARSERS[target.kind](item, None)
        if key in self._distrusted:
            self._distrusted[key] = now.version
        return now

    def _is_behind(self, key: tuple[str, ScaleTarget], record: TargetRecord) -> bool:
        """Whether the watched record is older than the looked-up version, or that is unknown."""
        if key not in self._distrusted:
            return False
        least = self._distrusted[key]
        return least is None or record.version < least

    async def _read_scale(
        self, namespace: str, target: ScaleTarget, resource: ApiResource
    ) -> _Target:
        scale = await self._get(namespace, target, resource, "scale")
        self._distrusted.pop((namespace, target), None)
        status: KubeObject = scale.get("status") or {}
        uid = scale["metadata"].get("uid")
        return _Target(
            uid=uid,
            # A Scale's JSON omits a count of zero.
            desired=(scale.get("spec") or {}).get("replicas", 0),
            current=status.get("replicas"),
            selector=parse_selector(status.get("selector") or ""),
            rollout_in_progress=uid is not None and self._inventory.rolls_out(namespace, uid),
            gpus=not_read(target.kind),
        )

    async def _get(
        self,
        namespace: str,
        target: ScaleTarget,
        resource: ApiResource,
        subresource: str | None = None,
    ) -> KubeObject:
        try:
            return await self._client.get(resource.path(namespace, target.name, subresource))
        except NotFoundError as error:
            missing = f"{target.kind}/{target.name} not found in namespace {namespace}"
            raise NotFoundError(missing) from error

    def _inventory_problems(self, namespace: str) -> tuple[SignalProblem, ...]:
        inventory = self._inventory
        needed: tuple[Collection[PodRecord] | Collection[object], ...] = (
            inventory.pods,
            inventory.replica_sets,
            inventory.autoscalers,  # type: ignore[assignment]
        )
        problems = (collection.problem(namespace) for collection in needed)
        return tuple(_problem_of(problem) for problem in problems if problem is not None)

    def _scaler_problems(self, namespace: str, target: ScaleTarget) -> tuple[SignalProblem, ...]:
        place = namespace, group_of(target.api_version), target.kind, target.name
        names = self._inventory.scalers_of(*place)
        unasking = self._inventory.unasking(*place) if names else frozenset[str]()
        return _other_scalers(names, target, unasking)

    def _engines(
        self,
        pods: Sequence[PodRecord],
        found: _Target,
        container: str | None,
        read_as: Recognition,
    ) -> Mapping[str, ContainerRecord | None]:
        """The engine's container of each pod by its name; injected containers are excluded."""
        template = frozenset(one.name for one in found.containers or ())
        return {
            pod.name: self._launches.engine(
                pod.containers,
                container,
                read_as.runtime,
                scraped_ports=frozenset(read_as.ports.get(pod.name, ())),
                among=template,
            )
            for pod in pods
        }

    def _refusal(
        self, found: _Target, container: str | None, profile: RuntimeProfile | None
    ) -> SignalProblem | None:
        """Why batch limits cannot be changed; None while the runtime is not known."""
        if found.containers is None:
            return SignalProblem(
                reason=Reason.KIND_NOT_SUPPORTED,
                detail="batch limits are changed in Deployments and StatefulSets only",
            )
        if (parent := found.part_of) is not None:
            detail = (
                f"{parent.kind}/{parent.name} keeps the pod template, and its controller would "
                "revert a change: set the limits there"
            )
            return SignalProblem(reason=Reason.KIND_NOT_SUPPORTED, detail=detail)
        runtime = None if profile is None else profile.name
        chosen = self._launches.engine(tuple(found.containers), container, runtime)
        if chosen is None:
            detail = f"{FIELD}: {container!r} is not a container of the pod template"
            return SignalProblem(reason=Reason.CONTAINER_NOT_FOUND, detail=detail)
        refused = "" if profile is None else self._launches.change_refused(chosen, profile)
        if refused:
            return SignalProblem(reason=Reason.ARGUMENTS_NOT_UNDERSTOOD, detail=refused)
        return None


def _nodes(launches: Iterable[Launch]) -> tuple[SignalProblem, ...]:
    """One problem if a pod is only a node of an engine."""
    node = next((one.launch.node for one in launches if one.launch and one.launch.node), "")
    if not node:
        return ()
    detail = f"{node}, so one pod more or less is no replica: the target must be the group of nodes"
    return (SignalProblem(reason=Reason.TARGET_NOT_SCALABLE, detail=detail),)


def _pods_refused(found: _Target) -> tuple[SignalProblem, ...]:
    if found.pods_refused is None:
        return ()
    quota = "exceeded quota" in found.pods_refused
    reason = Reason.QUOTA_REACHED if quota else Reason.PODS_REFUSED
    return (SignalProblem(reason=reason, detail=found.pods_refused),)


def _other_scalers(
    names: Sequence[str], target: ScaleTarget, unasking: frozenset[str] = frozenset()
) -> tuple[SignalProblem, ...]:
    """The other scalers of a target, as problems.

    names: as 'Kind/name'. unasking: of these, those that ask no external scaler.
    """
    return tuple(
        SignalProblem(
            reason=Reason.SCALER_CONFLICT,
            detail=f"{name} scales {target.kind}/{target.name} as well",
            unasking=name in unasking,
        )
        for name in names
    )


def _problem_of(error: ClusterError) -> SignalProblem:
    """Why a target or its pods cannot be read."""
    reason = next(reason for kind, reason in _REASON_OF_ERROR if isinstance(error, kind))
    return SignalProblem(reason=reason, detail=str(error))
