"""Kubernetes events about a ServingSLO, deduplicated by key."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject, Patch
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.adapters.kubernetes.resources import ResourceRef, object_reference
from servingslo.errors import NotFoundError, WriteConflictError
from servingslo.explain.events import Event
from servingslo.reasons import Reason

EVENTS_VERSION = "events.k8s.io/v1"
CONTROLLER = "servingslo-operator"
_ACTION = "Reconcile"
# The shortest interval between two writes of a repeated event.
SUPPRESSED_SECONDS = 600.0
# The API server keeps events for one hour (kube-apiserver --event-ttl); older ones are dropped.
_KEPT_SECONDS = 3600.0
_LONGEST_NOTE = 1024  # validated by the API server
_HASH_LENGTH = 16
# A name has at most 253 characters (RFC 1123 subdomains); that of a resource may have them all.
_PREFIX_LENGTH = 253 - 1 - _HASH_LENGTH
# Cached events before the first search for old ones.
_FEW = 1024


@dataclass(slots=True)
class _Posted:
    """The known state of an event on the server."""

    at_seconds: float
    count: int
    message: str


class KubernetesEvents:
    """Posts events: one object for each key and message, with a series of its repetitions."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._posted: dict[tuple[str, str], _Posted] = {}
        self._looked_through_at = _FEW

    async def post(self, ref: ResourceRef, event: Event, now_seconds: float) -> None:
        """Write the event, or increase its count, or do nothing if it was written a moment ago.

        Raises: ClusterError if the API server refuses.
        """
        prefix = ref.name[:_PREFIX_LENGTH].rstrip(".-")
        name = f"{prefix}.{_digest(ref.uid, event.key, event.message)}"
        known = self._posted.get((ref.uid, event.key))
        if known is not None and abs(now_seconds - known.at_seconds) > _KEPT_SECONDS:
            known = None
        rested = known is None or abs(now_seconds - known.at_seconds) >= SUPPRESSED_SECONDS
        if not (rested or event.every_time):
            return
        posted = _Posted(
            at_seconds=now_seconds,
            count=known.count + 1 if known is not None and known.message == event.message else 1,
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
        path = api_path(EVENTS_VERSION, "events", namespace=ref.namespace, name=name)
        if posted.count > 1:
            try:
                await self._client.patch(path, _again(posted), Patch.MERGE)
            except NotFoundError:
                pass
            else:
                return
        body = event_body(
            {"name": name, "namespace": ref.namespace},
            object_reference(ref),
            type_=event.type.value,
            reason=event.reason,
            note=event.message,
            now_seconds=posted.at_seconds,
        )
        try:
            await self._client.create(
                api_path(EVENTS_VERSION, "events", namespace=ref.namespace), body
            )
        except WriteConflictError:
            # Written before a restart of the operator, or before another message. An empty patch
            # reads it: the operator may not get events.
            kept = await self._client.patch(path, {}, Patch.MERGE)
            posted.count = (kept.get("series") or {}).get("count", 1) + 1
            await self._client.patch(path, _again(posted), Patch.MERGE)


def event_body(
    metadata: KubeObject,
    regarding: KubeObject,
    *,
    type_: str,
    reason: Reason,
    note: str,
    now_seconds: float,
) -> KubeObject:
    """A first event, in the form of events.k8s.io/v1, which lets nothing but its series change."""
    return {
        "metadata": metadata,
        "regarding": regarding,
        "type": type_,
        "reason": reason.value,
        "action": _ACTION,
        "note": note.encode()[:_LONGEST_NOTE].decode(errors="ignore"),
        "eventTime": micro_time(now_seconds),
        "reportingController": CONTROLLER,
        "reportingInstance": CONTROLLER,
    }


def micro_time(now_seconds: float) -> str:
    """A time as metav1.MicroTime; the API server accepts only six decimal digits."""
    return datetime.fromtimestamp(now_seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _again(posted: _Posted) -> KubeObject:
    """What a repetition changes. A series has two events or more."""
    seen = {"count": posted.count, "lastObservedTime": micro_time(posted.at_seconds)}
    return {"series": seen}


def _digest(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:_HASH_LENGTH]
