"""Decide whether this process may act: a Lease for each shard of a release, and each namespace.

One pod of the release holds a shard's Lease; by default there is one shard. In each namespace with
ServingSLOs, one release of the cluster holds a Lease, in the name of all its pods. A second
operator that watches the same namespace finds it held and stands aside there. It takes over when
the Lease is no longer renewed. Both are elections: the first decides who is leader, the second
where its decisions count.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from servingslo.adapters.kubernetes.api.fence import shard_of_context
from servingslo.controller.lease.election import Election, Terms
from servingslo.controller.lease.lead import ALONE_TERM
from servingslo.controller.lease.shard_leases import ShardLeases
from servingslo.errors import ClusterError, NotLeaderError
from servingslo.reasons import Reason

_LOG = logging.getLogger(__name__)
# A namespace changes its release once in an installation's life. So its Lease may last as long as a
# node's lease (40 s, kubelet --node-lease-duration-seconds). It costs a tenth of a request a
# second.
NAMESPACE_TERMS = Terms(lease_seconds=40, renew_seconds=30.0, retry_seconds=10.0)
_MOST_AT_ONCE = 16


# Reports once that a release stands aside in a namespace: (election there, namespace).
Report = Callable[[Election, str], Awaitable[None]]


@dataclass(slots=True)
class Leadership:
    """The elections of one process.

    release: for the Leases of the release; None if the process is known to be the only one.
    identity: of the release in the cluster. election_in: makes a candidate for a namespace's Lease.
    on_turn: called when the process starts or stops leading, or a namespace is gained or lost.
    """

    release: ShardLeases | None
    identity: str
    election_in: Callable[[str], Election]
    on_turn: Callable[[], None]
    report: Report
    _namespaces: dict[str, Election] = field(default_factory=dict)
    _stands: dict[str | int, "_Stand"] = field(default_factory=dict)
    _tasks: dict[str | int, asyncio.Task[None]] = field(default_factory=dict)
    _used: frozenset[int] = frozenset({0})
    _pending: tuple[int | None, int | None] = (None, None)

    async def start(self) -> None:
        """Ask once, then repeatedly in the background."""
        if self.release is not None:
            await asyncio.gather(*(self._attempt_shard(shard) for shard, _ in self.release))
            self._follow_shards(self.release)
            self._tasks["line"] = asyncio.create_task(self._follow_line(self.release))
        self._tasks["namespaces"] = asyncio.create_task(self._follow_namespaces())

    async def stop(self) -> None:
        """Stop leading. The namespaces stay with the release, for the pod that follows."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self.release is None:
            return
        every = (self.release.line, *(election for _, election in self.release))
        for election in every:
            with suppress(ClusterError):
                await election.release()

    def process_term(self) -> str | None:
        """The term of this process as leader of its release; None while it is not the leader."""
        if self.release is None:
            return ALONE_TERM
        terms = self.release.terms()
        if not self.release.several():
            return terms.get(0)
        return " ".join(f"{shard}:{term}" for shard, term in terms.items()) or None

    def held(self) -> Collection[int]:
        """The shards that this process holds now."""
        return self._used if self.release is None else self.release.terms().keys()

    def term(self, namespace: str, shard: int = 0) -> str | None:
        """The term in which this process acts on a shard in a namespace; None while it does not."""
        of_shard = ALONE_TERM if self.release is None else self.release.terms().get(shard)
        election = self._namespaces.get(namespace)
        of_namespace = election.term if election is not None else None
        if of_shard is None or of_namespace is None:
            return None
        return f"{of_shard} {of_namespace}"

    def leads(self) -> bool:
        """Whether this process is its release's leader now, of some shard."""
        return self.process_term() is not None

    def aside(self) -> dict[str, str]:
        """The namespaces in which another operator acts, and which operator."""
        return {
            name: it.other
            for name, it in self._stands.items()
            if isinstance(name, str) and it.other
        }

    async def claim(self, namespaces: Iterable[str], shards: Iterable[int] = (0,)) -> None:
        """Claim namespaces that are not held, and release those without any ServingSLO.

        A process of several leaves that to the Lease's end: the others may see a ServingSLO there.
        """
        self._used = frozenset({0, *shards})
        await self._compete()
        wanted = set(namespaces)
        for name in sorted(wanted - self._namespaces.keys()):
            self._namespaces[name] = self.election_in(name)
        for name in sorted(self._namespaces.keys() - wanted):
            election = self._namespaces.pop(name)
            self._stands.pop(name, None)
            if self.release is not None and self.release.several():
                continue
            with suppress(ClusterError):
                await election.release()
        aside = self.aside()
        await self._attempt_all(
            name for name, it in self._namespaces.items() if not it.leads and name not in aside
        )

    def shards(self) -> int | None:
        """How many shards share the resources; None while each has to stay where it is."""
        if self.release is None or not self.release.several():
            return None
        count = self.release.count
        return count if self.release.leases().agreed(count) else None

    def surplus(self) -> int | None:
        """The shard to give back to the process in line, if any."""
        return None if self.release is None else self.release.leases().surplus()

    async def give_back(self, shard: int) -> None:
        """Give a shard back; nothing more is decided for its resources."""
        if self.release is None:
            return
        with suppress(ClusterError):
            await self.release.release(shard)
        election = self.release.election(shard)
        if election is not None:
            self._stands[shard] = _stand(election, "")
            _LOG.info("lease given back %s", self._where(election, shard))
            self.on_turn()

    def detail(self) -> str:
        """A sentence for people: who leads, and where another operator acts."""
        if self.release is None:
            words = "the only process of its release"
        elif self.release.several():
            words = _shards_in_words(self.release)
        elif self.leads():
            words = f"leader {self.release.identity}"
        else:
            first = self.release.election(0)
            words = f"standby of {'' if first is None else first.holder or 'nobody'}"
        aside = [f"{name} ({holder})" for name, holder in sorted(self.aside().items())]
        return f"{words}; stands aside in {', '.join(aside)}" if aside else words

    async def _compete(self) -> None:
        """Compete for the shards that exist, and leave those that are gone and empty."""
        if self.release is None:
            return
        for shard in self.release.compete(self._used):
            await self.give_back(shard)
            task = self._tasks.pop(shard, None)
            if task is not None:
                task.cancel()
            self.release.drop(shard)
            self._stands.pop(shard, None)
        self._follow_shards(self.release)

    def _follow_shards(self, release: ShardLeases) -> None:
        """Follow each shard's Lease in the background, once `start` was called."""
        for shard, election in release:
            if shard not in self._tasks:
                self._tasks[shard] = asyncio.create_task(self._follow_shard(shard, election))

    async def _follow_shard(self, shard: int, election: Election) -> None:
        while True:
            await asyncio.sleep(election.seconds_to_next())
            await self._attempt_shard(shard)
            # The loop gives shards back, and moves resources once all agree on the shards.
            pending = self.surplus(), self.shards()
            if pending != self._pending:
                self._pending = pending
                self.on_turn()

    async def _follow_line(self, release: ShardLeases) -> None:
        while True:
            try:
                await release.stand_in_line()
            except ClusterError as error:
                _LOG.debug("no answer about the process in line detail=%r", str(error))
            await asyncio.sleep(release.line.terms.retry_seconds)

    async def _attempt_shard(self, shard: int) -> None:
        release = self.release
        election = None if release is None else release.election(shard)
        if release is not None and election is not None:
            await self._settle(release.attempt(shard), election, shard)

    async def _follow_namespaces(self) -> None:
        while True:
            await asyncio.sleep(NAMESPACE_TERMS.retry_seconds)
            await self._attempt_all(list(self._namespaces))

    async def _attempt_all(self, names: Iterable[str]) -> None:
        limit = asyncio.Semaphore(_MOST_AT_ONCE)

        async def attempt(name: str) -> None:
            async with limit:
                election = self._namespaces.get(name)
                if election is not None:
                    await self._attempt(election, name)

        if self.leads():
            await asyncio.gather(*(attempt(name) for name in list(names)))

    async def _attempt(self, election: Election, namespace: str) -> None:
        await self._settle(election.attempt(), election, namespace)

    async def _settle(self, attempt: Awaitable[None], election: Election, key: str | int) -> None:
        """Make an attempt, and report what changed. key: the namespace, or the shard's number."""
        trouble = ""
        try:
            await attempt
        except NotLeaderError:
            pass  # the release's own election reports it
        except ClusterError as error:
            trouble = str(error)
        except Exception as error:  # noqa: BLE001  the election goes on
            _LOG.exception("election failed of=%s", key)
            trouble = str(error)
        await self._note(election, key, trouble)

    async def _note(self, election: Election, key: str | int, trouble: str) -> None:
        """Report a change, once."""
        stand = _stand(election, trouble)
        before = self._stands.get(key)
        if stand == before:
            return
        self._stands[key] = stand
        self.on_turn()
        where = self._where(election, key)
        if stand.term is not None:
            _LOG.info("lease held %s term=%s", where, stand.term)
            return
        if before is not None and before.term is not None:
            why = stand.trouble or f"held by {stand.other or 'nobody'}"
            _LOG.warning("lease lost %s reason=%s detail=%r", where, Reason.LEASE_LOST, why)
        if stand.trouble:
            _LOG.warning("lease not asked for %s detail=%r", where, stand.trouble)
        elif isinstance(key, int):
            _LOG.info("standing by %s leader=%s", where, stand.other)
        elif stand.other:
            _LOG.warning(
                "standing aside %s reason=%s operator=%s other=%s",
                where,
                Reason.ANOTHER_OPERATOR,
                self.identity,
                stand.other,
            )
            with suppress(ClusterError):
                await self.report(election, key)

    def _where(self, election: Election, key: str | int) -> str:
        """What a Lease is of, as pairs of a line of the log."""
        if isinstance(key, str):
            return f"namespace={key}"
        several = self.release is not None and self.release.several()
        return f"identity={election.identity}" + (f" shard={key}" if several else "")


