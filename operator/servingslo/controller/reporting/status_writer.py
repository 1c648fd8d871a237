"""Writes statuses: each one only if it is worth it, and not all of them at once.

While `run` goes on, no caller waits for a write. Statuses that a person may wait for go first;
those that only drifted are spread over a tick. Without `run`, each is written when requested.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from servingslo.adapters.kubernetes.api.fence import under_lease
from servingslo.adapters.kubernetes.resources import ResourceRecord, ResourceRef
from servingslo.controller.adapters import Adapters
from servingslo.controller.place import place_of
from servingslo.controller.reporting import status as status_of
from servingslo.controller.reporting.outage import Outages, Part
from servingslo.controller.reporting.pacing import PacedQueue
from servingslo.controller.reporting.stored_state import is_pruned
from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    NotFoundError,
    NotLeaderError,
    WriteConflictError,
)

_LOG = logging.getLogger(__name__)
# Set once, with one decision: they stay wanted until they are written.
_LASTING = ("lastDecision", "decisions", "learned")
# An operator that ends writes urgent statuses first, but only for this long.
_LAST_WRITES_SECONDS = 1.0


@dataclass(slots=True)
class _Standing:
    """One resource's status as last known on the server, and as it should be.

    unanswered: fields of writes without an answer, which may have been taken or not.
    """

    ref: ResourceRef
    status: dict[str, Any]
    wanted: dict[str, Any] = field(default_factory=dict)
    unanswered: dict[str, Any] = field(default_factory=dict)
    written_seconds: float | None = None
    learned_seconds: float | None = None
    # Held during a write, so that none is under way after the resource was handed over.
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def says(self, name: str) -> Any:
        """A field as it will be once everything is written; None if it is absent."""
        return self.wanted.get(name, self.status.get(name))


@dataclass(slots=True)
class StatusWriter:
    """Knows every status, and writes each as it should be."""

    adapters: Adapters
    outages: Outages
    _standing: dict[str, _Standing] = field(default_factory=dict)
    _queue: PacedQueue | None = None

    async def run(self, tick_seconds: float) -> None:
        """Write in the background until cancelled; then write urgent statuses, if time allows."""
        self._queue = queue = PacedQueue(tick_seconds)
        try:
            while True:
                await self._write_safely(await queue.take())
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WRITES_SECONDS):
                    while (uid := queue.take_urgent()) is not None:
                        await self._write_safely(uid)
            self._queue = None

    def begin(self, ref: ResourceRef, status: Mapping[str, Any], now_seconds: float) -> None:
        """Take over a status when its resource is first reconciled."""
        # State learnt before a restart is not written again at once.
        known = status.get("learned") and not is_pruned(status)
        standing = _Standing(ref, dict(status), learned_seconds=now_seconds if known else None)
        self._standing[ref.uid] = standing

    def forget(self, uid: str) -> None:
        """Drop what is known of a resource."""
        self._standing.pop(uid, None)

    async def hand_over(self, known: ResourceRecord, fields: Mapping[str, Any]) -> ResourceRecord:
        """Write all that is wanted of a status with these fields, if the resource is as known.

        Raises: WriteConflictError if it is not; ClusterError otherwise.
        """
        standing = self._standing.get(known.ref.uid)
        if standing is None:
            return await self.adapters.resources.hand_over(known, fields)
        async with standing.writing:
            changed = {**self._changed(standing), **fields}
            merged = merge_patch(known.status, changed)
            record = await self.adapters.resources.hand_over(known, merged)
            standing.status, standing.wanted, standing.unanswered = dict(record.status), {}, {}
            return record

    def says(self, uid: str, name: str) -> Any:
        """A field as it will be once everything is written; None if it is absent."""
        return self._standing[uid].says(name)

    def learned_seconds(self, uid: str) -> float | None:
        """When learnt state was written last; None if it never was."""
        return self._standing[uid].learned_seconds

    def is_dropped(self, uid: str, status: Mapping[str, Any]) -> bool:
        """Whether this status has lost what was written last: the installed CRD drops it."""
        standing = self._standing.get(uid)
        wrote = {} if standing is None else standing.status.get("learned") or {}
        return (
            is_pruned(status)
            and bool(wrote.get("data"))
            and wrote["savedAt"] == status["learned"]["savedAt"]
        )

    async def want(self, uid: str, fields: Mapping[str, Any]) -> None:
        """Set the wanted fields of a status."""
        standing = self._standing[uid]
        lasting = {name: standing.wanted[name] for name in _LASTING if name in standing.wanted}
        standing.wanted = {**lasting, **fields}
        changed = self._changed(standing)
        if not changed:
            return
        if self._queue is None:
            await self._write(uid)
        else:
            self._queue.put(uid, urgent=status_of.is_material(standing.status, changed))

    def _changed(self, standing: _Standing) -> dict[str, Any]:
        since = None
        if standing.written_seconds is not None:
            waited = abs(self._now_seconds() - standing.written_seconds)
            since = waited / _pause_ratio(standing.ref.uid)
        again = {name: standing.says(name) for name in standing.unanswered}
        before, wanted = standing.status, standing.wanted
        return again | status_of.changed_fields(before, wanted, seconds_since_write=since)

    async def _write_safely(self, uid: str) -> None:
        try:
            await self._write(uid)
        except Exception:  # noqa: BLE001  a fault in one status must not end the writing of all
            _LOG.exception("failed to write a status uid=%s", uid)
            self.adapters.exporter.count_failure("controller")

    async def _write(self, uid: str) -> None:
        standing = self._standing.get(uid)
        if standing is None:
            return  # deleted meanwhile
        changed, now_seconds = self._changed(standing), self._now_seconds()
        if not changed:
            return
        part, lease = _part(standing.ref), place_of(standing.status).lease
        try:
            async with standing.writing:
                if place_of(standing.status).lease != lease:
                    return  # handed over meanwhile
                before = either(standing.status, standing.unanswered)
                patch = merge_patch(before, changed)
                with under_lease(lease):
                    await self.adapters.resources.patch_status(standing.ref, patch)
        except (NotFoundError, WriteConflictError, NotLeaderError):
            return  # deleted meanwhile, as the registry will report; or another leader reports it
        except ClusterError as error:
            if isinstance(error, ClusterUnavailableError):
                standing.unanswered = either(standing.unanswered, changed)
            self.adapters.exporter.count_failure("status")
            self.outages.met(part, error, now_seconds)
            return
        self.outages.passed(part, now_seconds)
        standing.status.update(changed)
        standing.unanswered = {}
        standing.written_seconds = now_seconds
        if "learned" in changed:
            standing.learned_seconds = now_seconds
        for name in _LASTING:
            if name in changed and standing.wanted.get(name) is changed[name]:
                del standing.wanted[name]

    def _now_seconds(self) -> float:
        return self.adapters.clock.now_seconds()


def _part(ref: ResourceRef) -> Part:
    return "status", f"{ref.namespace}/{ref.name}"


def _pause_ratio(uid: str) -> float:
    """1 to 1.5 by resource, so that drifted values are not due in one tick for all of them."""
    return 1.0 + 0.5 * (crc32(uid.encode()) % 1000) / 1000.0


Json = Mapping[str, Any]


def merge_patch(before: Json, changed: Json) -> dict[str, Any]:
    """A JSON Merge Patch that sets the changed fields exactly, without leftovers."""
    patch: dict[str, Any] = {}
    for key, value in changed.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            gone = dict.fromkeys(name for name in old if name not in value)
            patch[key] = {**gone, **merge_patch(old, value)}
        else:
            patch[key] = value
    return patch


def either(one: Json, another: Json) -> dict[str, Any]:
    """A status with the fields of both, where it is not known which of the two is in force."""
    found = {**one, **another}
    for name in one.keys() & another.keys():
        before, after = one[name], another[name]
        if isinstance(before, Mapping):
            found[name] = either(before, after) if isinstance(after, Mapping) else before
    return found
