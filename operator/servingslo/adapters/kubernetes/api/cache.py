"""An in-memory copy of a collection of the API server: list, watch, and list again periodically.

After a gap, a watch alone would keep deleted objects. So every list replaces the whole copy.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.client import WATCH_SECONDS, KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.paths import ApiPath
from servingslo.errors import (
    ClusterError,
    NotFoundError,
    PermissionDeniedError,
    WriteConflictError,
)

T = TypeVar("T")
Key = tuple[str, str]

_LOG = logging.getLogger(__name__)
RELIST_SECONDS = 300.0
# What an error means of a collection that a cluster may lack, or the operator may not read.
Absent = Mapping[type[ClusterError], str]
_PAGE = "500"
_MOST_PAGES = 1000
_FIRST_BACKOFF_SECONDS = 0.2
_LONGEST_BACKOFF_SECONDS = 5.0
# The longest wait before a forbidden or missing collection is listed again. The first retries are
# as fast as after any other error: an API server that has just started knows no roles yet.
_LONGEST_ABSENT_BACKOFF_SECONDS = 30.0


class ObjectCache(Generic[T]):
    """One collection at one path; `parse` keeps the few fields that are needed.

    parse: called with the object and its previous record, None for a new object.
    on_change: called with the old and the new record; None if there is none. query: selectors.
    absent: what an error means that is no failure.
    """

    def __init__(
        self,
        client: KubeClient,
        path: ApiPath,
        parse: Callable[[KubeObject, T | None], T],
        *,
        on_change: Callable[[T | None, T | None], None] | None = None,
        query: Mapping[str, str] = MappingProxyType({}),
        absent: Absent = MappingProxyType({}),
    ) -> None:
        self.path = path
        self._absent = absent
        self.items: dict[Key, T] = {}
        self.listed = asyncio.Event()
        self.problem: ClusterError | None = None
        self._client = client
        self._parse = parse
        self._on_change = on_change
        self._query = dict(query)

    async def run(self) -> None:
        """Keep the copy current until cancelled; errors are in `problem` and never raised."""
        backoff_seconds = _FIRST_BACKOFF_SECONDS
        while True:
            try:
                version = await self._list()
                self._set_problem(None)
                self.listed.set()
                backoff_seconds = _FIRST_BACKOFF_SECONDS
                await self._follow(version)
            except (PermissionDeniedError, NotFoundError) as error:
                self._set_problem(error)
                self._replace({})
                self.listed.set()
                backoff_seconds = await _waited(backoff_seconds, _LONGEST_ABSENT_BACKOFF_SECONDS)
            except Exception as error:  # noqa: BLE001  a copy that ends unnoticed is never renewed
                told = f"GET {self.path}: {type(error).__name__}: {error!s:.200}"
                self._set_problem(error if isinstance(error, ClusterError) else ClusterError(told))
                backoff_seconds = await _waited(backoff_seconds, _LONGEST_BACKOFF_SECONDS)

    async def _list(self) -> str:
        """List and replace the whole copy; returns the list's resourceVersion."""
        found = await listed(self._client, self.path, self._query)
        self._replace({_key(item): item for item in found.items})
        return found.version

    async def _follow(self, version: str) -> None:
        """Apply watch events until it is time to list again."""
        started = SystemClock.elapsed_seconds()
        while SystemClock.elapsed_seconds() - started < RELIST_SECONDS:
            query = {
                **self._query,
                "resourceVersion": version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(WATCH_SECONDS),
            }
            async with self._client.watch(self.path, query) as events:
                async for event in events:
                    item: KubeObject = event.get("object") or {}
                    if event.get("type") == "ERROR":
                        raise WriteConflictError(f"watch of {self.path}: {item.get('message')}")
                    version = _version(item) or version
                    self._apply(str(event.get("type")), item)
            # A server may end each stream immediately: avoid a tight loop.
            await asyncio.sleep(_FIRST_BACKOFF_SECONDS)

    def _apply(self, kind: str, item: KubeObject) -> None:
        if kind == "BOOKMARK":
            return
        key = _key(item)
        if kind == "DELETED":
            self._notify(self.items.pop(key, None), None)
            return
        old = self.items.get(key)
        new = self._parse(item, old)
        self.items[key] = new
        self._notify(old, new)

    def _replace(self, found: Mapping[Key, KubeObject]) -> None:
        for key in [key for key in self.items if key not in found]:
            self._notify(self.items.pop(key), None)
        for item in found.values():
            self._apply("ADDED", item)

    def _notify(self, old: T | None, new: T | None) -> None:
        if self._on_change is not None and (old is not None or new is not None):
            self._on_change(old, new)

    def _set_problem(self, problem: ClusterError | None) -> None:
        if (problem is None) != (self.problem is None):
            absent = next(
                (said for kind, said in self._absent.items() if isinstance(problem, kind)), ""
            )
            if problem is None:
                _LOG.info("cache path=%s state=readable", self.path)
            elif absent:
                _LOG.info("%s: %s is not watched", absent, self.path)
            else:
                _LOG.warning("cache path=%s state=%r", self.path, str(problem))
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A whole collection at one resourceVersion."""

    items: list[KubeObject]
    version: str


async def listed(
    client: KubeClient, path: ApiPath, selected: Mapping[str, str] = MappingProxyType({})
) -> Listed:
    """All objects of a collection, in pages. Raises: ClusterError."""
    items: list[KubeObject] = []
    query = {**selected, "limit": _PAGE}
    for _ in range(_MOST_PAGES):
        page = await client.get(path, query)
        items.extend(page.get("items") or ())
        metadata: Mapping[str, str] = page.get("metadata") or {}
        following = metadata.get("continue")
        if not following:
            return Listed(items=items, version=metadata.get("resourceVersion", ""))
        query = {**selected, "limit": _PAGE, "continue": following}
    raise ClusterError(f"GET {path}: more than {_MOST_PAGES} pages")


class Caches:
    """The tasks of several caches, started and stopped together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, caches: Iterable[ObjectCache[T]]) -> None:
        """Start them."""
        self._tasks.update(asyncio.create_task(cache.run()) for cache in caches)

    async def start(self, caches: Iterable[ObjectCache[T]], *, timeout_seconds: float) -> None:
        """Start them and wait for the first list of each, at most timeout_seconds."""
        caches = list(caches)
        self.begin(caches)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await asyncio.gather(*(cache.listed.wait() for cache in caches))

    async def stop(self) -> None:
        """Cancel all tasks and wait for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()


async def _waited(backoff_seconds: float, longest_seconds: float) -> float:
    """Wait for the backoff, at most the longest; returns the next backoff."""
    await asyncio.sleep(min(backoff_seconds, longest_seconds))
    return min(2.0 * backoff_seconds, longest_seconds)


def _key(item: KubeObject) -> Key:
    metadata: Mapping[str, str] = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(item: KubeObject) -> str | None:
    metadata: Mapping[str, str] = item.get("metadata") or {}
    return metadata.get("resourceVersion")
