"""Learn how long a replica takes from order to readiness, from this workload's own pods."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.estimation.sample import PodSample

# Before any pod of the workload was measured: pulling an image and loading weights takes minutes.
# Judgement; measured by the median first start over clusters that send theirs.
PRIOR_MEAN_SECONDS = 120.0
# Sources of the estimate.
MEASURED = "measured"
PRIOR = "prior"
REMEMBERED_PODS = 16
# Waiting for a GPU is shortage, not cold start: longer scheduling times are left out.
LONGEST_SCHEDULING_SECONDS = 60.0
# A longer wait for a node is a shortage of nodes.
# Source: Kubernetes, cluster-autoscaler, default of --max-node-provision-time.
LONGEST_NODE_SECONDS = 900.0
# A Ready condition that flipped back much later than its siblings' is not a start.
OUTLIER_FACTOR = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord:
    """One start: creation to scheduling, and scheduling to readiness, in seconds.

    image_seconds: the part of the second until the containers started; None if unknown.
    """

    pod: str
    scheduling_seconds: float
    loading_seconds: float
    image_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartState:
    """The newest starts of the workload."""

    starts: tuple[StartRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartEstimate:
    """Seconds from order to readiness; source is 'measured' or 'prior'.

    The parts of the mean: scheduling; image, until the containers started; loading, until they were
    ready. If the start of containers is unknown, image is None and loading includes it. All are
    None before a start was measured. node_median_seconds: of the waits for a new node, None before
    one was measured.
    """

    mean_seconds: float
    sample_count: int
    source: str
    scheduling_mean_seconds: float | None = None
    image_mean_seconds: float | None = None
    loading_mean_seconds: float | None = None
    node_median_seconds: float | None = None


def observe(state: ColdStartState, pods: Sequence[PodSample]) -> ColdStartState:
    """Return the state with the pods that have become ready since."""
    known = {s.pod: s for s in state.starts}
    started = sorted((pod for pod in pods if _has_started(pod)), key=_oldest_first)
    there = {pod.name for pod in started}
    # Only the newest starts are kept: the oldest leave if there are more pods than are remembered.
    starts = (
        *(s for s in state.starts if s.pod not in there),
        *(known.get(pod.name) or _record(pod) for pod in started[-REMEMBERED_PODS:]),
    )[-REMEMBERED_PODS:]
    return state if starts == state.starts else ColdStartState(starts=starts)


def _has_started(pod: PodSample) -> bool:
    """Return whether the time of the pod's first start is known."""
    return pod.ready_after_seconds is not None and pod.ready_after_seconds > 0 and not pod.restarts


def _oldest_first(pod: PodSample) -> tuple[float, str]:
    return (-math.inf if pod.age_seconds is None else -pod.age_seconds), pod.name


def _record(pod: PodSample) -> StartRecord:
    ready = pod.ready_after_seconds or 0.0
    scheduled = pod.scheduled_after_seconds or 0.0
    return StartRecord(
        pod=pod.name,
        scheduling_seconds=min(scheduled, ready),
        loading_seconds=max(ready - scheduled, 0.0),
        image_seconds=_image_seconds(pod),
    )


def estimate(state: ColdStartState) -> ColdStartEstimate:
    """Return the cold start, from the observed starts."""
    loading = _without_outliers([s.loading_seconds for s in state.starts])
    if not loading:
        return ColdStartEstimate(
            mean_seconds=PRIOR_MEAN_SECONDS,
            sample_count=0,
            source=PRIOR,
        )
    scheduling = [
        s.scheduling_seconds
        for s in state.starts
        if s.scheduling_seconds <= LONGEST_SCHEDULING_SECONDS
    ]
    scheduled = sum(scheduling) / len(scheduling) if scheduling else 0.0
    mean = sum(loading) / len(loading)
    waits = sorted(s.scheduling_seconds for s in state.starts if _is_for_a_node(s))
    images = _without_outliers(
        [s.image_seconds for s in state.starts if s.image_seconds is not None]
    )
    image = sum(images) / len(images) if images else None
    return ColdStartEstimate(
        mean_seconds=scheduled + mean,
        sample_count=len(loading),
        source=MEASURED,
        scheduling_mean_seconds=scheduled,
        image_mean_seconds=image,
        loading_mean_seconds=mean if image is None else max(mean - image, 0.0),
        node_median_seconds=waits[len(waits) // 2] if waits else None,
    )


def _is_for_a_node(start: StartRecord) -> bool:
    """Return whether the pod waited for longer than scheduling takes, and for no shortage."""
    return LONGEST_SCHEDULING_SECONDS < start.scheduling_seconds <= LONGEST_NODE_SECONDS


def _image_seconds(pod: PodSample) -> float | None:
    """Return seconds from scheduling to the start of the containers, None if either is unknown."""
    scheduled, started = pod.scheduled_after_seconds, pod.started_after_seconds
    ready = pod.ready_after_seconds
    if scheduled is None or started is None or ready is None:
        return None
    return min(max(started - scheduled, 0.0), max(ready - scheduled, 0.0))


def _without_outliers(values: Sequence[float]) -> list[float]:
    if not values:
        return []
    middle = sorted(values)[len(values) // 2]
    return [v for v in values if v <= OUTLIER_FACTOR * max(middle, 1.0)]
