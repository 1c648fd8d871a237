"""The pods of a simulated fleet, and their samples in observations."""

from dataclasses import dataclass, replace
from enum import StrEnum

from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.models.engine.service_time import EngineLimits
from servingslo_lab.sim.replicas import layout

WORKLOAD_NAMESPACE, WORKLOAD_NAME = "simulation", "fleet"
UNSCHEDULABLE = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


class PodPhase(StrEnum):
    """The phase of a pod's life cycle."""

    UNSCHEDULABLE = "unschedulable"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(slots=True)
class SimulatedPod:
    """One pod. Times in seconds; row is the index of its engine, once it is ready.

    slowness: factor of its step times over those of other pods.
    """

    number: int
    ordered: float
    limits: EngineLimits
    generation: int
    phase: PodPhase = PodPhase.STARTING
    scheduled: float | None = None
    ready: float | None = None
    ended: float | None = None
    row: int = layout.NONE
    slowness: float = 1.0
    scraped: EngineSample | None = None

    @property
    def name(self) -> str:
        """Its name in observations."""
        return f"{WORKLOAD_NAME}-{self.number}"

    @property
    def holds_gpu(self) -> bool:
        """Whether it was scheduled and has not ended."""
        return self.scheduled is not None and self.ended is None


def paid_seconds(pod: SimulatedPod, end: float) -> float:
    """Paid time of a pod until `end`: from when it gets its GPU until its removal."""
    if pod.scheduled is None:
        return 0.0
    return (end if pod.ended is None else pod.ended) - max(pod.scheduled, 0.0)


def removal_order(pod: SimulatedPod) -> tuple[int, float]:
    """Sort key of removal: not scheduled first, then not ready, then the latest ready.

    Source: Kubernetes, pkg/controller/controller_utils.go, ActivePodsWithRanks.
    """
    if pod.phase is PodPhase.UNSCHEDULABLE:
        return 0, -pod.ordered
    if pod.ready is None:
        return 1, -pod.ordered
    return 2, -pod.ready


def pod_sample(pod: SimulatedPod, now: float, age: float) -> PodSample:
    """The sample of a pod; age: of its newest scrape, in seconds."""
    engines: tuple[EngineSample, ...] = ()
    if pod.scraped is not None and pod.phase is PodPhase.READY:
        engines = (_aged(pod.scraped, age),)
    ready = pod.phase is PodPhase.READY
    return PodSample(
        name=pod.name,
        template_hash=str(pod.generation),
        ready=ready,
        deleting=pod.phase is PodPhase.DRAINING,
        age_seconds=now - pod.ordered,
        scheduled_after_seconds=None if pod.scheduled is None else pod.scheduled - pod.ordered,
        ready_after_seconds=None if pod.ready is None else pod.ready - pod.ordered,
        ready_for_seconds=now - pod.ready if ready and pod.ready is not None else None,
        unschedulable_reason=UNSCHEDULABLE if pod.phase is PodPhase.UNSCHEDULABLE else None,
        engines=engines,
    )


def _aged(sample: EngineSample, age: float) -> EngineSample:
    return replace(
        sample,
        gauges_age_seconds=age,
        counters_age_seconds=age,
        histograms_age_seconds=age,
    )
