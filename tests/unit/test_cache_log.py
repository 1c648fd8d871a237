"""What a copy of a collection does if the API server does not serve it, or serves it oddly."""

import asyncio
import contextlib
import json
import logging
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import ApiClient, Configuration

from servingslo.adapters.kubernetes.api.cache import ObjectCache
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.errors import ClusterError, NotFoundError

PODS, KEDA = "/api/v1/pods", "/apis/keda.sh/v1alpha1/scaledobjects"


class _Client:
    """Serves nothing."""

    async def get(self, path: str, _query: object) -> Any:
        """Raises: NotFoundError."""
        raise NotFoundError(f"GET {path}: 404 404 page not found")


@pytest.mark.parametrize(
    ("path", "absent", "level", "line"),
    [
        pytest.param(
            KEDA,
            {NotFoundError: "KEDA is not installed"},
            "INFO",
            f"KEDA is not installed: {KEDA} is not watched",
            id="optional",
        ),
        pytest.param(
            PODS,
            {},
            "WARNING",
            f"cache path={PODS} state='GET {PODS}: 404 404 page not found'",
            id="always-there",
        ),
    ],
)
async def test_an_optional_kind_that_is_absent_is_said_in_words(
    caplog: pytest.LogCaptureFixture, path: str, absent: Any, level: str, line: str
) -> None:
    """KEDA need not be installed; the API server has Pods."""
    caplog.set_level(logging.INFO)
    client: Any = _Client()
    cache: ObjectCache[int] = ObjectCache(client, path, lambda _item, _old: 1, absent=absent)
    task = asyncio.create_task(cache.run())
    async with asyncio.timeout(5.0):
        await cache.listed.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert [(record.levelname, record.message) for record in caplog.records] == [(level, line)]


def _pod(name: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "team", "name": name, "resourceVersion": "5"}}


async def _watched(request: web.Request) -> web.StreamResponse:
    """One pod in the list; of two in the watch the first is as long as etcd keeps one in JSON."""
    if "watch" not in request.query:
        return web.json_response({"metadata": {"resourceVersion": "4"}, "items": [_pod("a")]})
    response = web.StreamResponse()
    await response.prepare(request)
    long = json.dumps({"type": "ADDED", "object": {**_pod("b"), "spec": "@" * 1_400_000}})
    await response.write(long.replace("@", "\\u003c").encode() + b"\n")
    await response.write(json.dumps({"type": "ADDED", "object": _pod("c")}).encode() + b"\n")
    await asyncio.sleep(60.0)
    return response


async def test_the_longest_object_ends_no_watch() -> None:
    """A tenant may fill a variable of a pod with `<`: everybody's pods are watched all the same."""
    app = web.Application()
    app.router.add_get("/api/v1/pods", _watched)
    seen = asyncio.Event()
    async with TestServer(app) as server:
        configuration = Configuration()
        configuration.host = str(server.make_url("")).rstrip("/")
        client = KubeClient(ApiClient(configuration))

        def parsed(item: KubeObject, _old: int | None) -> int:
            if item["metadata"]["name"] == "c":
                seen.set()
            return 1

        cache = ObjectCache(client, api_path("v1", "pods"), parsed)
        task = asyncio.create_task(cache.run())
        async with asyncio.timeout(10.0):
            await seen.wait()
        assert [name for _, name in cache.items] == ["a", "b", "c"]
        assert cache.problem is None
        task.cancel()
        await client.close()


async def test_a_copy_that_cannot_be_renewed_has_a_problem() -> None:
    """Whatever it meets it is no fresh copy, and it goes on."""

    class Odd:
        async def get(self, _path: str, _query: object) -> Any:
            return {"items": [{}]}

    client: Any = Odd()
    cache: ObjectCache[int] = ObjectCache(client, api_path("v1", "pods"), lambda _item, _old: 1)
    task = asyncio.create_task(cache.run())
    await asyncio.sleep(0.05)
    assert not task.done()
    assert isinstance(cache.problem, ClusterError)
    assert str(cache.problem) == f"GET {PODS}: KeyError: 'metadata'"
    task.cancel()
