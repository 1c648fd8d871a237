"""An API server that things happen in between two requests of the operator, and the loop over it.

Fakes of the ports alone: planner, reconciler, reporter, registry and loop are the real ones.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from servingslo.adapters.kubernetes.resources import ResourceRecord, ResourceRef
from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.controller.actuators.replicas import ReplicaCount
from servingslo.controller.adapters import Adapters
from servingslo.controller.loop import Controller
from servingslo.controller.reconciler import Reconciler
from servingslo.controller.recordings.recording import Recorder
from servingslo.controller.registry import Registry
from servingslo.controller.reporting.reporter import Reporter
from servingslo.controller.undoing import Undoing
from servingslo.errors import ClusterUnavailableError, NotFoundError, WriteConflictError
from servingslo.explain.events import Event
from servingslo.policy.inputs import Limits, ScaleTarget, SignalProblem
from servingslo.policy.ports import ClusterMetrics, WorkloadView
from servingslo.reasons import Reason
from servingslo.runtimes.recognition import Recognize

TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat")
KEY = ("inference", "chat")


def spec(**changes: Any) -> dict[str, Any]:
    """A ServingSLO's spec whose minimum asks for three replicas, with some fields changed."""
    return {
        "targetRef": {"kind": "Deployment", "name": "chat"},
        "objectives": [{"metric": "ttft", "percentile": 95, "threshold": "1s"}],
        "replicas": {"min": 3, "max": 8},
    } | changes


