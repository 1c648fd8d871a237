"""What the operator sends to engines, and what a hostile one gets from it: nothing."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from servingslo.adapters.engines import channel as module
from servingslo.adapters.engines.channel import EngineChannel, engine_options
from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    EngineRefusedError,
    InvalidInputError,
    PermissionDeniedError,
    WriteConflictError,
)
from servingslo.features.dynamic_batches.model_repository import (
    FORMER_PARAMETER,
    OWNER_PARAMETER,
    ModelRepository,
)
from servingslo.features.dynamic_batches.servers import BatcherLimits, Owner

REF = ResourceRef(namespace="team-a", name="rank", uid="u-1")
LOAD = "/v2/repository/models/rank/load"
CONFIG: dict[str, Any] = {
    "name": "rank",
    "max_batch_size": 4,
    "dynamic_batching": {
        "preferred_batch_size": [4],
        "max_queue_delay_microseconds": 20000,
        "default_queue_policy": {"max_queue_size": 16},
    },
    "instance_group": [{"count": 2, "kind": "KIND_CPU", "gpus": []}],
    "parameters": {"own": {"string_value": "kept"}},
}
STATS = {
    "model_stats": [
        {
            "name": "rank",
            "inference_stats": {"success": {"count": 7, "ns": 9_000_000}, "fail": {"count": 1}},
            "batch_stats": [
                {
                    "batch_size": 4,
                    "compute_input": {"count": 3, "ns": 1000},
                    "compute_infer": {"count": 3, "ns": 600_000},
                    "compute_output": {"count": 3, "ns": 2000},
                }
            ],
        }
    ]
}
WANTED = BatcherLimits(8, 5000, 64)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server on loopback that answers everything so; its port."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def opened(*ranges: str, keys: Path | None = None) -> EngineChannel:
    """A channel to these ranges."""
    return EngineChannel(engine_options("--engine-range", ranges or ("127.0.0.0/8",), keys))


def get(handler: Handler, *ranges: str) -> Any:
    """What the channel makes of an answer."""

    async def ask() -> Any:
        async with serving(handler) as port:
            return await opened(*ranges).get(
                "127.0.0.1", port, "/v2/models/rank/config", namespace="team-a"
            )

    return asyncio.run(ask())


def test_a_redirect_to_another_port_is_not_followed(tmp_path: Path) -> None:
    """Neither the port nor the path of the redirect sees a request, nor is a key sent there."""
    visited: list[str] = []

    async def other(request: web.Request) -> web.Response:
        visited.append(request.path)
        return web.json_response({})

    async def ask(folder: Path) -> None:
        (folder / "team-a").write_text("admin-key=secret\n")
        async with serving(other) as port:

            async def redirects(_: web.Request) -> web.Response:
                raise web.HTTPTemporaryRedirect(f"http://127.0.0.1:{port}/steal")

            async with serving(redirects) as first:
                channel = opened(keys=folder)
                with pytest.raises(EngineRefusedError, match="307"):
                    await channel.get(
                        "127.0.0.1", first, "/v2/models/rank/config", namespace="team-a"
                    )
                with pytest.raises(EngineRefusedError, match="307"):
                    await channel.post(
                        "127.0.0.1", first, LOAD, {}, namespace="team-a", timeout_seconds=5
                    )

    asyncio.run(ask(tmp_path))
    assert visited == []


def test_a_page_without_end_is_left_after_a_mebibyte() -> None:
    """No more is taken than the bound and what is on its way."""
    sent = [0]

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            for _ in range(1 << 14):
                await answer.write(b" " * (1 << 16))
                sent[0] += 1 << 16
        except (ConnectionError, asyncio.CancelledError):
            pass
        return answer

    with pytest.raises(EngineRefusedError, match="longer than 1048576 bytes"):
        get(endless)
    assert sent[0] < 16 << 20


def test_a_small_page_that_unpacks_to_a_large_one_is_not_unpacked() -> None:
    """What is compressed is no JSON."""

    async def bomb(_: web.Request) -> web.Response:
        return web.Response(
            body=gzip.compress(b" " * (64 << 20)), headers={"Content-Encoding": "gzip"}
        )

    with pytest.raises(EngineRefusedError, match="no JSON"):
        get(bomb)


@pytest.mark.parametrize(
    "body", [b"", b"nothing", b"[" * 100_000, b'{"a": ' + b"9" * 100_000 + b"}"]
)
def test_an_answer_that_is_none_is_refused(body: bytes) -> None:
    """Also one that would take the parser down."""

    async def answers(_: web.Request) -> web.Response:
        return web.Response(body=body)

    with pytest.raises(EngineRefusedError, match="no JSON"):
        get(answers)


def test_an_answer_that_does_not_come_is_waited_for_five_seconds(monkeypatch) -> None:
    """Here a part of one; the bound is of the whole answer."""
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.3)

    async def drips(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(20):
            await answer.write(b" ")
            await asyncio.sleep(0.1)
        return answer

    with pytest.raises(ClusterUnavailableError, match="no answer in time"):
        get(drips)


def test_addresses_outside_of_the_ranges_are_never_asked() -> None:
    """Nor what is no address: a name would be looked up."""
    asked = []

    async def answers(_: web.Request) -> web.Response:
        asked.append(1)
        return web.json_response({})

    with pytest.raises(PermissionDeniedError, match="in none of the ranges"):
        get(answers, "10.0.0.0/8", "fd00::/8")
    for name in ("localhost", "127.0.0.1@10.1.1.1", ""):
        with pytest.raises(PermissionDeniedError, match="is no address"):
            asyncio.run(opened().get(name, 80, "/", namespace="team-a"))
    assert asked == []


def test_proxy_variables_are_not_read(monkeypatch) -> None:
    """A proxy would see keys, and go where ranges forbid."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def answers(_: web.Request) -> web.Response:
        return web.json_response({"direct": True})

    assert get(answers) == {"direct": True}


