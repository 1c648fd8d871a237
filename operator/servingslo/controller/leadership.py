"""Decide whether this process may act: one Lease for its release, one for each namespace.

One pod of the release holds the release's Lease. In each namespace with ServingSLOs, one release of
the cluster holds a Lease, in the name of all its pods. A second operator that watches the same
namespace finds it held and stands aside there. It takes over when the Lease is no longer renewed.
Both are elections: the first decides who is leader, the second where its decisions count.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from servingslo.controller.election import Election, Terms
from servingslo.errors import ClusterError, NotLeaderError
from servingslo.reasons import Reason

_LOG = logging.getLogger(__name__)
# A namespace changes its release once in an installation's life. So its Lease may last as long as a
# node's lease (40 s, kubelet --node-lease-duration-seconds). It costs a tenth of a request a
# second.
NAMESPACE_TERMS = Terms(lease_seconds=40, renew_seconds=30.0, retry_seconds=10.0)
# The term of a process without a Lease of the release: it leads by itself.
_ALONE = "alone"
_MOST_AT_ONCE = 16


class Lead(Protocol):
    """The questions of the control loop about leadership."""

    def process_term(self) -> str | None:
        """The term of this process as leader; None while it is not the leader."""
        ...

    def term(self, namespace: str) -> str | None:
        """The term in which this process acts in a namespace; None while it does not."""
        ...

    async def claim(self, namespaces: Iterable[str]) -> None:
        """Claim these namespaces and release all others."""
        ...


class Alone:
    """A process without other operators next to it, as in a recording or a test."""

    def process_term(self) -> str | None:
        """The same term at all times."""
        return _ALONE

    def term(self, namespace: str) -> str | None:
        """The same term in every namespace."""
        return _ALONE if namespace else None

    async def claim(self, namespaces: Iterable[str]) -> None:
        """Claim nothing."""


# Reports once that a release stands aside in a namespace: (election there, namespace).
Report = Callable[[Election, str], Awaitable[None]]


@dataclass(slots=True)
class Leadership:
    """The elections of one process.

    release: for the Lease of the release; None if the process is known to be the only one.
    identity: of the release in the cluster. election_in: makes a candidate for a namespace's Lease.
    on_turn: called when the process starts or stops leading, or a namespace is gained or lost.
    """

    release: Election | None
    identity: str
    election_in: Callable[[str], Election]
    on_turn: Callable[[], None]
    report: Report
    _namespaces: dict[str, Election] = field(default_factory=dict)
    _stands: dict[str, "_Stand"] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Ask once, then repeatedly in the background."""
        if self.release is not None:
            await self._attempt(self.release, "")
            self._tasks.append(asyncio.create_task(self._follow_release(self.release)))
        self._tasks.append(asyncio.create_task(self._follow_namespaces()))

    async def stop(self) -> None:
        """Stop leading. The namespaces stay with the release, for the pod that follows."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.release is not None:
            with suppress(ClusterError):
                await self.release.release()

    def process_term(self) -> str | None:
        """The term of this process as leader of its release; None while it is not the leader."""
        return _ALONE if self.release is None else self.release.term

    def term(self, namespace: str) -> str | None:
        """The term in which this process acts in a namespace; None while it does not."""
        of_process = self.process_term()
        election = self._namespaces.get(namespace)
        of_namespace = election.term if election is not None else None
        if of_process is None or of_namespace is None:
            return None
        return f"{of_process} {of_namespace}"

    def leads(self) -> bool:
        """Whether this process is its release's leader now."""
        return self.process_term() is not None

    def aside(self) -> dict[str, str]:
        """The namespaces in which another operator acts, and which operator."""
        return {name: it.other for name, it in self._stands.items() if name and it.other}

    async def claim(self, namespaces: Iterable[str]) -> None:
        """Claim namespaces that are not held, and release those without any ServingSLO."""
        wanted = set(namespaces)
        for name in sorted(wanted - self._namespaces.keys()):
            self._namespaces[name] = self.election_in(name)
        for name in sorted(self._namespaces.keys() - wanted):
            election = self._namespaces.pop(name)
            self._stands.pop(name, None)
            with suppress(ClusterError):
                await election.release()
        aside = self.aside()
        await self._attempt_all(
            name for name, it in self._namespaces.items() if not it.leads and name not in aside
        )

    def detail(self) -> str:
        """A sentence for people: who leads, and where another operator acts."""
        if self.release is None:
            words = "the only process of its release"
        elif self.release.leads:
            words = f"leader {self.release.identity}"
        else:
            words = f"standby of {self.release.holder or 'nobody'}"
        aside = [f"{name} ({holder})" for name, holder in sorted(self.aside().items())]
        return f"{words}; stands aside in {', '.join(aside)}" if aside else words

    async def _follow_release(self, election: Election) -> None:
        while True:
            await asyncio.sleep(election.seconds_to_next())
            await self._attempt(election, "")

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
        trouble = ""
        try:
            await election.attempt()
        except NotLeaderError:
            pass  # the release's own election reports it
        except ClusterError as error:
            trouble = str(error)
        except Exception as error:  # noqa: BLE001  the election goes on
            _LOG.exception("election failed namespace=%s", namespace)
            trouble = str(error)
        await self._note(election, namespace, trouble)

    async def _note(self, election: Election, namespace: str, trouble: str) -> None:
        """Report a change, once."""
        stand = _stand(election, trouble)
        before = self._stands.get(namespace)
        if stand == before:
            return
        self._stands[namespace] = stand
        self.on_turn()
        where = f"namespace={namespace}" if namespace else f"identity={election.identity}"
        if stand.term is not None:
            _LOG.info("lease held %s term=%s", where, stand.term)
            return
        if before is not None and before.term is not None:
            why = stand.trouble or f"held by {stand.other or 'nobody'}"
            _LOG.warning("lease lost %s reason=%s detail=%r", where, Reason.LEASE_LOST, why)
        if stand.trouble:
            _LOG.warning("lease not asked for %s detail=%r", where, stand.trouble)
        elif not namespace:
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
                await self.report(election, namespace)


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
    """Permits writes of the leader of a release in any namespace."""

    leadership: Leadership

    def write_seconds(self, namespace: str) -> float:
        """Seconds for which the release's Lease is valid. Raises: NotLeaderError."""
        del namespace
        release = self.leadership.release
        return NAMESPACE_TERMS.lease_seconds if release is None else release.write_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFence:
    """Permits writes of the leader of a release in namespaces where no other release acts.

    A namespace that is not claimed has no ServingSLO: only former values are put back there.
    """

    leadership: Leadership

    def write_seconds(self, namespace: str) -> float:
        """Seconds for which both Leases are valid. Raises: NotLeaderError."""
        seconds = ReleaseFence(leadership=self.leadership).write_seconds(namespace)
        election = self.leadership._namespaces.get(namespace)  # noqa: SLF001  of one module
        return seconds if election is None else min(seconds, election.write_seconds())
