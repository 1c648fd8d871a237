"""What the controller needs from the outside world, as protocols that adapters implement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.requests.misses import BudgetReading
from servingslo.estimation.sample import EngineSample, GatewaySample, GPUSample, PodSample
from servingslo.policy.inputs import InForce, ScaleTarget, SignalProblem, Targets
from servingslo.runtimes.recognition import NOT_RECOGNIZED, Recognition, Recognize, recognized


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMetrics:
    """What Prometheus knows of one pod; limits in force are not among it.

    ports: from which its engines are scraped, where the scrape tells.
    """

    engines: tuple[EngineSample, ...] = ()
    gpus: tuple[GPUSample, ...] = ()
    ports: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetrics:
    """One reading of the whole cluster's engines, by (namespace, pod).

    gateways: what the gateway counts, by namespace and the name it has for a workload; None where
    no gateway is read.
    problem: why the reading is unusable or partial; None when all queries were answered in full.
    time_seconds: the moment that all ages are of, seconds since the epoch; None where nothing was
    read. clocks_set: how often a clock that moments are told by was set so far: what was remembered
    by the clocks before is not to be set against this reading.
    """

    pods: Mapping[tuple[str, str], PodMetrics] = field(default_factory=dict)
    gateways: Mapping[tuple[str, str], GatewaySample] | None = None
    problem: SignalProblem | None = None
    time_seconds: float | None = None
    clocks_set: int = 0

    def recognize(self, namespace: str, stated: str | None) -> Recognize:
        """What engines are read as, by their pods in a namespace: stated, or what they export."""

        def of_pods(pods: Sequence[str]) -> Recognition:
            known = {pod: one for pod in pods if (one := self.pods.get((namespace, pod)))}
            engines = (engine for one in known.values() for engine in one.engines)
            read_as = recognized(stated, (e.runtime for e in engines if e.runtime is not None))
            return replace(read_as, ports={pod: one.ports for pod, one in known.items()})

        return of_pods


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArguments:
    """Batch limits found in a container's arguments; None where the flag is not given."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """The target and its pods as Kubernetes knows them; pods carry no engines yet.

    read_as: the runtime whose flags and metrics its pods were read by. arguments: by pod name, none
    while no runtime is known. problems: what could not be read, or who else owns the replica count.
    batching_change_refused: why the template's arguments cannot be patched, None when they can.
    last_rollout_seconds: time of the newest change of the pod template, where known.
    replicas_set_by: the field manager that set the count last, where the target tells.
    in_force: what stands beside the workload itself, by the knob of its actuator.
    woken_by_others: another scaler brings the target back from zero by a signal of its own.
    not_woken: why a gateway would count no request without a pod; '' where none is in doubt.
    """

    target: ScaleTarget
    desired_replicas: int | None = None
    replicas_set_by: str | None = None
    current_replicas: int | None = None
    rollout_in_progress: bool = False
    last_rollout_seconds: float | None = None
    pods: tuple[PodSample, ...] = ()
    read_as: Recognition = NOT_RECOGNIZED
    arguments: Mapping[str, EngineArguments] = field(default_factory=dict)
    problems: tuple[SignalProblem, ...] = ()
    batching_change_refused: SignalProblem | None = None
    in_force: Mapping[str, InForce] = field(default_factory=dict)
    woken_by_others: bool = False
    not_woken: str = ""


class Clock(Protocol):
    """Reads the wall clock; virtual in the simulator."""

    def now_seconds(self) -> float:
        """Seconds since the epoch."""
        ...


class MetricsSource(Protocol):
    """Reads all engines of the cluster at once."""

    async def read(self) -> ClusterMetrics:
        """Never raises for trouble with Prometheus: the trouble is the answer's problem."""
        ...


class HistorySource(Protocol):
    """Past arrival rates, read beside the control loop now and then."""

    def tick(self) -> None:
        """Begin a tick: start a reading when one is due. Never blocks, never raises."""
        ...

    def take(
        self, uid: str, namespace: str, targets: Targets, pods: Sequence[str]
    ) -> RateHistory | None:
        """What was read of a target and not yet handed to this resource; a few in each tick.

        Handed over again at once where the resource changes its target or its forecast.
        pods: names of its pods now, by which it is checked that names tell the target.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetQuestion:
    """Whose misses are asked for, by which objectives and over which window."""

    namespace: str
    targets: Targets
    runtime: str | None


class BudgetSource(Protocol):
    """Misses over days, read beside the control loop."""

    def tick(self) -> None:
        """Begin a tick: start a reading when one is due. Never blocks, never raises."""
        ...

    def take(self, uid: str, asked: BudgetQuestion, pods: Sequence[str]) -> BudgetReading | None:
        """What was read last for this resource; None until its question has been answered.

        pods: names of its pods now, by which it is checked that names tell the target.
        """
        ...


class WorkloadSource(Protocol):
    """Reads one target and its pods."""

    async def read(
        self, namespace: str, target: ScaleTarget, container: str | None, recognize: Recognize
    ) -> WorkloadView:
        """The target, and its pods as engines of the runtime that they are recognized as.

        Never raises for an absent or unreadable target: that is among the view's problems.
        """
        ...


class RereadableWorkloads(WorkloadSource, Protocol):
    """A workload source with a memory that can be passed over."""

    def invalidate(self, namespace: str, target: ScaleTarget) -> None:
        """Read this target from the API server itself the next time."""
        ...

    async def other_scalers(self, namespace: str, target: ScaleTarget) -> Sequence[SignalProblem]:
        """Who else scales the target, as the API server has it now. Raises: ClusterError."""
        ...


class ReplicaWriter(Protocol):
    """Writes a replica count through /scale."""

    async def scale(self, namespace: str, target: ScaleTarget, before: int, after: int) -> None:
        """Set the count if it still is `before`.

        Raises: WriteConflictError when it is not; ClusterError otherwise.
        """
        ...


class BatchingWriter(Protocol):
    """Writes batch limits into the pod template."""

    async def apply(
        self,
        namespace: str,
        target: ScaleTarget,
        container: str | None,
        arguments: EngineArguments,
        runtime: str,
    ) -> bool:
        """Patch the container's arguments under a resourceVersion precondition.

        A limit of None has its flag removed. runtime: whose flags they are.
        Returns whether anything was written: nothing is when they are as wanted already.
        Raises: WriteConflictError when the object changed; ClusterError otherwise.
        """
        ...
