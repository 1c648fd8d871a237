"""Moves resources from one shard to another, with what was learnt.

The shard of a resource is in its status. Only the holder of that shard changes it, in one write
with the learnt state; from then on the other shard's holder decides.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from servingslo.adapters.kubernetes.api.fence import in_shard
from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.controller.adapters import Adapters
from servingslo.controller.reconciler import Reconciler
from servingslo.controller.registry import Registry, Resource
from servingslo.controller.shards.placement import place_of, placement
from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    NotFoundError,
    WriteConflictError,
)

_LOG = logging.getLogger(__name__)
# A status that was under way, or a user's edit, may come between; then with the next tick.
_ATTEMPTS = 3


@dataclass(slots=True)
class Moving:
    """Hands resources over. It reports once that one could not be handed over.

    After an answer that is missing nothing is decided until the resource is read again.
    """

    adapters: Adapters
    registry: Registry
    reconciler: Reconciler
    _failed: set[str] = field(default_factory=set)
    _unknown: set[str] = field(default_factory=set)

    def due(self, resources: Iterable[Resource], shards: int) -> Iterator[tuple[Resource, int]]:
        """The resources that are not on the shard where they should be, and that shard.

        Nothing while it is not known what joins them, because those stay together.
        """
        every = tuple(resources)
        joined = self.reconciler.grants.joined(every)
        if joined is None:
            return
        wanted = placement(joined, shards)
        for entry in every:
            shard = wanted[entry.record.ref.uid]
            if shard != entry.place.shard:
                yield entry, shard

    async def move(self, resource: Resource, shard: int) -> bool:
        """Hand a resource over to another shard; return whether it was, or may have been."""
        place = resource.place.moved(shard)
        ref = resource.record.ref
        moved = await self._write(resource, {"shard": place.as_field()})
        if moved is None:
            return self.is_unknown(resource)
        _LOG.info(
            "moved namespace=%s name=%s from_shard=%d to_shard=%d",
            ref.namespace,
            ref.name,
            resource.place.shard,
            shard,
        )
        self.registry.upsert(moved)
        return True

    def is_unknown(self, resource: Resource) -> bool:
        """Whether it is not known which shard a resource is on."""
        return resource.record.ref.uid in self._unknown

    async def look_again(self, resources: Iterable[Resource]) -> None:
        """Read the resources of which that is not known."""
        unknown = [entry.record.ref for entry in resources if self.is_unknown(entry)]
        self._unknown = {ref.uid for ref in unknown}
        for ref in unknown:
            try:
                self.registry.upsert(await self.adapters.resources.read(ref))
            except NotFoundError:
                pass  # the watch reports it
            except ClusterError:
                continue
            self._unknown.discard(ref.uid)

    async def save(self, resource: Resource, _shard: int) -> bool:
        """Write what a resource has learnt, for another process that will hold its shard."""
        return await self._write(resource, {}) is not None

    async def _write(self, resource: Resource, fields: Mapping[str, Any]) -> ResourceRecord | None:
        """Write the fields and the learnt state, if the resource is still on its shard."""
        ref = resource.record.ref
        learned = self.reconciler.learned(ref.uid)
        if not fields and not learned:
            return None
        try:
            record = await self._try(resource, {**fields, **learned})
        except NotFoundError:
            return None
        except ClusterError as error:
            if ref.uid not in self._failed:
                _LOG.warning(
                    "not moved namespace=%s name=%s detail=%r", ref.namespace, ref.name, str(error)
                )
            self._failed.add(ref.uid)
            if isinstance(error, ClusterUnavailableError):
                self._unknown.add(ref.uid)
            self.adapters.exporter.count_failure("status")
            return None
        self._failed.discard(ref.uid)
        return record

    async def _try(self, resource: Resource, fields: Mapping[str, Any]) -> ResourceRecord | None:
        """Write the fields; read again if the resource changed meanwhile. Raises: ClusterError."""
        ref = resource.record.ref
        for attempt in range(_ATTEMPTS):
            known = await self.adapters.resources.read(ref)
            if known.ref.uid != ref.uid or place_of(known.status) != resource.place:
                self.registry.upsert(known)
                return None
            try:
                with in_shard(resource.place.shard):
                    return await self.reconciler.reporter.hand_over(known, fields)
            except WriteConflictError:
                if attempt + 1 == _ATTEMPTS:
                    raise
        return None
