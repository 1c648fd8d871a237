"""Moves resources from one shard to another, with what was learnt.

The shard of a resource is in its status. Only the holder of that shard changes it, in one write
with the learnt state; from then on the other shard's holder decides.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from servingslo.adapters.kubernetes.api.fence import under_lease
from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.controller.lease.lead import Holdings
from servingslo.controller.registry import Resource
from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    NotFoundError,
    WriteConflictError,
)
from servingslo.features.shards.place import moved, place_of
from servingslo.features.shards.placement import placement

_LOG = logging.getLogger(__name__)
# A status that was under way, or a user's edit, may come between; then with the next tick.
_ATTEMPTS = 3
# Requests under way at once; the API server's fairness limits more anyway.
_CONCURRENCY = 16


class Shards(Protocol):
    """What is asked of the Leases of the shards."""

    def shards(self) -> int | None:
        """How many shards share the resources; None while each has to stay where it is."""
        ...

    def surplus(self) -> int | None:
        """The shard to give back to another process, if any."""
        ...

    async def give_back(self, shard: int) -> None:
        """Give a shard back; nothing more is decided for its resources."""
        ...


@dataclass(slots=True)
class Moving:
    """Hands resources over. It reports once that one could not be handed over.

    After an answer that is missing nothing is decided until the resource is read again.
    """

    _failed: set[str] = field(default_factory=set)
    _unknown: set[str] = field(default_factory=set)

    async def arrange(
        self, shards: Shards, holdings: Holdings, acts: Callable[[Resource], bool], *, listed: bool
    ) -> Collection[Resource]:
        """Give back a shard that is too many; then hand over what is of another shard.

        Of a shard that is given back what was learnt is written first.
        """
        resources, left = holdings.registry.resources, []
        surplus = shards.surplus()
        if surplus is not None:
            left = [one for one in resources.values() if one.place.lease == surplus and acts(one)]
            await _each(left, partial(self._write, holdings, fields={}))
            await shards.give_back(surplus)
        await self._look_again(holdings)
        count = shards.shards()
        if count is None or not listed:
            return left
        due = {
            entry.record.ref.uid: (entry, to) for entry, to in _due(holdings, count) if acts(entry)
        }

        async def move(entry: Resource) -> bool:
            return await self._move(holdings, entry, due[entry.record.ref.uid][1])

        return [*left, *await _each([entry for entry, _ in due.values()], move)]

    async def _move(self, holdings: Holdings, resource: Resource, shard: int) -> bool:
        """Hand a resource over to another shard; return whether it was, or may have been."""
        ref, place = resource.record.ref, resource.place
        record = await self._write(holdings, resource, moved(place, shard))
        if record is None:
            return self.is_unknown(resource)
        _LOG.info(
            "moved namespace=%s name=%s from_shard=%d to_shard=%d",
            ref.namespace,
            ref.name,
            place.lease,
            shard,
        )
        holdings.registry.upsert(record)
        return True

    def is_unknown(self, resource: Resource) -> bool:
        """Whether it is not known which shard a resource is on."""
        return resource.record.ref.uid in self._unknown

    async def _look_again(self, holdings: Holdings) -> None:
        """Read the resources of which that is not known."""
        every = holdings.registry.resources.values()
        unknown = [entry.record.ref for entry in every if self.is_unknown(entry)]
        self._unknown = {ref.uid for ref in unknown}
        for ref in unknown:
            try:
                holdings.registry.upsert(await holdings.adapters.resources.read(ref))
            except NotFoundError:
                pass  # the watch reports it
            except ClusterError:
                continue
            self._unknown.discard(ref.uid)

    async def _write(
        self, holdings: Holdings, resource: Resource, fields: Mapping[str, Any]
    ) -> ResourceRecord | None:
        """Write the fields and the learnt state, if the resource is still on its shard."""
        ref = resource.record.ref
        learned = holdings.learned(ref.uid)
        if not fields and not learned:
            return None
        try:
            record = await _try(holdings, resource, {**fields, **learned})
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
            holdings.adapters.exporter.count_failure("status")
            return None
        self._failed.discard(ref.uid)
        return record


def _due(holdings: Holdings, shards: int) -> Iterator[tuple[Resource, int]]:
    """The resources that are not on the shard where they should be, and that shard.

    Nothing while it is not known what joins them, because those stay together.
    """
    every = tuple(holdings.registry.resources.values())
    joined = holdings.joined(every)
    if joined is None:
        return
    wanted = placement(joined, shards)
    for entry in every:
        shard = wanted[entry.record.ref.uid]
        if shard != entry.place.lease:
            yield entry, shard


async def _each(
    resources: Sequence[Resource], work: Callable[[Resource], Awaitable[object]]
) -> list[Resource]:
    """Do this for each resource, some at once; return those for which it was done."""
    limit = asyncio.Semaphore(_CONCURRENCY)

    async def limited(entry: Resource) -> object:
        async with limit:
            return await work(entry)

    done = await asyncio.gather(*map(limited, resources))
    return [entry for entry, was_done in zip(resources, done, strict=True) if was_done]


async def _try(
    holdings: Holdings, resource: Resource, fields: Mapping[str, Any]
) -> ResourceRecord | None:
    """Write the fields; read again if the resource changed meanwhile. Raises: ClusterError."""
    ref = resource.record.ref
    for attempt in range(_ATTEMPTS):
        known = await holdings.adapters.resources.read(ref)
        if known.ref.uid != ref.uid or place_of(known.status) != resource.place:
            holdings.registry.upsert(known)
            return None
        try:
            with under_lease(resource.place.lease):
                return await holdings.hand_over(known, fields)
        except WriteConflictError:
            if attempt + 1 == _ATTEMPTS:
                raise
    return None
