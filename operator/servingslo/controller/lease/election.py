"""Election of the holder of a Lease: one at most, whatever processes, clocks and networks do.

Only differences on one process's own clock are used, never the times written in the Lease. A holder
counts its term from before it sent its last renewal. Every other process waits a whole duration
from the time it observed that renewal, which is later. So a holder's term has ended before another
begins.
"""

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from servingslo.adapters.kubernetes.leases import LeaseRecord
from servingslo.errors import InvalidInputError, NotLeaderError, WriteConflictError

# A write must end this long before the lease does. The margin covers clocks with different rates
# (RFC 5905 takes 500 ppm, 5 ms in 10 s), and the time of a request from client to server.
WRITE_MARGIN_SECONDS = 1.0
SHORTEST_LEASE_SECONDS = 5
LONGEST_LEASE_SECONDS = 120
SHORTEST_RETRY_SECONDS = 0.5
# From the last moment at which a write may begin to the end of the lease.
SHORTEST_REST_SECONDS = 2.0
# A DNS subdomain (RFC 1123), as Kubernetes requires for names of objects.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253
# After a conflict the Lease is read and judged once more, then with the next attempt.
_LOOKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """lease: its duration. renew: after so long without a renewal, the holder begins no write.

    retry: time from one attempt to the next. All in seconds.
    """

    lease_seconds: int = 10
    renew_seconds: float = 6.0
    retry_seconds: float = 2.0


def check_terms(terms: Terms) -> Terms:
    """Check the terms. Raises: InvalidInputError that names the flag and its allowed values."""
    lease, renew, retry = terms.lease_seconds, terms.renew_seconds, terms.retry_seconds
    if not SHORTEST_LEASE_SECONDS <= lease <= LONGEST_LEASE_SECONDS:
        allowed = f"{SHORTEST_LEASE_SECONDS} to {LONGEST_LEASE_SECONDS}"
        raise InvalidInputError("--lease-seconds", lease, allowed)
    most = lease - SHORTEST_REST_SECONDS
    if not (math.isfinite(renew) and 2.0 * SHORTEST_RETRY_SECONDS < renew <= most):
        allowed = f"above {2.0 * SHORTEST_RETRY_SECONDS:g}, at most {most:g}: 2 s below the lease"
        raise InvalidInputError("--lease-renew-seconds", renew, allowed)
    if not (math.isfinite(retry) and SHORTEST_RETRY_SECONDS <= retry <= renew / 2.0):
        allowed = f"{SHORTEST_RETRY_SECONDS:g} to {renew / 2.0:g}: half of the renewal"
        raise InvalidInputError("--lease-retry-seconds", retry, allowed)
    return terms


def check_object_name(flag: str, name: str) -> str:
    """Check that the API server accepts a name. Raises: InvalidInputError that names the flag."""
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        allowed = "lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
        raise InvalidInputError(flag, name, allowed)
    return name


class LeaseStore(Protocol):
    """The Lease on the API server."""

    async def read(self) -> LeaseRecord | None:
        """The Lease as it is now. Raises: ClusterError."""
        ...

    async def create(self, holder: str, duration_seconds: int) -> LeaseRecord:
        """Create the Lease. Raises: WriteConflictError, ClusterError."""
        ...

    async def write(self, known: LeaseRecord, holder: str, duration_seconds: int) -> LeaseRecord:
        """Write if it is still as known. Raises: WriteConflictError, ClusterError."""
        ...


