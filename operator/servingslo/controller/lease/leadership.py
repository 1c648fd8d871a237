"""Decide whether this process may act: a Lease of its release, and one of each namespace.

One pod of the release holds its Lease. In each namespace with ServingSLOs, one release of the
cluster holds a Lease, in the name of all its pods. A second operator that watches the same
namespace finds it held and stands aside there. It takes over when the Lease is no longer renewed.
Both are elections: the first decides who is leader, the second where its decisions count.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from servingslo.adapters.kubernetes.api.fence import lease_of_context
from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.controller.lease.election import Election, Terms
from servingslo.controller.lease.lead import ALONE_TERM, Lead
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


@dataclass(kw_only=True)
class Leadership(Lead):
    """The elections of one process. A feature overrides those of its release.

    release: for the Lease of the release; None if the process is known to be the only one.
    identity: of the release in the cluster. election_in: makes a candidate for a namespace's Lease.
    on_turn: called when the process starts or stops leading, or a namespace is gained or lost.
    """

    release: Election | None = None
    identity: str
    election_in: Callable[[str], Election]
    on_turn: Callable[[], None]
    report: Report
    _namespaces: dict[str, Election] = field(default_factory=dict)
    _stands: dict[str | int, "Stand"] = field(default_factory=dict)
    _tasks: dict[str | int, asyncio.Task[None]] = field(default_factory=dict)

    async def start(self) -> None:
        """Ask once, then repeatedly in the background."""
        await asyncio.gather(*map(self.attempt, self.elections()))
        self.follow()
        self._tasks["namespaces"] = asyncio.create_task(self._follow_namespaces())

    async def stop(self) -> None:
        """Stop leading. The namespaces stay with the release, for the pod that follows.

        None follows a process that is alone: it releases them.
        """
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for election in (self.elections() or self._namespaces).values():
            with suppress(ClusterError):
                await election.release()

    def export(self, metrics: OperatorMetrics) -> None:
        """Let each scrape read what is held."""
        metrics.follow(self.leads, lambda: len(self.aside()))

    def elections(self) -> Mapping[int, Election]:
        """Those for the Leases of the release, by number."""
        return {} if self.release is None else {0: self.release}

    def terms(self) -> Mapping[int, str]:
        """The term of each Lease of the release that this process holds now."""
        if self.release is None:
            return dict.fromkeys(self._used, ALONE_TERM)
        term = self.release.term
        return {} if term is None else {0: term}

    def process_term(self) -> str | None:
        """The term of this process as leader of its release; None while it is not the leader."""
        return self.terms().get(0)

    def held(self) -> Collection[int]:
        """The Leases of its release that this process holds now."""
        return self.terms().keys()

    def term(self, namespace: str, lease: int = 0) -> str | None:
        """The term in which it decides what is under a Lease in a namespace; None if not."""
        of_release = self.terms().get(lease)
        election = self._namespaces.get(namespace)
        of_namespace = election.term if election is not None else None
        if of_release is None or of_namespace is None:
            return None
        return f"{of_release} {of_namespace}"

    def write_seconds(self, lease: int | None) -> float:
        """How long a write under a Lease may take. Raises: NotLeaderError.

        lease: its number; None for any that is held.
        """
        del lease
        if self.release is None:
            return NAMESPACE_TERMS.lease_seconds
        return self.release.write_seconds()

    def leads(self) -> bool:
        """Whether this process is its release's leader now."""
        return self.process_term() is not None

    def aside(self) -> dict[str, str]:
        """The namespaces in which another operator acts, and which operator."""
        return {
            name: it.other
            for name, it in self._stands.items()
            if isinstance(name, str) and it.other
        }

    async def claim(self, namespaces: Iterable[str], leases: Iterable[int] = (0,)) -> None:
        """Claim namespaces that are not held, and release those without any ServingSLO.

        A process of several leaves that to the Lease's end: the others may see a ServingSLO there.
        """
        await Lead.claim(self, namespaces, leases)
        wanted = set(namespaces)
        for name in sorted(wanted - self._namespaces.keys()):
            self._namespaces[name] = self.election_in(name)
        for name in sorted(self._namespaces.keys() - wanted):
            election = self._namespaces.pop(name)
            self._stands.pop(name, None)
            if len(self.elections()) > 1:
                continue
            with suppress(ClusterError):
                await election.release()
        aside = self.aside()
        await self._attempt_all(
            name for name, it in self._namespaces.items() if not it.leads and name not in aside
        )

    def detail(self) -> str:
        """A sentence for people: who leads, and where another operator acts."""
        aside = [f"{name} ({holder})" for name, holder in sorted(self.aside().items())]
        words = self.in_words()
        return f"{words}; stands aside in {', '.join(aside)}" if aside else words

    def in_words(self) -> str:
        """Who leads the release."""
        first = self.elections().get(0)
        if first is None:
            return "the only process of its release"
        if self.leads():
            return f"leader {first.identity}"
        return f"standby of {first.holder or 'nobody'}"

    async def attempt(self, number: int) -> None:
        """Take or renew a Lease of the release, if that is allowed."""
        election = self.elections().get(number)
        if election is not None:
            await self.settle(election.attempt(), election, number)

    def follow(self) -> None:
        """Follow each Lease of the release in the background."""
        for number in self.elections().keys() - self._tasks.keys():
            self._tasks[number] = asyncio.create_task(self._follow(number))

    async def _follow(self, number: int) -> None:
        while (election := self.elections().get(number)) is not None:
            await asyncio.sleep(election.seconds_to_next())
            await self.attempt(number)

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
        await self.settle(election.attempt(), election, namespace)

    async def settle(self, attempt: Awaitable[None], election: Election, key: str | int) -> None:
        """Make an attempt, and report what changed. key: the namespace, or the number."""
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
        where = self.where(election, key)
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

    def where(self, election: Election, key: str | int) -> str:
        """What a Lease is of, as pairs of a line of the log."""
        return f"namespace={key}" if isinstance(key, str) else f"identity={election.identity}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """State of an election: the term that is led, or the leader, or why the leader is unknown."""

    term: str | None = None
    other: str = ""
    trouble: str = ""


def _stand(election: Election, trouble: str) -> Stand:
    if election.term is not None:
        return Stand(term=election.term)
    other = "" if election.holder == election.identity else election.holder
    return Stand(other=other, trouble="" if other else trouble)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFence:
    """Permits writes of the holder of a Lease of the release, in any namespace."""

    leadership: Leadership

    def write_seconds(self, namespace: str) -> float:
        """Seconds for which a Lease of the release is valid. Raises: NotLeaderError."""
        del namespace
        return self.leadership.write_seconds(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFence:
    """Permits writes of the holder of the context's Lease where no other release acts.

    A namespace that is not claimed has no ServingSLO: only former values are put back there.
    """

    leadership: Leadership

    def write_seconds(self, namespace: str) -> float:
        """Seconds for which both Leases are valid. Raises: NotLeaderError."""
        seconds = self.leadership.write_seconds(lease_of_context() or 0)
        election = self.leadership._namespaces.get(namespace)  # noqa: SLF001  of one module
        return seconds if election is None else min(seconds, election.write_seconds())
