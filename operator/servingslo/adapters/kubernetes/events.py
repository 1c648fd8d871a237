"""Kubernetes events about a ServingSLO, deduplicated by key."""

import hashlib
from dataclasses import dataclass

from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject, Patch
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.adapters.kubernetes.resources import ResourceRef, object_reference
from servingslo.errors import NotFoundError, WriteConflictError
from servingslo.explain.events import Event
from servingslo.units import timestamp_from_seconds

COMPONENT = "servingslo-operator"
# The shortest interval between two writes of a repeated event.
SUPPRESSED_SECONDS = 600.0
# The API server keeps events for one hour (kube-apiserver --event-ttl); older ones are dropped.
_KEPT_SECONDS = 3600.0
_LONGEST_MESSAGE = 1024  # validated by the API server
_HASH_LENGTH = 16
# Cached events before the first search for old ones.
_FEW = 1024


@dataclass(slots=True)
class _Posted:
    """The known state of an event on the server."""

    at_seconds: float
    first_seconds: float
    count: int
    message: str


class KubernetesEvents:
    """Posts core/v1 events: one object for each key, with a count of its repetitions."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._posted: dict[tuple[str, str], _Posted] = {}
        self._looked_through_at = _FEW

    async def post(self, ref: ResourceRef, event: Event, now_seconds: float) -> None:
        """Write the event, or increase its count, or do nothing if it was written a moment ago.

        Raises: ClusterError if the API server refuses.
        """
        name = f"{ref.name}.{_digest(ref.uid, event.key)}"
        known = self._posted.get((ref.uid, event.key))
        if known is not None and abs(now_seconds - known.at_seconds) > _KEPT_SECONDS:
            known = None
        rested = known is None or abs(now_seconds - known.at_seconds) >= SUPPRESSED_SECONDS
        if not (rested or event.every_time):
            return
        posted = _Posted(
            at_seconds=now_seconds,
            first_seconds=known.first_seconds if known else now_seconds,
            count=known.count + 1 if known else 1,
            message=event.message,
        )
        await self._write(ref, name, event, posted)
        self._posted[ref.uid, event.key] = posted
        if len(self._posted) >= self._looked_through_at:
            self._drop_old(now_seconds)

    def _drop_old(self, now_seconds: float) -> None:
        """Drop events that the server has deleted. Runs rarely: when the number has doubled."""
        self._posted = {
            key: one
            for key, one in self._posted.items()
            if abs(now_seconds - one.at_seconds) <= _KEPT_SECONDS
        }
        self._looked_through_at = max(2 * len(self._posted), _FEW)

    def forget(self, ref: ResourceRef) -> None:
        """Drop the cached events of a deleted resource."""
        self._posted = {key: value for key, value in self._posted.items() if key[0] != ref.uid}

    async def _write(self, ref: ResourceRef, name: str, event: Event, posted: _Posted) -> None:
        base = api_path("v1", "events", namespace=ref.namespace)
        path = api_path("v1", "events", namespace=ref.namespace, name=name)
        change: KubeObject = {
            "count": posted.count,
            "lastTimestamp": timestamp_from_seconds(posted.at_seconds),
            "message": event.message[:_LONGEST_MESSAGE],
            "reason": event.reason.value,
        }
        if posted.count > 1:
            try:
                await self._client.patch(path, change, Patch.MERGE)
            except NotFoundError:
                pass
            else:
                return
        body = {
            **change,
            "metadata": {"name": name, "namespace": ref.namespace},
            "involvedObject": object_reference(ref),
            "type": event.type.value,
            "firstTimestamp": timestamp_from_seconds(posted.first_seconds),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": COMPONENT,
        }
        try:
            await self._client.create(base, body)
        except WriteConflictError:
            # Written before a restart of the operator.
            await self._client.patch(path, change, Patch.MERGE)


def _digest(uid: str, key: str) -> str:
    return hashlib.sha256(f"{uid}/{key}".encode()).hexdigest()[:_HASH_LENGTH]
