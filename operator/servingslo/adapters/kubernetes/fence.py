"""Writes of a process whose lease ran out never leave it, whatever the code that began them.

Three looks at the same clock: before a request is made, again when its first byte is about to be
sent (connecting may have taken seconds, or the process was stopped meanwhile), and by the kernel
between that look and the end of the request: a timer ends the process where it was stopped, with a
write in its hands, until after its lease. A signal is delivered before a process that is continued
executes anything, so not even the instructions between look and send are left open.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import aiohttp

from servingslo.errors import NotLeaderError

# A path of the API server with a namespace has it after this word.
NAMESPACES = "namespaces"


class Fence(Protocol):
    """Who may write, and for how long."""

    def write_seconds(self, namespace: str) -> float:
        """How long a write that begins now may take; always more than zero.

        namespace: of the object written; '' where it has none.
        Raises: NotLeaderError when nothing may be written there.
        """
        ...


class Switch(Protocol):
    """Ends the process in so many seconds; 0 disarms it."""

    def __call__(self, seconds: float) -> object:
        """Arm, arm anew or disarm."""
        ...


def process_switch(seconds: float) -> object:
    """The kernel's own: SIGALRM with its default action, which is to end the process."""
    if seconds > 0.0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return signal.setitimer(signal.ITIMER_REAL, seconds)


class DeadMansSwitch:
    """Armed while any write is under way, until the latest moment that any of them may take."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._under_way = 0

    @contextmanager
    def armed(self, seconds: float) -> Iterator[None]:
        """For one write; a later one has a lease that was renewed, so that its moment counts."""
        self._under_way += 1
        self._switch(seconds)
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._switch(0.0)


def namespace_of(path: str) -> str:
    """The namespace in a path of the API server; '' where there is none."""
    words = path.split("/")
    if NAMESPACES not in words:
        return ""
    following = words[words.index(NAMESPACES) + 1 :]
    return following[0] if following else ""


_CHECK: ContextVar[Callable[[], object] | None] = ContextVar("check of a write", default=None)


@contextmanager
def checked(check: Callable[[], object]) -> Iterator[None]:
    """Requests made in this context are checked again when they are about to be sent."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


class FencedRequest(aiohttp.ClientRequest):
    """A request that asks at the last moment whether it may be sent at all."""

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        """Send what is already known to be allowed. Raises: NotLeaderError when it is no more."""
        _check()
        return await super().send(conn)

    async def write_bytes(self, writer: Any, conn: Any, content_length: int | None = None) -> None:
        """Send the headers, which were held back until now, and the body; or close, unsent."""
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
