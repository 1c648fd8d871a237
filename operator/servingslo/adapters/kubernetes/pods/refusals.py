"""Why the API server refuses a workload's pods, in its own words: a quota, an admission policy.

A Deployment has a condition with the reason; a StatefulSet has only events. Events are read only
while it has fewer pods than it wants.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.errors import ClusterError
from servingslo.units import seconds_from_timestamp

# Source: k8s.io/kubernetes pkg/controller/statefulset/stateful_pod_control.go, recordPodEvent:
# FailedCreate "create Pod chat-1 in StatefulSet chat failed error: pods "chat-1" is forbidden: …".
_FAILED, _SUCCEEDED = "FailedCreate", "SuccessfulCreate"
# A workload's events of the last hour; repeated events are merged into one with a count.
_MOST_EVENTS = "500"


def refusal_words(message: str) -> str:
    """The text of a refusal without the pod's name, which differs each time."""
    return message.partition("is forbidden: ")[2] or message


def latest_refusal(events: Iterable[Mapping[str, Any]]) -> str | None:
    """Why the last pod creation failed; None if it succeeded or none is known."""
    attempts = [
        (_time_seconds(event), event["reason"] == _FAILED, str(event.get("message") or _FAILED))
        for event in events
        if event.get("reason") in {_FAILED, _SUCCEEDED}
    ]
    if not attempts:
        return None
    _, failed, message = max(attempts)
    return refusal_words(message) if failed else None


async def stateful_set_refusal(client: KubeClient, namespace: str, uid: str) -> str | None:
    """Why a StatefulSet's pods are not created; None if not known.

    Never raises: without the permission or an answer, only this detail is missing.
    """
    query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": _MOST_EVENTS}
    try:
        answer = await client.get(api_path("v1", "events", namespace=namespace), query)
    except ClusterError:
        return None
    return latest_refusal(answer.get("items") or ())


def _time_seconds(event: Mapping[str, Any]) -> float:
    """Time of an event's last occurrence; the two event APIs use different fields."""
    series: Mapping[str, Any] = event.get("series") or {}
    for text in (
        event.get("lastTimestamp"),
        series.get("lastObservedTime"),
        event.get("eventTime"),
    ):
        seconds = seconds_from_timestamp(text)
        if seconds is not None:
            return seconds
    return 0.0
