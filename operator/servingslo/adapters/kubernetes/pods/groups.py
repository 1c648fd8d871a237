"""A replica of several pods: a leader that owns the workload of its workers.

A LeaderWorkerSet selects the leader of each group, which alone answers requests. The group serves
once all its pods are ready, and waits as long as one of them does: the leader speaks for all.
"""

from collections.abc import Sequence
from dataclasses import replace

from servingslo.adapters.kubernetes.pods.records import PodRecord


def as_group(leader: PodRecord, workers: Sequence[PodRecord], wanted: int) -> PodRecord:
    """The leader with what holds for its group.

    workers: the pods that exist; wanted: how many there should be.
    """
    living = [pod for pod in workers if not (pod.finished or pod.deleting)]
    group = [leader, *living]
    whole = len(living) >= wanted
    ready = whole and all(pod.ready for pod in group)
    unready = [pod.unready_since_seconds for pod in group]
    return replace(
        leader,
        ready=ready,
        scheduled_seconds=_last([pod.scheduled_seconds for pod in group]) if whole else None,
        ready_since_seconds=_last([pod.ready_since_seconds for pod in group]) if ready else None,
        first_ready_seconds=_last([pod.first_ready_seconds for pod in group]) if whole else None,
        unschedulable_reason=next(filter(None, (pod.unschedulable_reason for pod in group)), None),
        queued_by=next(filter(None, (pod.queued_by for pod in group)), None),
        failing=next(filter(None, (pod.failing for pod in group)), None),
        unready_since_seconds=None
        if ready
        else min((since for since in unready if since is not None), default=None),
    )


def _last(times: Sequence[float | None]) -> float | None:
    """The latest of these times; None if one is unknown."""
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(times) else None
