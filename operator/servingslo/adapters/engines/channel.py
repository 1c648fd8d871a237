"""Requests to an engine's own API, only to addresses inside the allowed ranges.

The owner of a pod controls its answers, so they are not trusted: no redirect, no proxy, no cookie,
no compression, at most 5 s and 1 MiB.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

import aiohttp

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.fence import FencedRequest
from servingslo.errors import (
    ClusterUnavailableError,
    EngineRefusedError,
    InvalidInputError,
    PermissionDeniedError,
)
from servingslo.parsing import written_json

TIMEOUT_SECONDS = 5.0
MOST_BYTES = 1 << 20
# Requests at a time. An answer (a configuration, a page of statistics) has a few kilobytes.
MOST_AT_ONCE = 16
# After a timeout a server is not asked for this long. After this many silent servers, no server of
# the namespace is asked: the loop that serves all namespaces waits for each answer.
SILENT_SECONDS = 30.0
MOST_SILENT = 4
_CHUNK_BYTES = 1 << 16
_LONGEST_MESSAGE = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The allowed addresses, and the folder of the keys.

    keys: a folder with one file for each namespace. A file holds `name=value` of the header that
    its servers require. None if no server requires one.
    """

    ranges: tuple[IPv4Network | IPv6Network, ...]
    keys: Path | None = None


def engine_options(flag: str, ranges: Sequence[str], keys: Path | None = None) -> EngineOptions:
    """Parse the options of a flag. Raises: InvalidInputError if a range is not a CIDR range."""
    found = []
    for one in ranges:
        try:
            found.append(ip_network(one))
        except ValueError as error:
            allowed = "a CIDR range such as 10.0.0.0/8, without host bits"
            raise InvalidInputError(flag, one, allowed) from error
    return EngineOptions(ranges=tuple(found), keys=keys)


class EngineChannel:
    """Sends HTTP requests to engines at their pods' addresses."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        self._silent_until: dict[str, dict[str, float]] = {}

    async def get(self, address: str, port: int, path: str, *, namespace: str) -> Any:
        """The answer as JSON; no key is sent. Raises: ClusterError and its kinds."""
        return await self._ask("GET", address, port, path, namespace=namespace)

    async def post(
        self,
        address: str,
        port: int,
        path: str,
        body: Mapping[str, Any],
        *,
        namespace: str,
        timeout_seconds: float,
    ) -> None:
        """Send a change with the key of its namespace. Raises: ClusterError and its kinds."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._ask("POST", address, port, path, namespace=namespace, body=body)
        except TimeoutError as error:
            self._was_silent(namespace, address)
            raise ClusterUnavailableError(f"POST {path} of {address}: no answer in time") from error

    def _key_of(self, namespace: str) -> Mapping[str, str]:
        """The header that servers of this namespace require; empty if it has no key."""
        if self._options.keys is None:
            return {}
        try:
            text = (self._options.keys / namespace).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise PermissionDeniedError(f"the key of {namespace} cannot be read: {error}") from None
        name, separator, value = text.partition("=")
        if not separator or not name.isascii() or not name.replace("-", "").isalnum():
            raise PermissionDeniedError(f"the key of {namespace} is not of the form name=value")
        return {name: value}

    async def _ask(
        self,
        method: str,
        address: str,
        port: int,
        path: str,
        *,
        namespace: str,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        where = f"{method} {path} of {address}"
        host = self._host(address)
        headers = self._key_of(namespace) if method == "POST" else {}
        try:
            async with (
                self._turns,
                self._answering(namespace, address),
                aiohttp.ClientSession(
                    trust_env=False,
                    auto_decompress=False,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    connector=aiohttp.TCPConnector(force_close=True),
                    timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
                    # The permission to write is checked again just before the first byte.
                    request_class=FencedRequest,
                ) as session,
                session.request(
                    method,
                    f"http://{host}:{port}{path}",
                    json=body,
                    headers={"Accept-Encoding": "identity", **headers},
                    allow_redirects=False,
                ) as answer,
            ):
                data = await _read(answer, where)
                if answer.status != 200:
                    said = f"{where}: {answer.status} {_brief(data)}"
                    raise EngineRefusedError(said, answer.status)
        except TimeoutError as error:
            raise ClusterUnavailableError(f"{where}: no answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ClusterUnavailableError(f"{where}: {_brief(str(error).encode())}") from error
        if method == "POST":
            return None
        try:
            return written_json(data)
        except ValueError as error:
            raise EngineRefusedError(f"{where}: the answer is no JSON") from error

    @asynccontextmanager
    async def _answering(self, namespace: str, address: str) -> AsyncIterator[None]:
        """Raises: ClusterUnavailableError if it, or many of its namespace, recently timed out."""
        now = SystemClock.elapsed_seconds()
        known = self._silent_until.pop(namespace, {})
        if silent := {one: until for one, until in known.items() if now < until}:
            self._silent_until[namespace] = silent
        if address in silent or len(silent) >= MOST_SILENT:
            who = "it" if address in silent else f"{len(silent)} servers of {namespace}"
            raise ClusterUnavailableError(f"{address} is not asked: {who} gave no answer in time")
        try:
            yield
        except TimeoutError:
            self._was_silent(namespace, address)
            raise

    def _was_silent(self, namespace: str, address: str) -> None:
        until = SystemClock.elapsed_seconds() + SILENT_SECONDS
        self._silent_until.setdefault(namespace, {})[address] = until

    def _host(self, address: str) -> str:
        """The address in URL form. Raises: PermissionDeniedError outside the allowed ranges."""
        try:
            found = ip_address(address)
        except ValueError:
            raise PermissionDeniedError(f"{address[:64]!r} is no address") from None
        if not any(found in one for one in self._options.ranges):
            raise PermissionDeniedError(f"{found} is in none of the ranges that are allowed")
        return f"[{found}]" if found.version == 6 else str(found)


async def _read(answer: aiohttp.ClientResponse, where: str) -> bytes:
    """The answer's body. Raises: EngineRefusedError if it is longer than the limit."""
    parts, length = [], 0
    async for part in answer.content.iter_chunked(_CHUNK_BYTES):
        length += len(part)
        if length > MOST_BYTES:
            answer.close()
            raise EngineRefusedError(f"{where}: the answer is longer than {MOST_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _brief(data: bytes) -> str:
    text = "".join(c if c.isprintable() else " " for c in data.decode(errors="replace"))
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
