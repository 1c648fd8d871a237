"""Fakes of the controller's ports, around the planner's small world: they do as the real ones do.

A write is refused where its precondition does not hold; a source that is down says so as the port
promises; what is written to a status must be what the CRD allows, and a merge patch is merged.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.unit.policy_world import TICK_SECONDS, World, steady
from tests.unit.workload_server import ROLLING, WorkloadServer

from servingslo.adapters.kubernetes.api.discovery import Discovery
from servingslo.adapters.kubernetes.resources import ResourceRecord, ResourceRef
from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.api.v1alpha1.status import ServingSLOStatus
from servingslo.controller.actuators.means import ACTUATOR, Means
from servingslo.controller.actuators.replicas import ReplicaCount
from servingslo.controller.adapters import Adapters
from servingslo.controller.grants import Grants, MakeGrants
from servingslo.controller.loop import Controller
from servingslo.controller.reconciler import Reconciler
from servingslo.controller.recordings.recording import Recorder
from servingslo.controller.registry import Registry, Resource
from servingslo.controller.reporting.reporter import Reporter
from servingslo.controller.undoing import Undoing
from servingslo.errors import ClusterError, NotFoundError, WriteConflictError
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.explain.events import Event
from servingslo.policy.inputs import (
    NO_GPUS_KNOWN,
    LimitKind,
    Limits,
    Observation,
    ReplicaGpus,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.policy.ports import ClusterMetrics, EngineArguments, PodMetrics, WorkloadView
from servingslo.reasons import Reason
from servingslo.runtimes.recognition import Recognize

NAMESPACE, NAME, UID, TARGET = "inference", "llama-chat", "uid-1", "llama"
SPEC: Mapping[str, Any] = {
    "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": TARGET},
    "objectives": [
        {"metric": "ttft", "percentile": 95, "threshold": "1s"},
        {"metric": "tpot", "percentile": 95, "threshold": "50ms"},
    ],
    "replicas": {"min": 1, "max": 12},
}


def record_of(
    spec: Mapping[str, Any] | None = None,
    *,
    name: str = NAME,
    uid: str = UID,
    generation: int = 1,
    created_seconds: float = 0.0,
    **changed: Any,
) -> ResourceRecord:
    """A ServingSLO as the API server has it; further arguments replace fields of the spec."""
    return ResourceRecord(
        ref=ResourceRef(namespace=NAMESPACE, name=name, uid=uid),
        generation=generation,
        created_seconds=created_seconds,
        deleting=False,
        spec={**(SPEC if spec is None else spec), **changed},
        status={},
    )


@dataclass
class FakeFleet:
    """The target: its engines, pods and count. Clock, metrics, workload source and both writers.

    The view of Kubernetes is a cache, as that of the real source: it is renewed at `tick`, and by
    `invalidate` for the next reading. down: what every request to the API server raises.
    metrics_down: what reading Prometheus answers. scaled: what was written, in order.
    workload: the API server with its pod template.
    """

    world: World
    target: str = TARGET
    now: float = 0.0
    down: ClusterError | None = None
    metrics_down: SignalProblem | None = None
    replica_gpus: ReplicaGpus = NO_GPUS_KNOWN
    scaled: list[tuple[int, int]] = field(default_factory=list)
    workload: WorkloadServer = field(
        default_factory=lambda: WorkloadServer(
            {"replicas": 4, "strategy": ROLLING}, name=TARGET, namespace=NAMESPACE
        )
    )
    distrusted: list[ScaleTarget] = field(default_factory=list)
    readings: int = 0
    asked_pods: Collection[str] | None = None
    _seen: Observation | None = None
    _view: WorkloadView | None = None

    def tick(self) -> None:
        """Fifteen seconds later, scraped and seen by the watch."""
        self.now = self.world.now + TICK_SECONDS
        self._seen = self.world.observe(self.now)
        self._view = None

    def now_seconds(self) -> float:
        """Of the world's clock."""
        return self.now

    def invalidate(self, namespace: str, target: ScaleTarget) -> None:
        """The next reading passes over the cache."""
        assert namespace == NAMESPACE
        self.distrusted.append(target)
        self._view = None

    async def read_metrics(self) -> ClusterMetrics:
        """What Prometheus knows: engines by pod, without limits in force."""
        self.readings += 1
        if self.metrics_down is not None:
            return ClusterMetrics(problem=self.metrics_down)
        pods = self._observation().pods
        return ClusterMetrics(
            pods={
                (NAMESPACE, pod.name): PodMetrics(
                    engines=tuple(
                        replace(
                            engine, runtime="vllm", max_num_seqs=None, max_num_batched_tokens=None
                        )
                        for engine in pod.engines
                    ),
                    gpus=pod.gpus,
                )
                for pod in pods
            }
        )

    async def read_workload(
        self, namespace: str, target: ScaleTarget, _container: str | None, recognize: Recognize
    ) -> WorkloadView:
        """What the cache holds of the target; a target that is not there is a problem."""
        if namespace != NAMESPACE or target.name != self.target:
            return WorkloadView(
                target=target,
                problems=(SignalProblem(reason=Reason.TARGET_NOT_FOUND, detail=target.name),),
            )
        if self.down is not None and self._view is None:
            return WorkloadView(
                target=target,
                problems=(SignalProblem(reason=Reason.CLUSTER_UNAVAILABLE, detail=str(self.down)),),
            )
        if self._view is None:
            self._view = self._seen_now(target)
        read_as = recognize(tuple(pod.name for pod in self._view.pods))
        return replace(self._view, read_as=read_as)

    def _seen_now(self, target: ScaleTarget) -> WorkloadView:
        seen = self._observation()
        limits = self.world.spec.limits
        stated = EngineArguments(
            max_num_seqs=self.world.max_num_seqs or limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
        )
        return WorkloadView(
            target=target,
            desired_replicas=self.world.desired,
            current_replicas=seen.current_replicas,
            rollout_in_progress=seen.rollout_in_progress,
            pods=tuple(replace(pod, engines=(), gpus=()) for pod in seen.pods),
            arguments={pod.name: stated for pod in seen.pods},
            problems=seen.problems,
            replica_gpus=self.replica_gpus,
        )

    async def scale(self, namespace: str, target: ScaleTarget, before: int, after: int) -> None:
        """Set the count where it still is what the plan started from."""
        assert (namespace, target.name) == (NAMESPACE, self.target)
        if self.down is not None:
            raise self.down
        if self.world.desired != before:
            raise WriteConflictError(f"replicas are {self.world.desired}, not {before} any more")
        self.scaled.append((before, after))
        self.world.scale(after)

    def _observation(self) -> Observation:
        assert self._seen is not None, "tick first"
        return self._seen


