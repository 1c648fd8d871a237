"""Block every write of a process whose lease has expired, whichever code started the write.

The same clock is checked three times. First, before a request is made. Second, just before its
first byte is sent, because connecting may take seconds or the process may have been stopped. Third,
until the end of the request, by a kernel timer: it ends a process that was stopped during a write
until after its lease. A continued process receives the signal before it executes anything, so there
is no gap between the second check and the send.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import aiohttp

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


class DeadMansSwitch:
    """Armed during writes, for the latest end that any of them may have."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._under_way = 0

    @contextmanager
    def armed(self, seconds: float) -> Iterator[None]:
        """Arm for one write. A later write has a renewed lease, so its deadline replaces this."""
        self._under_way += 1
        self._switch(seconds)
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._switch(0.0)


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
