"""GPUs that a workload holds: those of the pods that exist."""

from collections.abc import Sequence

from servingslo.controller.grants import gpus_of
from servingslo.controller.registry import Resource
from servingslo.explain.events import Event, EventType
from servingslo.explain.format import counted
from servingslo.policy.inputs import Targets
from servingslo.policy.ports import WorkloadSource, WorkloadView
from servingslo.reasons import Reason
from servingslo.runtimes.recognition import NOT_RECOGNIZED, Recognition

# Kinds whose replica is one pod.
_ONE_POD_KINDS = frozenset({"Deployment", "StatefulSet"})


def pods_of(view: WorkloadView) -> int:
    """Replicas whose pods hold GPUs, ending ones included.

    Of kinds whose replica may be a group of pods, an ending pod counts as a whole replica: too many
    for a moment, never too few.
    """
    if view.target.kind in _ONE_POD_KINDS or view.current_replicas is None:
        return len(view.pods)
    return view.current_replicas + sum(pod.deleting for pod in view.pods)


def is_gone(view: WorkloadView) -> bool:
    """Whether the workload does not exist."""
    return any(problem.reason is Reason.TARGET_NOT_FOUND for problem in view.problems)


def unreadable(view: WorkloadView) -> str:
    """Why a target will never be read, in words; '' if it may be.

    It counts as a workload without a ServingSLO: otherwise one of them would stop all the others. A
    Deployment or StatefulSet that is denied is read again, because an API server that has just
    started knows no roles yet.
    """
    for problem in view.problems:
        denied = problem.reason is Reason.PERMISSION_DENIED
        if problem.reason is Reason.TARGET_NOT_SCALABLE or (
            denied and view.target.kind not in _ONE_POD_KINDS
        ):
            return f"its target is not counted: {problem.reason.value}, {problem.detail}"
    return ""


async def undecided(workloads: WorkloadSource, namespace: str, targets: Targets) -> WorkloadView:
    """A workload that is not decided on: its count, pods and GPUs."""
    return await workloads.read(
        namespace, targets.target, targets.batching.container, _recognize_nothing
    )


def left_behind(gone: Resource, targets: Targets, view: WorkloadView, budget: str) -> Event | None:
    """The event that a deleted resource leaves GPUs outside of its budget; None if it does not."""
    replicas = max(view.desired_replicas or 0, pods_of(view))
    if not replicas:
        return None
    gpus = (gpus_of(targets, view.replica_gpus).gpus or 0) * replicas
    held = counted(replicas, "replica") + (f" with {counted(gpus, 'GPU')}" if gpus else "")
    target = f"{targets.target.kind} {targets.target.name}"
    return Event(
        type=EventType.WARNING,
        reason=Reason.OUTSIDE_BUDGET,
        message=f"{target} is outside ServingBudget {budget} since ServingSLO"
        f" {gone.record.ref.name} was deleted: {held} are not counted any more",
        key=f"{Reason.OUTSIDE_BUDGET}/{budget}/{target}",
    )


def _recognize_nothing(_pods: Sequence[str]) -> Recognition:
    return NOT_RECOGNIZED