@dataclass
class Cluster:
    """The truth on the server. meanwhile: happens once, after metrics were read.

    others: controllers that scale the target too, as the server has them; the watch brings them
    only with `watch_comes`. away: no request is answered. stopped_seconds: for so long the process
    stands still once, when it has been told the resource; while_stopped: happens then.
    """

    now: float = 1_700_000_000.0
    record: ResourceRecord | None = None
    replicas: int = 1
    set_by: str | None = None
    others: list[str] = field(default_factory=list)
    watched_others: list[str] = field(default_factory=list)
    problems: tuple[SignalProblem, ...] = ()
    metrics: ClusterMetrics = field(
        default_factory=lambda: ClusterMetrics(
            problem=SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail="refused")
        )
    )
    meanwhile: Callable[[], None] | None = None
    away: bool = False
    stopped_seconds: float = 0.0
    while_stopped: Callable[[], None] | None = None
    writes: list[tuple[int, int]] = field(default_factory=list)
    statuses: list[Mapping[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    looks: int = 0

    def create(self, uid: str = "one", **changes: Any) -> ResourceRecord:
        """A ServingSLO of that uid in place of the one before."""
        self.record = ResourceRecord(
            ref=ResourceRef(namespace="inference", name="chat", uid=uid),
            generation=1,
            created_seconds=self.now,
            deleting=False,
            spec=spec(**changes),
            status={},
        )
        return self.record

    def edit(self, **changes: Any) -> None:
        """Change fields of the spec, as `kubectl apply` does."""
        assert self.record is not None
        self.record = replace(
            self.record,
            generation=self.record.generation + 1,
            spec={**self.record.spec, **changes},
        )

    def delete(self) -> None:
        """Delete the ServingSLO."""
        self.record = None

    def answer(self) -> None:
        """Raise as a request does while the server is away."""
        if self.away:
            raise ClusterUnavailableError("GET /apis: no answer in time")

    def now_seconds(self) -> float:
        """The clock of the operator."""
        return self.now


@dataclass
class _Metrics:
    cluster: Cluster

    async def read(self, pods: Collection[str] | None = None) -> ClusterMetrics:
        del pods
        happens, self.cluster.meanwhile = self.cluster.meanwhile, None
        if happens is not None:
            happens()
        return self.cluster.metrics


@dataclass
class _Workloads:
    cluster: Cluster
    distrusted: int = 0

    def invalidate(self, namespace: str, target: ScaleTarget) -> None:
        self.distrusted += 1

    async def read(
        self, namespace: str, target: ScaleTarget, container: str | None, recognize: Recognize
    ) -> WorkloadView:
        seen = self.cluster
        return WorkloadView(
            target=target,
            desired_replicas=seen.replicas,
            current_replicas=seen.replicas,
            replicas_set_by=seen.set_by,
            problems=(*seen.problems, *map(_scaler, seen.watched_others)),
        )

    async def other_scalers(self, namespace: str, target: ScaleTarget) -> tuple[SignalProblem, ...]:
        self.cluster.answer()
        return tuple(map(_scaler, self.cluster.others))


@dataclass
class _Writer:
    cluster: Cluster

    async def scale(self, namespace: str, target: ScaleTarget, before: int, after: int) -> None:
        self.cluster.answer()
        if before != self.cluster.replicas:
            raise WriteConflictError(f"replicas are {self.cluster.replicas}, not {before} any more")
        self.cluster.writes.append((before, after))
        self.cluster.replicas, self.cluster.set_by = after, "servingslo-operator"


@dataclass
class _Resources:
    cluster: Cluster

    async def read(self, ref: ResourceRef) -> ResourceRecord:
        self.cluster.answer()
        self.cluster.looks += 1
        if self.cluster.record is None:
            raise NotFoundError(f"{ref.name} not found")
        found = self.cluster.record
        self.cluster.now += self.cluster.stopped_seconds
        self.cluster.stopped_seconds = 0.0
        happens, self.cluster.while_stopped = self.cluster.while_stopped, None
        if happens is not None:
            happens()
        return found

    async def read_all(self) -> tuple[ResourceRecord, ...]:
        self.cluster.answer()
        return () if self.cluster.record is None else (self.cluster.record,)

    async def patch_status(self, ref: ResourceRef, changed: Mapping[str, Any]) -> None:
        self.cluster.answer()
        self.cluster.statuses.append(changed)


@dataclass
class _Events:
    cluster: Cluster

    async def post(self, ref: ResourceRef, event: Event, now_seconds: float) -> None:
        self.cluster.answer()
        self.cluster.events.append(event)

    def forget(self, ref: ResourceRef) -> None:
        """Nothing is remembered."""


class World:
    """The real loop over a cluster of fakes."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.cluster = Cluster()
        self.limits = limits or Limits()
        self._start()

    def restarts(self) -> None:
        """A new process of the operator, which knows what stands in the status."""
        assert self.cluster.record is not None
        status: dict[str, Any] = {}
        for changed in self.cluster.statuses:
            status |= changed
        self.cluster.record = replace(self.cluster.record, status=status)
        self._start()
        self.sees()

    def _start(self) -> None:
        self.registry = Registry()
        self.exporter = OperatorMetrics()
        self.workloads = _Workloads(self.cluster)
        writer = _Writer(self.cluster)
        adapters = Adapters(
            clock=self.cluster,
            metrics=_Metrics(self.cluster),
            workloads=self.workloads,
            actuators=(ReplicaCount(writer, self.workloads),),
            resources=_Resources(self.cluster),
            events=_Events(self.cluster),
            exporter=self.exporter,
        )
        reporter, limits = Reporter(adapters), self.limits
        self.controller = Controller(
            adapters=adapters,
            registry=self.registry,
            reconciler=Reconciler(
                adapters=adapters,
                limits=limits,
                recorder=Recorder(None),
                reporter=reporter,
                registry=self.registry,
            ),
            undoing=Undoing(
                adapters=adapters, registry=self.registry, limits=limits, reporter=reporter
            ),
            tick_seconds=15.0,
        )

    def sees(self) -> None:
        """The watch brings the resource as it is now."""
        if self.cluster.record is None:
            self.registry.remove(KEY)
        else:
            self.registry.upsert(self.cluster.record)

    async def tick(self, seconds: float = 15.0) -> None:
        """One tick over what is known, this long after the one before."""
        self.cluster.now += seconds
        self.registry.take_woken()
        await self.controller._tick(tuple(self.registry.resources))


def _scaler(name: str) -> SignalProblem:
    return SignalProblem(
        reason=Reason.SCALER_CONFLICT, detail=f"{name} scales Deployment/chat as well"
    )
