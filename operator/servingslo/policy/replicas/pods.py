"""What each pod counts for: one condition for a pod, and a table of what follows from it.

A pod that is unready for a moment does not fail: engines are restarted, and probes miss. A pod is
late only if a start of this workload takes less long for sure, so a cold start that is merely
assumed makes none late. A pod without metrics may still serve: it counts, and `signals` forbids
fewer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

from servingslo.estimation.pods.health import ASLEEP, PARTLY_ASLEEP, RECEIVING_NOTHING
from servingslo.estimation.sample import PodSample
from servingslo.estimation.windows.freshness import METRICS_MISSING, METRICS_STALE
from servingslo.policy.decision_parts import StepValue
from servingslo.policy.inputs import Observation
from servingslo.policy.replicas.ownership import refused_pods
from servingslo.policy.replicas.signals import Signals
from servingslo.reasons import Reason

# If more than half of the ready pods seem to report false values, the pods are not the cause: new
# ones would do the same. If half receive nothing, new pods on top would receive nothing either: the
# routing is the cause.
EXCLUDED_SHARE = 0.5
# A first start without progress for this long may have failed.
# Source: Kubernetes, Deployment, default of progressDeadlineSeconds.
LEAST_START_SECONDS = 600.0
# A pod that served may be unready for this long. Source: Kubernetes, admission plug-in
# DefaultTolerationSeconds: after this time a pod of a node that is not ready is replaced.
LEAST_UNREADY_SECONDS = 300.0
# A start that takes this many times the known cold start is late.
LATE_STARTS = 2.0
# From this share of pods on, the cause is the workload and not a pod: new pods would fail too.
FAILURE_SHARE = 0.5
# A step of a decision is one line of a log, so it names at most this many pods.
MOST_NAMED = 3
_UNSEEN = frozenset({METRICS_MISSING, METRICS_STALE})
# Engines report it themselves, so it is no doubt about them, however many they are.
_SLEEPS = (ASLEEP, PARTLY_ASLEEP)

# Pods by name, each with its reason.
Told = tuple[tuple[str, str], ...]


class Counts(NamedTuple):
    """What a pod in a condition counts for.

    name: among the inputs of a step. capacity: it serves. forbids_fewer: why none is released.
    stops: why it is not coming either, and a further one would not serve. stage: of the guard that
    then orders none; '' if one is ordered all the same: an autoscaler of nodes makes room for it.
    """

    name: str
    capacity: bool = False
    forbids_fewer: Reason | None = None
    stops: Reason | None = None
    stage: str = ""


class Condition(Enum):
    """How a pod of the target is, and what follows; one that is being deleted has none.

    Of sleeping pods Kubernetes might remove one that serves. Where most pods are suspect, demand is
    uncertain. Failing pods forbid more if they are most of all.
    """

    SERVING = Counts("serving", capacity=True)
    ASLEEP = Counts("asleep", forbids_fewer=Reason.ENGINES_ASLEEP)
    UNRELIABLE = Counts("excluded")
    SUSPECT = Counts("suspect", capacity=True, forbids_fewer=Reason.UNRELIABLE_PODS)
    STARTING = Counts("starting")
    UNSCHEDULABLE = Counts("unschedulable", stops=Reason.UNSCHEDULABLE_PODS)
    QUEUED = Counts("queued", stops=Reason.QUEUED, stage="queue")
    FAILING = Counts("failing", stops=Reason.PODS_FAILING, stage="failing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The pods of a tick by condition, each with its reason, and all that are not deleted.

    coming: pods ordered and not ready. starting: those of them that will serve.
    """

    by_condition: Mapping[Condition, Told]
    serving: tuple[PodSample, ...]
    coming: int
    starting: int
    total: int

    def of(self, *conditions: Condition) -> Told:
        """The pods in these conditions, by name with the reason."""
        return tuple(one for each in conditions for one in self.by_condition.get(each, ()))

    @property
    def unreliable(self) -> Told:
        """Ready pods that are no capacity."""
        return self.of(Condition.ASLEEP, Condition.UNRELIABLE)

    @property
    def partly_asleep(self) -> int:
        """How many of those have an engine that is awake, and serves."""
        return sum(why.startswith(PARTLY_ASLEEP) for _, why in self.of(Condition.ASLEEP))

    @property
    def mostly_failing(self) -> bool:
        """Whether so many pods fail that new ones of the same template would fail too."""
        failing = len(self.of(Condition.FAILING))
        return failing > 0 and failing >= FAILURE_SHARE * self.total

    @property
    def stopped(self) -> bool:
        """Whether some do not come, and further ones would not serve either."""
        return any(one.value.stops and self.of(one) for one in Condition)

    def inputs(self, condition: Condition) -> dict[str, StepValue]:
        """How many are in a condition, and which or why, for a step about them.

        Of unreliable pods also those that sleep: all that are left out.
        """
        left_out = condition is Condition.UNRELIABLE
        told = self.unreliable if left_out else self.of(condition)
        counted: dict[str, StepValue] = {f"{condition.value.name}_pods": len(told)}
        match condition:
            case Condition.UNSCHEDULABLE:
                return counted | {"detail": told[0][1]}
            case Condition.QUEUED:
                return counted | {"detail": max((why for _, why in told), key=len)}
            case Condition.FAILING:
                return counted | {"pods": self.total, "detail": _listed(told)}
        named = _listed([(name, why.replace("-", " ")) for name, why in told])
        return ({} if condition is Condition.ASLEEP else counted) | {"detail": named}


