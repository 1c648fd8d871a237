"""Bounded waiting and loopback ports for processes of the rig."""

import asyncio
import contextlib
import secrets
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine
from typing import Any

from servingslo_lab.errors import RigError

# Below Linux's range for outgoing connections (32768 up, Documentation/networking/ip-sysctl), so
# that no connection gets the port while its server is stopped for an outage.
_LOWEST_PORT = 20_000
_HIGHEST_PORT = 32_000
_PORT_ATTEMPTS = 200
_PROBE_TIMEOUT_SECONDS = 2.0


def wait_until(
    check: Callable[[], bool],
    *,
    what: str,
    timeout_seconds: float = 30.0,
    interval_seconds: float = 0.05,
) -> None:
    """Return as soon as ``check()`` is true.

    what: text for the message "timed out after 30 s: ...".
    Raises: RigError if it is still false after timeout_seconds.
    """
    deadline = time.monotonic() + timeout_seconds
    while not check():
        if time.monotonic() > deadline:
            raise RigError(f"timed out after {timeout_seconds:g} s: {what}")
        time.sleep(interval_seconds)


async def until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Run a process's work until it ends, or is cancelled by SIGINT or SIGTERM."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def free_port() -> int:
    """A free TCP port on 127.0.0.1.

    Raises: RigError if none was found.
    """
    for _ in range(_PORT_ATTEMPTS):
        port = _LOWEST_PORT + secrets.randbelow(_HIGHEST_PORT - _LOWEST_PORT)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RigError(f"no free port on 127.0.0.1 between {_LOWEST_PORT} and {_HIGHEST_PORT}")


def http_get(url: str, *, timeout_seconds: float = _PROBE_TIMEOUT_SECONDS) -> str | None:
    """The body of a plain HTTP answer with status 200, or None if there is no such answer."""
    # Without a proxy: proxy settings of the environment must not apply to loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_seconds) as answer:
            body: bytes = answer.read()
            return body.decode() if answer.status == 200 else None
    except (urllib.error.URLError, OSError):
        return None


def http_post(url: str, *, timeout_seconds: float = 30.0) -> None:
    """Send an empty POST. Raises: RigError if the answer is an error or missing."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, data=b"", timeout=timeout_seconds):
            return
    except urllib.error.HTTPError as error:
        detail = error.read().decode(errors="replace").strip()
        raise RigError(f"POST {url}: {error.code} {detail}") from error
    except (urllib.error.URLError, OSError) as error:
        raise RigError(f"POST {url}: {error}") from error