@dataclass
class _Metrics:
    """The port of Prometheus on the fleet."""

    fleet: FakeFleet

    async def read(self, pods: Collection[str] | None = None) -> ClusterMetrics:
        """All engines of the cluster."""
        self.fleet.asked_pods = pods
        return await self.fleet.read_metrics()


@dataclass
class _Workloads:
    """The port of Kubernetes' view on the fleet."""

    fleet: FakeFleet

    async def read(
        self, namespace: str, target: ScaleTarget, container: str | None, recognize: Recognize
    ) -> WorkloadView:
        """One target and its pods."""
        return await self.fleet.read_workload(namespace, target, container, recognize)

    def invalidate(self, namespace: str, target: ScaleTarget) -> None:
        """Pass over the cache the next time."""
        self.fleet.invalidate(namespace, target)

    async def other_scalers(self, _namespace: str, _target: ScaleTarget) -> Sequence[SignalProblem]:
        """Nobody else scales the fleet."""
        return ()


@dataclass
class FakeResources:
    """The ServingSLOs on the API server. patches: every status patch that was taken, in order."""

    records: dict[str, ResourceRecord] = field(default_factory=dict)
    patches: list[Mapping[str, Any]] = field(default_factory=list)
    down: ClusterError | None = None

    def put(self, record: ResourceRecord) -> ResourceRecord:
        """Create or replace, as `kubectl apply` does; the status of the same object stays."""
        known = self.records.get(record.ref.name)
        if known is not None and known.ref.uid == record.ref.uid:
            record = replace(record, status=known.status)
        self.records[record.ref.name] = record
        return record

    def status(self, name: str = NAME) -> Mapping[str, Any]:
        """As it stands on the server."""
        return self.records[name].status

    def condition(self, type_: str, name: str = NAME) -> tuple[str, str]:
        """Status and reason of a condition on the server."""
        found = {entry["type"]: entry for entry in self.status(name)["conditions"]}
        return found[type_]["status"], found[type_]["reason"]

    async def read_all(self) -> Sequence[ResourceRecord]:
        """Every resource."""
        if self.down is not None:
            raise self.down
        return tuple(self.records.values())

    async def read(self, ref: ResourceRef) -> ResourceRecord:
        """One resource as it is now."""
        if self.down is not None:
            raise self.down
        known = self.records.get(ref.name)
        if known is None:
            raise NotFoundError(f"{ref.name} is gone")
        return known

    async def patch_status(self, ref: ResourceRef, changed: Mapping[str, Any]) -> None:
        """Merge into the status of this very object, as far as the CRD allows the outcome."""
        if self.down is not None:
            raise self.down
        known = self.records.get(ref.name)
        if known is None:
            raise NotFoundError(f"{ref.name} is gone")
        if known.ref.uid != ref.uid:
            raise WriteConflictError(f"{ref.name} has another uid")
        status = merged(known.status, changed)
        ServingSLOStatus.model_validate(status)
        self.records[ref.name] = replace(known, status=status)
        self.patches.append(copy.deepcopy(dict(changed)))

    async def hand_over(self, known: ResourceRecord, changed: Mapping[str, Any]) -> ResourceRecord:
        """The same, where the resource is as known."""
        now = await self.read(known.ref)
        if now != known:
            raise WriteConflictError(f"{known.ref.name} has changed")
        await self.patch_status(known.ref, changed)
        return self.records[known.ref.name]


