"""Block every write of a process whose lease has expired, whichever code started the write.

The same clock is checked three times. First, before a request is made. Second, just before its
first byte is sent, because connecting may take seconds or the process may have been stopped. Third,
until the end of the request, by a kernel timer: it ends a process that was stopped during a write
until after its lease. A continued process receives the signal before it executes anything, so there
is no gap between the second check and the send.
"""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import aiohttp

from servingslo.adapters.clock import SystemClock
from servingslo.errors import NotLeaderError

# In a path of the API server, the namespace follows this word.
NAMESPACES = "namespaces"


class Fence(Protocol):
    """Decides whether this process may write, and for how long."""

    def write_seconds(self, namespace: str) -> float:
        """Seconds that a write starting now may take; always more than zero.

        namespace: of the written object; '' if it has none.
        Raises: NotLeaderError if this process may not write there.
        """
        ...


class Switch(Protocol):
    """Ends the process after the given seconds; 0 disarms it."""

    def __call__(self, seconds: float) -> object:
        """Arm, rearm or disarm."""
        ...


def process_switch(seconds: float) -> object:
    """The kernel's timer: SIGALRM with its default action, which ends the process."""
    if seconds > 0.0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return signal.setitimer(signal.ITIMER_REAL, seconds)


# The number of the release's Lease that guards the writes of this context; None outside of any.
_LEASE: ContextVar[int | None] = ContextVar("lease of a write", default=None)
# A timer of 0 would be disarmed.
_SHORTEST_TIMER_SECONDS = 1e-3


@contextmanager
def under_lease(number: int) -> Iterator[None]:
    """Let this Lease of the release guard the writes of this context."""
    token = _LEASE.set(number)
    try:
        yield
    finally:
        _LEASE.reset(token)


def lease_of_context() -> int | None:
    """The number of the Lease that guards the writes of this context; None outside of any."""
    return _LEASE.get()


class DeadMansSwitch:
    """Armed during writes, for the first end of a lease that one of them needs."""

    def __init__(
        self, switch: Switch, clock: Callable[[], float] = SystemClock.elapsed_seconds
    ) -> None:
        self._switch = switch
        self._clock = clock
        self._under_way: Counter[int | None] = Counter()
        self._ends: dict[int | None, float] = {}

    def busy(self, lease: int) -> bool:
        """Whether a write under that Lease is under way."""
        return self._under_way[lease] > 0

    @contextmanager
    def armed(self, seconds: float) -> Iterator[None]:
        """Arm for one write. A later one has a lease that was renewed: its end counts."""
        lease = lease_of_context()
        self._under_way[lease] += 1
        self._ends[lease] = self._clock() + seconds
        self._arm()
        try:
            yield
        finally:
            self._under_way[lease] -= 1
            if not self._under_way[lease]:
                del self._under_way[lease], self._ends[lease]
                self._arm()

    def _arm(self) -> None:
        first = min(self._ends.values(), default=None)
        left = 0.0 if first is None else max(first - self._clock(), _SHORTEST_TIMER_SECONDS)
        self._switch(left)


def namespace_of(path: str) -> str:
    """The namespace in a path of the API server; '' if there is none."""
    words = path.split("/")
    if NAMESPACES not in words:
        return ""
    following = words[words.index(NAMESPACES) + 1 :]
    return following[0] if following else ""


_CHECK: ContextVar[Callable[[], object] | None] = ContextVar("check of a write", default=None)


@contextmanager
def checked(check: Callable[[], object]) -> Iterator[None]:
    """Check requests of this context again just before they are sent."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


class FencedRequest(aiohttp.ClientRequest):
    """A request that checks at the last moment whether it may be sent."""

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        """Send the request if it is still allowed. Raises: NotLeaderError if it is not."""
        _check()
        return await super().send(conn)

    async def write_bytes(self, writer: Any, conn: Any, content_length: int | None = None) -> None:
        """Send the headers, which were held back, and the body; or close without sending."""
        try:
            _check()
        except NotLeaderError as error:
            refused = aiohttp.ClientConnectionError(str(error))
            refused.__cause__ = error
            conn.protocol.set_exception(refused)
            return
        await super().write_bytes(writer, conn, content_length)


def _check() -> None:
    check = _CHECK.get()
    if check is not None:
        check()