def test_a_range_that_is_none_is_refused_with_the_flag() -> None:
    """By the name that the administrator wrote it under."""
    with pytest.raises(InvalidInputError, match="--engine-range"):
        engine_options("--engine-range", ["10.0.0.1/8"])


class Server:
    """A model server of the test's own: what it was sent, and what it answers."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.config: Any = json.loads(json.dumps(CONFIG if config is None else config))
        self.stats: Any = STATS
        self.requests: list[tuple[str, str, dict[str, str]]] = []

    async def __call__(self, request: web.Request) -> web.Response:
        """Answer as the model repository API does."""
        self.requests.append((request.method, request.path, dict(request.headers)))
        if request.method == "POST":
            body = await request.json()
            self.config = json.loads(body["parameters"]["config"])
            return web.Response()
        return web.json_response(self.stats if request.path.endswith("stats") else self.config)


def pod(**status: Any) -> dict[str, Any]:
    """A Ready pod at loopback."""
    return {
        "metadata": {"namespace": "team-a", "name": "rank-0", "uid": "p-1"},
        "spec": {"containers": []},
        "status": {
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            **status,
        },
    }


class Cluster:
    """The API server as far as a pod is asked for."""

    def __init__(self, item: dict[str, Any]) -> None:
        self.item = item

    async def get(self, path: str) -> dict[str, Any]:
        """The pod as it is now."""
        assert path == "/api/v1/namespaces/team-a/pods/rank-0"
        return self.item

    def permitted(self, namespace: str) -> Any:
        """So many seconds."""
        assert namespace == "team-a"
        return nullcontext(5.0)


def repository(
    item: dict[str, Any], now: dict[str, Any] | None = None, keys: Path | None = None
) -> ModelRepository:
    """What speaks to that pod. now: as the API server has it, where that is another."""
    record = pod_record(item, None)
    client: Any = Cluster(item if now is None else now)
    return ModelRepository(opened(keys=keys), client, lambda *_: record)


def with_server(server: Server, models: ModelRepository, limits: BatcherLimits | None) -> bool:
    """Set limits on it."""

    async def run() -> bool:
        async with serving(server) as port:
            return await models.set(REF, "rank-0", port, "rank", limits)

    return asyncio.run(run())


def test_limits_are_set_with_all_else_as_it_was_and_put_back_to_the_letter() -> None:
    """Whose they are stands in the model's own parameters until they are put back."""
    server, models = Server(), repository(pod())
    assert with_server(server, models, WANTED)
    assert server.config["max_batch_size"] == 8
    assert server.config["dynamic_batching"] == {
        "preferred_batch_size": [8],
        "max_queue_delay_microseconds": 5000,
        "default_queue_policy": {"max_queue_size": 64},
    }
    assert server.config["instance_group"] == CONFIG["instance_group"]
    parameters = server.config["parameters"]
    assert parameters["own"] == {"string_value": "kept"}
    assert parameters[OWNER_PARAMETER] == {"string_value": "team-a/rank/u-1"}
    assert not with_server(server, models, WANTED)
    assert with_server(server, models, WANTED._replace(max_batch_size=16))
    assert with_server(server, models, None)
    assert server.config == CONFIG
    assert not with_server(server, models, None)


