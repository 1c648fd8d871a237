"""What the controller needs from outside, as protocols that adapters implement."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.sample import EngineSample, GatewaySample, GPUSample, PodSample
from servingslo.plugins import Aspect, Key
from servingslo.policy.inputs import (
    NO_GPUS_KNOWN,
    InForce,
    ReplicaGpus,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.runtimes.recognition import NOT_RECOGNIZED, Recognition, Recognize, recognized


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMetrics:
    """Prometheus data of one pod, without its limits in force.

    ports: from which its engines are scraped, if the scrape reports it. left_out: why none of its
    series is read; '' if they are.
    """

    engines: tuple[EngineSample, ...] = ()
    gpus: tuple[GPUSample, ...] = ()
    ports: frozenset[int] = frozenset()
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetrics:
    """One reading of all engines of the cluster, by (namespace, pod).

    gateways: counts of the gateway, by namespace and its name for a workload; None if no gateway is
    read. backends: the same of each backend that is counted apart, with the numbers of its rule and
    of the backend. problem: why the reading is unusable or partial; None if all queries were
    answered in full. time_seconds: the time at which all ages were taken, seconds since the epoch;
    None if nothing was read. clocks_set: how often a clock behind the timestamps was set so far. If
    it rises, values remembered from before must not be compared with this reading.
    """

    pods: Mapping[tuple[str, str], PodMetrics] = field(default_factory=dict)
    gateways: Mapping[tuple[str, str], GatewaySample] | None = None
    backends: Mapping[tuple[str, str, int, int], GatewaySample] = field(default_factory=dict)
    problem: SignalProblem | None = None
    time_seconds: float | None = None
    clocks_set: int = 0

    def recognize(self, namespace: str, stated: str | None) -> Recognize:
        """How to recognize the runtime of a namespace's pods: stated, or by exported metrics."""

        def of_pods(pods: Sequence[str]) -> Recognition:
            known = {pod: one for pod in pods if (one := self.pods.get((namespace, pod)))}
            engines = (engine for one in known.values() for engine in one.engines)
            read_as = recognized(stated, (e.runtime for e in engines if e.runtime is not None))
            return replace(read_as, ports={pod: one.ports for pod, one in known.items()})

        return of_pods


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArguments:
    """Batch limits found in a container's arguments; None if the flag is absent."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """The target and its pods as Kubernetes knows them; pods carry no engines yet.

    read_as: the runtime whose flags and metrics are read from its pods. arguments: by pod name,
    none while no runtime is known. problems: data that could not be read, or another owner of the
    replica count. batching_change_refused: why the template's arguments cannot be patched, None if
    they can.
    replicas_set_by: the field manager that set the count last, if the target reports it. in_force:
    current values next to the workload itself, by the knob of its actuator. woken_by_others:
    another scaler brings the target back from zero by a signal of its own. not_woken: why a gateway
    would count no request without a pod; '' if there is no doubt. replica_gpus: from the pod
    template.
    """

    target: ScaleTarget
    desired_replicas: int | None = None
    replicas_set_by: str | None = None
    current_replicas: int | None = None
    rollout_in_progress: bool = False
    pods: tuple[PodSample, ...] = ()
    read_as: Recognition = NOT_RECOGNIZED
    arguments: Mapping[str, EngineArguments] = field(default_factory=dict)
    problems: tuple[SignalProblem, ...] = ()
    batching_change_refused: SignalProblem | None = None
    in_force: Mapping[str, InForce] = field(default_factory=dict)
    woken_by_others: bool = False
    not_woken: str = ""
    replica_gpus: ReplicaGpus = NO_GPUS_KNOWN


class Clock(Protocol):
    """Reads the wall clock; virtual in the simulator."""

    def now_seconds(self) -> float:
        """Seconds since the epoch."""
        ...


class MetricsSource(Protocol):
    """Reads all engines of the cluster at once."""

    async def read(self, pods: Collection[str] | None = None) -> ClusterMetrics:
        """Never raises for trouble with Prometheus: the answer's problem reports it.

        pods: names of those whose engines are needed, and of no other owner; None for all.
        """
        ...


class HistorySource(Protocol):
    """Past arrival rates, read from time to time outside the control loop."""

    def tick(self) -> None:
        """Begin a tick: start a reading if one is due. Never blocks, never raises."""
        ...

    def take(
        self, uid: str, namespace: str, targets: Targets, pods: Sequence[str]
    ) -> RateHistory | None:
        """Past rates of a target that this resource has not received yet; a few in each tick.

        If the resource changes its target or its forecast, it receives them again at once. pods:
        current names of its pods, to check that names identify the target.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadQuestion:
    """The workload that something is read of, and what its resource states.

    fallback: numbers of its rule and of itself in the workload's route; None without one.
    """

    namespace: str
    targets: Targets
    runtime: str | None
    fallback: tuple[int, int] | None = None


class FeatureReader(Protocol):
    """What one feature reads from Prometheus, at its own pace outside the control loop."""

    # Name and type of what it reads, in `Observation.features`.
    key: ClassVar[Key[Any]]

    def __init__(self, config: Any, /) -> None:
        """With the configuration of the store."""

    def tick(self) -> None:
        """Begin a tick: start a reading if one is due. Never blocks, never raises."""
        ...

    def take(self, uid: str, asked: WorkloadQuestion, pods: Sequence[str]) -> object:
        """The last reading for this resource; None until its question has been answered.

        pods: current names of its pods, to check that names identify the target.
        """
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


READER: Aspect[type[FeatureReader]] = Aspect("reader")


class WorkloadSource(Protocol):
    """Reads one target and its pods."""

    async def read(
        self, namespace: str, target: ScaleTarget, container: str | None, recognize: Recognize
    ) -> WorkloadView:
        """The target, and its pods as engines of the runtime that they are recognized as.

        Never raises for an absent or unreadable target: the view's problems report it.
        """
        ...


class RereadableWorkloads(WorkloadSource, Protocol):
    """A workload source with a cache that can be bypassed."""

    def invalidate(self, namespace: str, target: ScaleTarget) -> None:
        """Read this target from the API server itself the next time."""
        ...

    async def other_scalers(self, namespace: str, target: ScaleTarget) -> Sequence[SignalProblem]:
        """Other scalers of the target, read from the API server now. Raises: ClusterError."""
        ...


class ReplicaWriter(Protocol):
    """Writes a replica count through /scale."""

    async def scale(self, namespace: str, target: ScaleTarget, before: int, after: int) -> None:
        """Set the count if it still is `before`.

        Raises: WriteConflictError if it is not; ClusterError otherwise.
        """
        ...
