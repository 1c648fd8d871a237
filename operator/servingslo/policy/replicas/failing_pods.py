"""Pods that should serve and fail: they crash, cannot start, or are unready for too long.

A pod that is unready for a moment does not fail: engines are restarted, and probes miss. A pod is
late only if a start of this workload takes less long for sure, so a cold start that is merely
assumed makes none late.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from servingslo.estimation.sample import PodSample

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


def failing_pods(
    pods: Sequence[PodSample], *, cold_start_seconds: float | None, now_seconds: float
) -> tuple[tuple[str, str], ...]:
    """The failing pods by name, each with the reason: ('llama-7', 'OOMKilled').

    cold_start_seconds: measured or stated; None if it is only assumed.
    """
    found = (
        (pod.name, _failure(pod, cold_start_seconds, now_seconds))
        for pod in pods
        if not pod.deleting
    )
    return tuple(sorted((name, why) for name, why in found if why))


def _failure(pod: PodSample, cold_start_seconds: float | None, now_seconds: float) -> str:
    """Why the pod fails; '' if it serves, starts, or waits for a place."""
    if pod.ready or pod.unschedulable_reason or pod.queued_reason:
        return ""
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