def test_what_is_read_is_what_the_server_has_and_has_counted() -> None:
    """Limits, instances, requests, and executions by size with all that they take."""
    server, models = Server(), repository(pod())

    async def read() -> Any:
        async with serving(server) as port:
            return await models.read(REF, "rank-0", port, "rank")

    found = asyncio.run(read())
    assert found.limits == BatcherLimits(4, 20000, 16)
    assert (found.instances, found.owner, found.former_max_batch_size) == (2, Owner.NOBODY, 4)
    assert (found.requests, found.request_microseconds, found.failed) == (7, 9000, 1)
    assert found.batches == {4: (3, 603)}


def test_the_key_goes_with_changes_to_its_own_namespace_alone(tmp_path: Path) -> None:
    """A reading has none, and another namespace's is not taken."""
    (tmp_path / "team-a").write_text("admin-key=of-a\n")
    (tmp_path / "team-b").write_text("admin-key=of-b\n")
    server = Server()
    with_server(server, repository(pod(), keys=tmp_path), WANTED)
    keys = [(method, headers.get("admin-key")) for method, _, headers in server.requests]
    assert keys == [("GET", None), ("POST", "of-a")]


@pytest.mark.parametrize(
    "now",
    [
        pytest.param({"metadata": {"uid": "p-2"}}, id="another-pod"),
        pytest.param({"metadata": {"deletionTimestamp": "2026-11-25T00:00:00Z"}}, id="deleted"),
        pytest.param({"status": {"conditions": []}}, id="not-ready"),
        pytest.param({"status": {"phase": "Failed"}}, id="finished"),
        pytest.param({"spec": {"hostNetwork": True}}, id="address-of-its-node"),
        pytest.param(
            {"metadata": {"ownerReferences": [{"controller": True, "uid": "o-2"}]}}, id="not-owned"
        ),
    ],
)
def test_a_pod_that_is_not_what_was_read_gets_nothing(now: dict[str, Any]) -> None:
    """An address may be another pod's by now: it is asked for before each change."""
    item = pod()
    changed = {part: {**item[part], **now.get(part, {})} for part in item}
    server = Server()
    with pytest.raises((WriteConflictError, EngineRefusedError), match=r"any more|not ready"):
        with_server(server, repository(item, changed), WANTED)
    assert server.requests == []


def test_limits_of_another_resource_are_left_alone() -> None:
    """Whoever came first keeps them."""
    owned = {**CONFIG, "parameters": {OWNER_PARAMETER: {"string_value": "team-a/other/u-9"}}}
    server = Server(owned)
    with pytest.raises(WriteConflictError, match="another one"):
        with_server(server, repository(pod()), WANTED)
    assert server.config == owned


@pytest.mark.parametrize(
    "config",
    [
        pytest.param([], id="no-object"),
        pytest.param({"max_batch_size": 4}, id="no-dynamic-batching"),
        pytest.param({**CONFIG, "max_batch_size": -1}, id="negative"),
        pytest.param({**CONFIG, "max_batch_size": 1e300}, id="no-integer"),
        pytest.param({**CONFIG, "max_batch_size": True}, id="truth"),
        pytest.param({**CONFIG, "dynamic_batching": {"default_queue_policy": 7}}, id="policy"),
        pytest.param(
            {**CONFIG, "dynamic_batching": {"max_queue_delay_microseconds": 1 << 60}}, id="huge"
        ),
    ],
)
def test_a_configuration_that_is_none_is_refused(config: Any) -> None:
    """With an error of the package's own, and nothing is sent."""
    server = Server(config)
    server.config = config
    with pytest.raises(ClusterError):
        with_server(server, repository(pod()), WANTED)
    assert [method for method, *_ in server.requests] == ["GET"]


def test_what_a_pod_says_stood_before_is_believed_within_bounds() -> None:
    """A former state that is none is not put back."""
    for told in ("[", "[0, 1, 2]", '["x"]', "null", "[1, 2]"):
        config = {
            **CONFIG,
            "parameters": {
                OWNER_PARAMETER: {"string_value": "team-a/rank/u-1"},
                FORMER_PARAMETER: {"string_value": told},
            },
        }
        server = Server(config)
        assert not with_server(server, repository(pod()), None)
        assert server.config == config


def test_a_pod_without_an_address_of_its_own_is_not_read() -> None:
    """With its node's network its address is of everything there."""
    record = replace(pod_record(pod(), None), address=None)
    client: Any = Cluster(pod())
    models = ModelRepository(opened(), client, lambda *_: record)
    with pytest.raises(ClusterError, match="no address of its own"):
        asyncio.run(models.read(REF, "rank-0", 1, "rank"))