def merged(before: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON Merge Patch applied. Source: RFC 7396, section 2."""
    after = dict(before)
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        elif isinstance(value, Mapping):
            old = after.get(key)
            after[key] = merged(old if isinstance(old, Mapping) else {}, value)
        else:
            after[key] = copy.deepcopy(value)
    return after


@dataclass
class FakeEvents:
    """Events as they were handed over, in order. down: what posting raises."""

    posted: list[tuple[ResourceRef, Event]] = field(default_factory=list)
    forgotten: list[ResourceRef] = field(default_factory=list)
    down: ClusterError | None = None

    async def post(self, ref: ResourceRef, event: Event, _now_seconds: float) -> None:
        """Keep the event."""
        if self.down is not None:
            raise self.down
        self.posted.append((ref, event))

    def forget(self, ref: ResourceRef) -> None:
        """Keep that it was forgotten."""
        self.forgotten.append(ref)

    def reasons(self) -> list[Reason]:
        """Of all events, in order."""
        return [event.reason for _, event in self.posted]


@dataclass
class FakeHistory:
    """Past rates of one target. ticks: how often a tick was begun."""

    found: RateHistory | None = None
    ticks: int = 0
    asked: list[str] = field(default_factory=list)

    def tick(self) -> None:
        """Count."""
        self.ticks += 1

    def take(
        self, uid: str, _namespace: str, _targets: Targets, _pods: Sequence[str]
    ) -> RateHistory | None:
        """What is there, handed over once."""
        self.asked.append(uid)
        found, self.found = self.found, None
        return found


@dataclass
class Operator:
    """The controller with fakes of everything around it, one tick at a time."""

    world: World = field(default_factory=lambda: World(rate=steady(4.0), replicas=2))
    limits: Limits = field(default_factory=Limits)
    history: FakeHistory | None = None
    make_grants: MakeGrants = Grants
    recorder: Recorder = field(default_factory=lambda: Recorder(None))
    tick_seconds: float = TICK_SECONDS
    resources: FakeResources = field(default_factory=FakeResources)
    events: FakeEvents = field(default_factory=FakeEvents)

    def __post_init__(self) -> None:
        self.fleet = FakeFleet(world=self.world)
        self.exporter = OperatorMetrics()
        self.registry = Registry()
        self.start()

    def start(self) -> None:
        """A new process of the operator on the same cluster: nothing is remembered."""
        workloads = _Workloads(self.fleet)
        client: Any = self.fleet.workload
        means = Means(
            client=client,
            discovery=Discovery(client),
            workloads=workloads,
            limit_kinds=frozenset(LimitKind),
            pod_templates=True,
        )
        self.adapters = Adapters(
            clock=self.fleet,
            metrics=_Metrics(self.fleet),
            workloads=workloads,
            actuators=(
                ReplicaCount(self.fleet, workloads),
                *(row(means) for row in ACTUATOR.parts()),
            ),
            resources=self.resources,
            events=self.events,
            exporter=self.exporter,
            history=self.history,
        )
        self.reporter = Reporter(adapters=self.adapters)
        self.registry = Registry()
        self.reconciler = Reconciler(
            adapters=self.adapters,
            registry=self.registry,
            limits=self.limits,
            recorder=self.recorder,
            reporter=self.reporter,
            make_grants=self.make_grants,
        )
        self.controller = Controller(
            adapters=self.adapters,
            registry=self.registry,
            reconciler=self.reconciler,
            undoing=Undoing(
                adapters=self.adapters,
                registry=self.registry,
                limits=self.limits,
                reporter=self.reporter,
            ),
            tick_seconds=self.tick_seconds,
        )
        self.registry.replace_all(self.resources.records.values())
        self.controller._listed = True

    def apply(self, record: ResourceRecord) -> Resource:
        """`kubectl apply`: on the server, and seen by the watch."""
        return self.registry.upsert(self.resources.put(record))

    def delete(self, name: str = NAME) -> None:
        """`kubectl delete`: gone from the server, and seen by the watch."""
        del self.resources.records[name]
        self.registry.remove((NAMESPACE, name))

    async def tick(self) -> None:
        """Time passes, then one round of the loop over every resource."""
        self.fleet.tick()
        await self.look()

    async def look(self) -> None:
        """One round of the loop at the same moment."""
        await self.controller._tick(tuple(self.registry.resources))

    async def ticks(self, count: int) -> None:
        """So many rounds, time passing."""
        for _ in range(count):
            await self.tick()

    def counted(self, metric: str, **labels: str) -> float:
        """A number that the operator exports; 0 where it exports none."""
        return self.exporter.registry.get_sample_value(metric, labels) or 0.0
