"""Why the API server makes no pods of a workload, in its own words: a quota, an admission policy.

Deployments have it as a condition; a StatefulSet has events alone. They are read only while it has
fewer pods than it asks for.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from servingslo.adapters.kubernetes.client import KubeClient
from servingslo.adapters.kubernetes.timestamps import seconds_from_timestamp
from servingslo.errors import ClusterError

# Source: k8s.io/kubernetes pkg/controller/statefulset/stateful_pod_control.go, recordPodEvent:
# FailedCreate "create Pod chat-1 in StatefulSet chat failed error: pods "chat-1" is forbidden: …".
_FAILED, _SUCCEEDED = "FailedCreate", "SuccessfulCreate"
# A workload's events of the last hour; the newest of each kind are merged into one by count.
_MOST_EVENTS = "500"


def refusal_words(message: str) -> str:
    """What a refusal says, without the name of the pod that was tried, which differs each time."""
    return message.partition("is forbidden: ")[2] or message


def latest_refusal(events: Iterable[Mapping[str, Any]]) -> str | None:
    """Why the last attempt to make a pod failed; None where it did not, or none is known."""
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
    """Why no more pods are made of a StatefulSet; None where that is not known.

    Never raises: without the permission, or an answer, there is only one thing less to tell.
    """
    query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": _MOST_EVENTS}
    try:
        answer = await client.get(f"/api/v1/namespaces/{namespace}/events", query)
    except ClusterError:
        return None
    return latest_refusal(answer.get("items") or ())


def _time_seconds(event: Mapping[str, Any]) -> float:
    """When an event happened last; the two event APIs have it in different places."""
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
