"""Reads a target and its pods: implements `policy.ports.WorkloadSource`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.config_maps import ConfigMapData, StartedWith, started_with
from servingslo.adapters.kubernetes.discovery import ApiResource, Discovery
from servingslo.adapters.kubernetes.engine_container import engine_container, sidecar_refused
from servingslo.adapters.kubernetes.inventory import Collection, Inventory
from servingslo.adapters.kubernetes.queued import KUEUE_GATE, KueueMessages
from servingslo.adapters.kubernetes.records import (
    ContainerRecord,
    PodRecord,
    TargetRecord,
    deployment_record,
    group_of,
    stateful_set_record,
)
from servingslo.adapters.kubernetes.refusals import stateful_set_refusal
from servingslo.adapters.kubernetes.selectors import Selector, parse_selector
from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    NoScaleSubresourceError,
    NotFoundError,
    PermissionDeniedError,
)
from servingslo.estimation.sample import EngineLaunch
from servingslo.policy.inputs import LIMIT_FIELDS, ScaleTarget, SignalProblem
from servingslo.policy.ports import EngineArguments, WorkloadView
from servingslo.reasons import Reason
from servingslo.runtimes import catalogue
from servingslo.runtimes.arguments import batch_arguments, change_refused, command_words
from servingslo.runtimes.command_line import CommandLine, command_line
from servingslo.runtimes.launch_arguments import launch_arguments, parse_launch_arguments
from servingslo.runtimes.metrics_switches import metrics_switched_off
from servingslo.runtimes.profile import RuntimeProfile
from servingslo.runtimes.recognition import Recognition, Recognize
from servingslo.runtimes.write_refusals import write_refused

_REASON_OF_ERROR: tuple[tuple[type[ClusterError], Reason], ...] = (
    (NoScaleSubresourceError, Reason.TARGET_NOT_SCALABLE),
    (NotFoundError, Reason.TARGET_NOT_FOUND),
    (PermissionDeniedError, Reason.PERMISSION_DENIED),
    (ClusterUnavailableError, Reason.CLUSTER_UNAVAILABLE),
    (ClusterError, Reason.TARGET_NOT_READABLE),
)
# Unread parts of command lines that are listed; of the rest only the number is reported.
_MOST_TOLD = 4
_PARSERS = {"Deployment": deployment_record, "StatefulSet": stateful_set_record}


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
        self._config_maps = config_maps
        self._kueue = KueueMessages(client)
        # The version below which watched data is outdated; None until it is looked up.
        self._distrusted: dict[tuple[str, ScaleTarget], int | None] = {}

    def invalidate(self, namespace: str, target: ScaleTarget) -> None:
        """Read this target from the API server until its watch has caught up."""
        self._distrusted[namespace, target] = None

    async def other_scalers(self, namespace: str, target: ScaleTarget) -> tuple[SignalProblem, ...]:
        """The target's other scalers, read from the API server instead of the watch.

        Raises: ClusterError if it does not answer.
        """
        names = await self._inventory.scalers_now(
            namespace, group_of(target.api_version), target.kind, target.name
        )
        return _scalers(names, target)

    async def read(
        self, namespace: str, target: ScaleTarget, container: str | None, recognize: Recognize
    ) -> WorkloadView:
        """The target and its pods; command lines are parsed with the flags of their runtime.

        Never raises for an absent or unreadable target: the view's problems contain that.
        """
        try:
            found = await self._read_target(namespace, target)
        except ClusterError as error:
            return WorkloadView(target=target, problems=(_problem(error),))
        pods = self._inventory.workload_pods(
            namespace,
            target_uid=found.uid,
            selector=found.selector,
            strict=found.containers is not None,
        )
        now_seconds = SystemClock.now_seconds()
        read_as = recognize(tuple(pod.name for pod in pods))
        chosen = _engines(pods, found, container, read_as)
        profile = None if read_as.runtime is None else catalogue.profile(read_as.runtime)
        has_file = profile is None or bool(profile.launch.config)
        started = {
            pod.name: await started_with(
                engine, namespace, self._config_maps, pod.started_seconds, has_file=has_file
            )
            for pod in pods
            if (engine := chosen[pod.name]) is not None
        }
        waiting = await self._queued(namespace, pods)
        return WorkloadView(
            target=target,
            desired_replicas=found.desired,
            replicas_set_by=found.replicas_set_by,
            current_replicas=found.current,
            rollout_in_progress=found.rollout_in_progress,
            last_rollout_seconds=self._last_rollout_seconds(namespace, found),
            pods=tuple(
                replace(
                    waiting.get(pod.name, pod).sample(now_seconds, image=_image(chosen[pod.name])),
                    launch=_of_unclear(
                        chosen[pod.name], _launch(chosen[pod.name], started.get(pod.name), profile)
                    ),
                    metrics_off=_metrics_off(started.get(pod.name), profile),
                )
                for pod in pods
            ),
            read_as=read_as,
            arguments={
                name: _arguments(line, profile)
                for name, line in started.items()
                if profile is not None
            },
            problems=(
                *self._inventory_problems(namespace),
                *_scalers(self._scaler_names(namespace, target), target),
                *_pods_refused(found),
            ),
            batching_change_refused=_refusal(found, container, profile),
            woken_by_others=self._inventory.woken_by_keda(
                namespace, group_of(target.api_version), target.kind, target.name
            ),
        )

    async def _queued(self, namespace: str, pods: Sequence[PodRecord]) -> Mapping[str, PodRecord]:
        """The first pod that waits in a queue of Kueue, by name, with Kueue's message."""
        for pod in pods:
            if pod.queued_by is None or pod.deleting or KUEUE_GATE not in pod.queued_by:
                continue
            said = await self._kueue.message(namespace, pod.uid, pod.labels)
            return {pod.name: replace(pod, queued_by=f"{pod.queued_by}: {said}")} if said else {}
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
            or self._inventory.template_count(namespace, record.uid) > 1,
            containers=record.containers,
            pods_refused=refused,
            replicas_set_by=record.replicas_set_by,
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
        return _Target(
            uid=scale["metadata"].get("uid"),
            desired=(scale.get("spec") or {}).get("replicas"),
            current=status.get("replicas"),
            selector=parse_selector(status.get("selector") or ""),
        )

    async def _get(
        self, namespace: str, target: ScaleTarget, resource: ApiResource, subresource: str = ""
    ) -> KubeObject:
        try:
            return await self._client.get(resource.path(namespace, target.name, subresource))
        except NotFoundError as error:
            missing = f"{target.kind}/{target.name} not found in namespace {namespace}"
            raise NotFoundError(missing) from error

    def _last_rollout_seconds(self, namespace: str, found: _Target) -> float | None:
        if found.uid is None:
            return None
        return self._inventory.newest_replica_set_seconds(namespace, found.uid)

    def _inventory_problems(self, namespace: str) -> tuple[SignalProblem, ...]:
        inventory = self._inventory
        needed: tuple[Collection[PodRecord] | Collection[object], ...] = (
            inventory.pods,
            inventory.replica_sets,
            inventory.autoscalers,  # type: ignore[assignment]
        )
        problems = (collection.problem(namespace) for collection in needed)
        return tuple(_problem(problem) for problem in problems if problem is not None)

    def _scaler_names(self, namespace: str, target: ScaleTarget) -> tuple[str, ...]:
        return self._inventory.scalers_of(
            namespace, group_of(target.api_version), target.kind, target.name
        )


