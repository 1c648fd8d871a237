"""The elections of a process that holds some of its release's shards, each with a Lease."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from prometheus_client import Gauge

from servingslo.adapters.kubernetes.api.fence import lease_of_context
from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.controller.lease.election import Election
from servingslo.controller.lease.lead import Holdings
from servingslo.controller.lease.leadership import Leadership, Stand
from servingslo.controller.registry import Resource
from servingslo.errors import ClusterError
from servingslo.features.shards.leases import ShardLeases
from servingslo.features.shards.moving import Moving

_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ShardLeadership(Leadership):
    """One process, and those with which it shares the resources."""

    leases: ShardLeases
    moving: Moving = field(default_factory=Moving)
    _pending: tuple[int | None, int | None] = (None, None)

    async def start(self) -> None:
        """Ask once, then repeatedly in the background."""
        await Leadership.start(self)
        self._tasks["line"] = asyncio.create_task(self._follow_line())

    async def stop(self) -> None:
        """Stop leading, and leave the line."""
        await Leadership.stop(self)
        with suppress(ClusterError):
            await self.leases.line.release()

    def export(self, metrics: OperatorMetrics) -> None:
        """Also of each shard whether this process holds it, if there are several."""
        Leadership.export(self, metrics)
        if self.leases.count > 1:
            gauge = Gauge(
                "servingslo_shard_held",
                "1 on the process that decides the ServingSLOs of a shard, 0 on the others.",
                ("shard",),
                registry=metrics.registry,
            )
            for shard in range(self.leases.count):
                gauge.labels(str(shard)).set_function(partial(self._holds, shard))

    def elections(self) -> Mapping[int, Election]:
        """Those for the shards."""
        return self.leases.elections

    def terms(self) -> Mapping[int, str]:
        """The term of each shard that this process holds now."""
        return self.leases.terms()

    def process_term(self) -> str | None:
        """Of all shards that it holds; None while it holds none."""
        terms = self.terms()
        if not self.leases.several():
            return terms.get(0)
        return " ".join(f"{shard}:{term}" for shard, term in terms.items()) or None

    def holds_all(self) -> bool:
        """Whether it holds all shards, or it is not known how many there are."""
        shards = self.shards()
        return shards is None or len(self.held()) == shards

    def write_seconds(self, lease: int | None) -> float:
        """How long a write of a shard may take; None: of any held one. Raises: NotLeaderError."""
        return self.leases.write_seconds(lease)

    async def claim(self, namespaces: Iterable[str], leases: Iterable[int] = (0,)) -> None:
        """Compete for the shards that exist, leave those that are gone and empty; then claim."""
        used = frozenset({0, *leases})
        for shard in self.leases.compete(used):
            await self.give_back(shard)
            task = self._tasks.pop(shard, None)
            if task is not None:
                task.cancel()
            self.leases.drop(shard)
            self._stands.pop(shard, None)
        self.follow()
        await Leadership.claim(self, namespaces, used)

    def is_placed(self, resource: Resource) -> bool:
        """Whether it is known which shard a resource is on."""
        return not self.moving.is_unknown(resource)

    async def arrange(
        self, holdings: Holdings, acts: Callable[[Resource], bool], *, listed: bool
    ) -> Collection[Resource]:
        """Give back a shard that is too many, and hand over what is of another one."""
        return await self.moving.arrange(self, holdings, acts, listed=listed)

    def shards(self) -> int | None:
        """How many shards share the resources; None while each has to stay where it is."""
        count = self.leases.count
        return count if self.leases.several() and self.leases.leases().agreed(count) else None

    def surplus(self) -> int | None:
        """The shard to give back to the process in line, if any."""
        return self.leases.leases().surplus()

    async def give_back(self, shard: int) -> None:
        """Give a shard back; nothing more is decided for its resources."""
        with suppress(ClusterError):
            await self.leases.release(shard)
        self._stands[shard] = Stand()
        _LOG.info("lease given back %s", self.where(self.elections()[shard], shard))
        self.on_turn()

    def in_words(self) -> str:
        """Which shards it holds, and who holds the others."""
        if not self.leases.several():
            return Leadership.in_words(self)
        seen = self.leases.leases().held
        held = {shard: one.holder or "nobody" for shard, one in seen.items()}
        me = self.leases.identity
        mine = [str(shard) for shard, holder in held.items() if holder == me]
        others = [f"{shard} of {who}" for shard, who in held.items() if who != me]
        words = f"holds shards {', '.join(mine)} of {self.leases.count}" if mine else "standby"
        words = f"{words} as {me}"
        return f"{words}; others: {', '.join(others)}" if others else words

    def where(self, election: Election, key: str | int) -> str:
        """What a Lease is of, as pairs of a line of the log."""
        of_shard = f" shard={key}" if isinstance(key, int) and self.leases.several() else ""
        return f"{Leadership.where(self, election, key)}{of_shard}"

    async def attempt(self, number: int) -> None:
        """Take or renew a shard's Lease, if that is allowed."""
        election = self.elections().get(number)
        if election is None:
            return
        await self.settle(self.leases.attempt(number), election, number)
        # The loop gives shards back, and moves resources once all agree on the shards.
        pending = self.surplus(), self.shards()
        if pending != self._pending:
            self._pending = pending
            self.on_turn()

    def _holds(self, shard: int) -> float:
        return float(shard in self.held())

    async def _follow_line(self) -> None:
        while True:
            try:
                await self.leases.stand_in_line()
            except ClusterError as error:
                _LOG.debug("no answer about the process in line detail=%r", str(error))
            await asyncio.sleep(self.leases.line.terms.retry_seconds)


def name_shard(record: logging.LogRecord) -> bool:
    """Add to a line the shard whose Lease guards the writes meanwhile; outside of any it stays."""
    shard = lease_of_context()
    if shard is not None:
        record.msg, record.args = f"{record.getMessage()} shard={shard}", None
    return True