def _listed(pods: Sequence[tuple[str, str]]) -> str:
    first = pods[:MOST_NAMED]
    named = ", ".join(f"{name} ({why})" for name, why in first)
    more = len(pods) - len(first)
    return named + (f" and {more} more" if more else "")


def read_pods(
    observation: Observation,
    signals: Signals,
    unreliable: Told,
    cold_start_seconds: float | None,
    now_seconds: float,
) -> Pods:
    """The pods by condition.

    unreliable: pods that provide no capacity, with why. cold_start_seconds: measured or stated;
    None if it is only assumed.
    """
    ready = signals.serving_pods
    coming = max((observation.desired_replicas or 0) - len(ready) - len(signals.nodes), 0)
    found: dict[Condition, list[tuple[str, str]]] = {one: [] for one in Condition}
    doubts = _doubts(ready, unreliable)
    left = [pod for pod in observation.pods if not pod.deleting]
    for pod in left:
        if pod.name in doubts:
            condition, why = doubts[pod.name]
        elif pod.unschedulable_reason:
            condition, why = Condition.UNSCHEDULABLE, pod.unschedulable_reason
        elif pod.queued_reason:
            condition, why = Condition.QUEUED, pod.queued_reason
        elif pod.ready:
            condition, why = Condition.SERVING, ""
        elif why := _failure(pod, cold_start_seconds, now_seconds):
            condition = Condition.FAILING
        else:
            condition = Condition.STARTING
        found[condition].append((pod.name, why))
    found[Condition.FAILING].sort()
    idle = sum(len(found[one]) for one in Condition if one.value.stops)
    created = coming
    if refused_pods(observation) is not None:
        created = min(coming, sum(not pod.ready for pod in left))
    lost = {name for one in Condition if not one.value.capacity for name, _ in found[one]}
    return Pods(
        by_condition={condition: tuple(told) for condition, told in found.items()},
        serving=tuple(pod for pod in ready if pod.name not in lost),
        coming=coming,
        starting=max(created - idle, 0),
        total=len(left),
    )


def _doubts(ready: Sequence[PodSample], unreliable: Told) -> dict[str, tuple[Condition, str]]:
    """Conditions of ready pods that are not just serving."""
    names = {pod.name for pod in ready}
    told = [(name, why) for name, why in unreliable if name in names and why not in _UNSEEN]
    asleep = {name: (Condition.ASLEEP, why) for name, why in told if why.startswith(_SLEEPS)}
    lying = [(name, why) for name, why in told if name not in asleep]
    most, condition = EXCLUDED_SHARE * (len(ready) - len(asleep)), Condition.UNRELIABLE
    if len(lying) >= most:
        lying = [one for one in lying if one[1] != RECEIVING_NOTHING]
    if len(lying) > most:
        condition = Condition.SUSPECT
    return asleep | {name: (condition, why) for name, why in lying}


def _failure(pod: PodSample, cold_start_seconds: float | None, now_seconds: float) -> str:
    """Why a pod fails that is not ready and waits for no place; '' if it starts."""
    if pod.failing_reason:
        return pod.failing_reason
    unready_for = pod.unready_for_seconds
    served = pod.ready_after_seconds is not None
    start = pod.ready_after_seconds if cold_start_seconds is None else cold_start_seconds
    if unready_for is None or start is None:
        return ""
    # A restarted engine needs a start again, without a place and an image.
    least = LEAST_UNREADY_SECONDS if served else LEAST_START_SECONDS
    if unready_for <= max(LATE_STARTS * start, least):
        return ""
    since = _minute(now_seconds - unready_for)
    return f"unready since {since}" if served else f"not ready since {since}"


def _minute(time_seconds: float) -> str:
    """RFC 3339 in UTC to the minute: '2026-11-21T12:00Z'."""
    return datetime.fromtimestamp(time_seconds, tz=UTC).strftime("%Y-%m-%dT%H:%MZ")