def _scalers(names: Sequence[str], target: ScaleTarget) -> tuple[SignalProblem, ...]:
    return tuple(
        SignalProblem(
            reason=Reason.SCALER_CONFLICT,
            detail=f"{name} scales {target.kind}/{target.name} as well",
        )
        for name in names
    )


def _problem(error: ClusterError) -> SignalProblem:
    reason = next(reason for kind, reason in _REASON_OF_ERROR if isinstance(error, kind))
    return SignalProblem(reason=reason, detail=str(error))


def _pods_refused(found: _Target) -> tuple[SignalProblem, ...]:
    if found.pods_refused is None:
        return ()
    quota = "exceeded quota" in found.pods_refused
    reason = Reason.QUOTA_REACHED if quota else Reason.PODS_REFUSED
    return (SignalProblem(reason=reason, detail=found.pods_refused),)


def _engines(
    pods: Sequence[PodRecord], found: _Target, container: str | None, read_as: Recognition
) -> Mapping[str, ContainerRecord | None]:
    """The engine's container of each pod, by the pod's name; injected containers are excluded."""
    template = frozenset(one.name for one in found.containers or ())
    return {
        pod.name: engine_container(
            pod.containers,
            container,
            runtime=read_as.runtime,
            scraped_ports=read_as.ports.get(pod.name, ()),
            among=template,
        )
        for pod in pods
    }


