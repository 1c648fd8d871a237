"""Pods that should serve and fail: they crash, cannot start, or have been unready for too long.

A step of the decision names them. The plan does not depend on it.
"""

from datetime import UTC, datetime

from servingslo.estimation.sample import PodSample
from servingslo.policy.context import TickContext
from servingslo.policy.decision_parts import DecisionStep
from servingslo.reasons import Reason

FAILING_INPUT = "failing_pods"
# A rollout without progress for this long has failed.
# Source: Kubernetes, Deployment, default of progressDeadlineSeconds.
LEAST_START_SECONDS = 600.0
# A start that takes this many times the planned cold start is late.
LATE_STARTS = 2.0
# A step of a decision is one line of a log, so it names at most this many pods.
_MOST_NAMED = 3


def failing_pods_step(context: TickContext) -> DecisionStep | None:
    """The failing pods by name with the reason: 'llama-7 (OOMKilled)'; None without any.

    after: how many fail. inputs: the same number, of how many pods, and the names.
    """
    pods = [pod for pod in context.observation.pods if not pod.deleting]
    failing = [(pod.name, why) for pod in pods if (why := _failure(pod, context))]
    if not failing:
        return None
    named = ", ".join(f"{name} ({why})" for name, why in sorted(failing)[:_MOST_NAMED])
    more = len(failing) - _MOST_NAMED
    return DecisionStep(
        stage="observed",
        knob="failing-pods",
        before=None,
        after=len(failing),
        reason=Reason.PODS_FAILING,
        inputs={
            FAILING_INPUT: len(failing),
            "pods": len(pods),
            "detail": named + (f" and {more} more" if more > 0 else ""),
        },
    )


def _failure(pod: PodSample, context: TickContext) -> str:
    """Why the pod fails; '' if it serves, starts, or waits for a place."""
    if pod.ready or pod.unschedulable_reason or pod.queued_reason:
        return ""
    if pod.failing_reason:
        return pod.failing_reason
    unready_for = pod.unready_for_seconds
    if unready_for is None:
        return ""
    since = _minute(context.now_seconds - unready_for)
    if pod.ready_after_seconds is not None:
        return f"unready since {since}"
    late_seconds = max(LATE_STARTS * context.cold_start_seconds, LEAST_START_SECONDS)
    return f"not ready since {since}" if unready_for > late_seconds else ""


def _minute(time_seconds: float) -> str:
    """RFC 3339 in UTC to the minute: '2026-11-21T12:00Z'."""
    return datetime.fromtimestamp(time_seconds, tz=UTC).strftime("%Y-%m-%dT%H:%MZ")