@dataclass(slots=True)
class Election:
    """One candidate for one Lease.

    clock: seconds that never jump, and that go on while the process is stopped. may_take: whether a
    Lease that nobody holds may be taken now, or another candidate comes first.
    """

    store: LeaseStore
    identity: str
    terms: Terms
    clock: Callable[[], float]
    may_take: Callable[[], bool] = lambda: True
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _known: LeaseRecord | None = None
    _seen_seconds: float = -math.inf
    _renewed_seconds: float = -math.inf

    @property
    def leads(self) -> bool:
        """Whether a write may begin now."""
        return self.clock() < self._renewed_seconds + self.terms.renew_seconds

    @property
    def holder(self) -> str:
        """The last known holder of the Lease; '' for none."""
        return self._known.holder if self._known is not None else ""

    @property
    def known(self) -> LeaseRecord | None:
        """The Lease as last read."""
        return self._known

    @property
    def valid_holder(self) -> str:
        """The holder whose lease is valid as far as is known here; '' for none."""
        valid = self.clock() < self._expires_seconds() if self._of_another() else self.leads
        return self.holder if valid else ""

    @property
    def term(self) -> str | None:
        """Identifies this term, as opposed to one before another holder's; None without a term."""
        if self._known is None or not self.leads:
            return None
        return f"{self._known.uid}/{self._known.transitions}"

    def write_seconds(self) -> float:
        """How long a write that begins now may take. Raises: NotLeaderError if none may begin."""
        if not self.leads:
            held = f"{self.holder} holds it" if self._of_another() else "it was not renewed in time"
            raise NotLeaderError(f"no valid lease: {held}")
        end = self._renewed_seconds + self.terms.lease_seconds - WRITE_MARGIN_SECONDS
        return end - self.clock()

    async def attempt(self) -> None:
        """Take the Lease if that is allowed, or renew it. Raises: ClusterError."""
        async with self._asking:
            for look in range(_LOOKS):
                try:
                    return await self._attempt()
                except WriteConflictError:
                    self._see(await self.store.read())
                    if look + 1 == _LOOKS:
                        raise
        return None

    async def look(self) -> None:
        """Read the Lease without taking or renewing it. Raises: ClusterError."""
        async with self._asking:
            self._see(await self.store.read())

    async def release(self) -> None:
        """Stop leading at once, and release the Lease. Raises: ClusterError.

        A renewal that was cancelled may have reached the server: a conflict is looked at once more.
        """
        async with self._asking:
            known, led = self._known, self.leads
            self._renewed_seconds = -math.inf
            if not led or known is None:
                return
            try:
                self._known = await self.store.write(known, "", self.terms.lease_seconds)
            except WriteConflictError:
                self._known = known = await self.store.read()
                if known is not None and known.holder == self.identity:
                    self._known = await self.store.write(known, "", self.terms.lease_seconds)

    def seconds_to_next(self) -> float:
        """Seconds from an attempt's end to the next: the retry time, or another lease's end."""
        left = self._expires_seconds() - self.clock() if self._of_another() else math.inf
        # At its end the lease is taken at once; later only if that did not succeed.
        return min(left if left > 0.0 else SHORTEST_RETRY_SECONDS, self.terms.retry_seconds)

    async def _attempt(self) -> None:
        # A holder renews the Lease that it knows, in one request. Any other candidate reads it
        # first.
        if not self.leads:
            self._see(await self.store.read())
        known = self._known
        begun = self.clock()
        if self._of_another() and begun < self._expires_seconds():
            return
        if self.holder != self.identity and not self.may_take():
            return
        if known is None:
            written = await self.store.create(self.identity, self.terms.lease_seconds)
        else:
            written = await self.store.write(known, self.identity, self.terms.lease_seconds)
        self._see(written)
        self._renewed_seconds = begun

    def _of_another(self) -> bool:
        return self.holder not in {"", self.identity}

    def _expires_seconds(self) -> float:
        """When another holder's lease ends, as far as is known here."""
        known = self._known
        stated = known.duration_seconds if known is not None else 0.0
        return self._seen_seconds + max(stated, self.terms.lease_seconds)

    def _see(self, record: LeaseRecord | None) -> None:
        """Note the server's answer. The time is taken after it, so no later renewal is missed."""
        before, self._known = self._known, record
        if record is None:
            self._renewed_seconds = -math.inf
            return
        if before is None or (before.uid, before.version) != (record.uid, record.version):
            self._seen_seconds = self.clock()
        if self._of_another():
            self._renewed_seconds = -math.inf