def _image(container: ContainerRecord | None) -> str | None:
    return None if container is None else container.image


def _launch(
    container: ContainerRecord | None,
    started: StartedWith | None,
    profile: RuntimeProfile | None,
) -> EngineLaunch | None:
    if container is None or started is None or profile is None:
        return None
    line = _line(started, profile)
    found = launch_arguments(line, profile, started.config)
    limits = batch_arguments(line, profile, started.config)
    given = parse_launch_arguments(container.command, container.args, profile)
    unread = [*([started.unread] if started.unread else []), *limits.unread, *found.unread]
    return EngineLaunch(
        flags=given.flags,
        accelerator=container.accelerator,
        throughput_mode=found.throughput_mode,
        chunked_prefill=found.chunked_prefill,
        max_model_len=found.max_model_len,
        api_server_count=found.api_server_count,
        unread=_told(unread),
        unread_limits=limits.unread_limits,
    )


def _told(unread: Sequence[str]) -> str:
    """The unread parts, in one line of bounded length."""
    several = tuple(dict.fromkeys(unread))
    more = len(several) - _MOST_TOLD
    return "; ".join([*several[:_MOST_TOLD], *([f"and {more} more"] if more > 0 else [])])


def _line(started: StartedWith, profile: RuntimeProfile) -> CommandLine:
    return command_line(
        started.command, started.args, profile.starts, started.environment, started.given
    )


def _metrics_off(started: StartedWith | None, profile: RuntimeProfile | None) -> str:
    """Why the engine exports no metrics, from its command line; used while no runtime is known."""
    if started is None:
        return ""
    words = (*command_words(started.command, started.args), *started.config)
    return metrics_switched_off(words, catalogue.known() if profile is None else (profile,))


def _of_unclear(
    container: ContainerRecord | None, launch: EngineLaunch | None
) -> EngineLaunch | None:
    """The settings of a command line; for an ambiguous engine no limit is assumed."""
    if container is None or launch is None or container.name:
        return launch
    return replace(launch, unread_limits=LIMIT_FIELDS)


def _arguments(started: StartedWith, profile: RuntimeProfile) -> EngineArguments:
    found = batch_arguments(_line(started, profile), profile, started.config)
    return EngineArguments(
        max_num_seqs=found.max_num_seqs, max_num_batched_tokens=found.max_num_batched_tokens
    )


def _refusal(
    found: _Target, container: str | None, profile: RuntimeProfile | None
) -> SignalProblem | None:
    """Why batch limits cannot be changed; None while the runtime is not known."""
    if found.containers is None:
        return SignalProblem(
            reason=Reason.KIND_NOT_SUPPORTED,
            detail="batch limits are changed in Deployments and StatefulSets only",
        )
    runtime = None if profile is None else profile.name
    chosen = engine_container(found.containers, container, runtime=runtime)
    if chosen is None:
        return SignalProblem(
            reason=Reason.CONTAINER_NOT_FOUND,
            detail=f"spec.batching.container: {container!r} is not a container of the pod template",
        )
    if profile is None:
        return None
    refused = (
        chosen.unread
        or sidecar_refused(chosen)
        or write_refused(chosen.command, chosen.args, profile, chosen.environment)
        or change_refused(chosen.command, chosen.args, profile, chosen.environment)
    )
    if refused:
        return SignalProblem(reason=Reason.ARGUMENTS_NOT_UNDERSTOOD, detail=refused)
    return None