def _shards_in_words(release: ShardLeases) -> str:
    held = {shard: one.holder or "nobody" for shard, one in release.leases().held.items()}
    mine = [str(shard) for shard, holder in held.items() if holder == release.identity]
    others = [f"{shard} of {who}" for shard, who in held.items() if who != release.identity]
    words = f"holds shards {', '.join(mine)} of {release.count}" if mine else "standby"
    words = f"{words} as {release.identity}"
    return f"{words}; others: {', '.join(others)}" if others else words


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stand:
    """State of an election: the term that is led, or the leader, or why the leader is unknown."""

    term: str | None = None
    other: str = ""
    trouble: str = ""


def _stand(election: Election, trouble: str) -> _Stand:
    if election.term is not None:
        return _Stand(term=election.term)
    other = "" if election.holder == election.identity else election.holder
    return _Stand(other=other, trouble="" if other else trouble)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFence:
    """Permits writes of the holder of any shard of a release, in any namespace."""

    leadership: Leadership

    def write_seconds(self, namespace: str) -> float:
        """Seconds for which a Lease of the release is valid. Raises: NotLeaderError."""
        del namespace
        release = self.leadership.release
        return NAMESPACE_TERMS.lease_seconds if release is None else release.write_seconds(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFence:
    """Permits writes of the holder of a shard in namespaces where no other release acts.

    The shard is that of the context. A namespace that is not claimed has no ServingSLO: only former
    values are put back there.
    """

    leadership: Leadership

    def write_seconds(self, namespace: str) -> float:
        """Seconds for which both Leases are valid. Raises: NotLeaderError."""
        release, shard = self.leadership.release, shard_of_context()
        seconds: float = NAMESPACE_TERMS.lease_seconds
        if release is not None:
            seconds = release.write_seconds(0 if shard is None else shard)
        election = self.leadership._namespaces.get(namespace)  # noqa: SLF001  of one module
        return seconds if election is None else min(seconds, election.write_seconds())
