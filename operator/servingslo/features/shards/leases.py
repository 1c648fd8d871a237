"""The Leases of a release's shards: this process competes for them, and gives one back if asked.

Shard 0 has the Lease of a release without shards. So a release can change from one shard to several
and back, and the pods before and after compete for the same Leases.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from servingslo.adapters.kubernetes.leases import LeaseRecord
from servingslo.controller.lease.election import Election
from servingslo.errors import NotLeaderError
from servingslo.features.shards.holding import Holding, Leases

# How many shards a Lease's holder knows of; absent for one.
ANNOTATION = "servingslo.dev/shards"
_LONGEST_NUMBER = 5
# A write ends within its timeout of some seconds; this often it is asked whether it did.
_BUSY_POLL_SECONDS = 0.05
# A process with fewer shards comes first for so many attempts.
_PRECEDENCE = 2.0


@dataclass(slots=True)
class ShardLeases:
    """One process and the Leases of all shards.

    count: shards, as this process was started. election_of: makes the candidate for the Lease of a
    shard. line: for the Lease of the next in line. busy: whether a write of a shard is under way.
    """

    count: int
    election_of: Callable[[int], Election]
    line: Election
    busy: Callable[[int], bool] = lambda _shard: False
    _elections: dict[int, Election] = field(default_factory=dict)
    _closing: int | None = None
    _free_since: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.compete(())

    @property
    def identity(self) -> str:
        """Of this process in the Leases."""
        return self.line.identity

    @property
    def elections(self) -> Mapping[int, Election]:
        """Of each shard, by number."""
        return dict(sorted(self._elections.items()))

    def compete(self, used: Collection[int]) -> list[int]:
        """Compete for all shards that exist or still have resources; return those left.

        used: shards of resources, also of those that were more than today.
        """
        wanted = {*range(self.count), *used}
        for shard in sorted(wanted - self._elections.keys()):
            election = self.election_of(shard)
            election.may_take = partial(self._may_take, shard)
            self._elections[shard] = election
        return sorted(self._elections.keys() - wanted)

    def terms(self) -> dict[int, str]:
        """The term of each shard that this process holds now."""
        terms = {shard: one.term for shard, one in self.elections.items() if shard != self._closing}
        return {shard: term for shard, term in terms.items() if term is not None}

    def write_seconds(self, shard: int | None) -> float:
        """How long a write of a shard may take; None: of any held one. Raises: NotLeaderError."""
        if shard is None:
            held = [self._elections[one] for one in self.terms()] or [self._elections[0]]
            return max(one.write_seconds() for one in held)
        election = self._elections.get(shard)
        if election is None or shard == self._closing:
            raise NotLeaderError(f"no valid lease: shard {shard} is given back")
        return election.write_seconds()

    def leases(self) -> Leases:
        """What is known of all Leases."""
        return Leases(
            me=self.identity,
            held={
                shard: Holding(holder=one.valid_holder, shards=_stated(one.known))
                for shard, one in self.elections.items()
            },
            in_line=self.line.valid_holder,
        )

    def several(self) -> bool:
        """Whether there is more than one shard, or was and resources are still there."""
        return len(self._elections) > 1

    async def attempt(self, shard: int) -> None:
        """Take or renew a shard's Lease if that is allowed. Raises: ClusterError."""
        election = self._elections[shard]
        await election.attempt()
        if election.valid_holder:
            self._free_since.pop(shard, None)

    async def stand_in_line(self) -> None:
        """Ask for a shard of another process, if this one has too few. Raises: ClusterError."""
        if self.several() and self.leases().wants_more():
            await self.line.attempt()
        elif self.line.leads:
            await self.line.release()
        elif self.several():
            await self.line.look()

    async def release(self, shard: int) -> None:
        """Give a shard back when its last write has ended. Raises: ClusterError."""
        self._closing = shard
        try:
            while self.busy(shard):  # noqa: ASYNC110  it lasts milliseconds, and seconds at most
                await asyncio.sleep(_BUSY_POLL_SECONDS)
            await self._elections[shard].release()
            # The process in line comes first.
            self._free_since[shard] = self.line.clock()
        finally:
            self._closing = None

    def drop(self, shard: int) -> None:
        """Compete no longer for a shard without resources that does not exist any more."""
        self._elections.pop(shard, None)
        self._free_since.pop(shard, None)

    def _may_take(self, shard: int) -> bool:
        """Whether a Lease that is free is this process's to take; others may have fewer shards."""
        if shard == self._closing:
            return False
        now = self.line.clock()
        since = self._free_since.setdefault(shard, now)
        return self.leases().is_next() or now - since >= _PRECEDENCE * self.line.terms.retry_seconds


def _stated(lease: LeaseRecord | None) -> int:
    """The number in the annotation; 1 without one, 0 if it is no number."""
    text = "1" if lease is None else lease.annotations.get(ANNOTATION, "1")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _LONGEST_NUMBER else 0
