"""Servers that a tenant wrote himself: what they answer, or do not, is their own trouble alone."""

import asyncio
import copy
from typing import Any

import pytest
from aiohttp import web
from tests.features.dynamic_batches.test_engine_channel import (
    CONFIG,
    REF,
    STATS,
    WANTED,
    Server,
    opened,
    pod,
    repository,
    serving,
    with_server,
)

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.engines import channel as module
from servingslo.errors import ClusterUnavailableError, EngineRefusedError


def deep(levels: int) -> Any:
    """A configuration within a configuration, and so on."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def queue_of_none(config: dict[str, Any]) -> None:
    """As if nobody had ever given one."""
    config["dynamic_batching"]["default_queue_policy"] = None


def deep_within(config: dict[str, Any]) -> None:
    """Read by the parser, and too deep to be copied."""
    config["more"] = deep(600)


@pytest.mark.parametrize("change", [queue_of_none, deep_within])
def test_a_configuration_that_cannot_be_put_back_is_a_refusal(change) -> None:
    """Any other error would keep the limits of all other tenants from being put back."""
    server, models = Server(), repository(pod())
    assert with_server(server, models, WANTED)
    change(server.config)
    with pytest.raises(EngineRefusedError, match="rank-0"):
        with_server(server, models, None)


@pytest.mark.parametrize(
    ("config", "stats"),
    [
        ({"max_batch_size": 513}, {}),
        ({"instance_group": [1]}, {}),
        ({"instance_group": [{"gpus": 1}]}, {}),
        ({}, {"inference_stats": [1]}),
        ({}, {"inference_stats": {"success": 1}}),
        ({}, {"batch_stats": [1]}),
        ({}, {"batch_stats": [{"compute_infer": "x"}]}),
    ],
)
def test_an_answer_of_another_form_is_a_refusal(config, stats) -> None:
    """Its parts are read where they are, and are of what type they like."""
    server, models = Server({**CONFIG, **config}), repository(pod())
    server.stats = copy.deepcopy(STATS)
    server.stats["model_stats"][0] |= stats

    async def run() -> None:
        async with serving(server) as port:
            await models.read(REF, "rank-0", port, "rank")

    with pytest.raises(EngineRefusedError):
        asyncio.run(run())


def test_servers_that_do_not_answer_are_waited_for_once(monkeypatch) -> None:
    """By the hundred they would hold up the loop of everybody; other namespaces are asked."""
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.3)
    asked = []

    async def run() -> None:
        channel, answers = opened(), asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            asked.append(request.path)
            await answers.wait()
            return web.json_response({})

        async with serving(answer, "0.0.0.0") as port:  # noqa: S104 - all of loopback

            async def ask(namespace: str, last: int = 1) -> Any:
                return await channel.get(f"127.0.0.{last}", port, "/", namespace=namespace)

            found = await asyncio.gather(
                *(ask("a", 1 + n) for n in range(200)), return_exceptions=True
            )
            assert all(isinstance(one, ClusterUnavailableError) for one in found)
            # The first of them make room for others, until they are many. So all 200 together take
            # two timeouts.
            assert len(asked) < module.MOST_AT_ONCE + module.MOST_SILENT
            with pytest.raises(ClusterUnavailableError, match="no answer in time"):
                await ask("b")
            answers.set()
            monkeypatch.setattr(module, "TIMEOUT_SECONDS", 60.0)
            with pytest.raises(ClusterUnavailableError, match="it gave no answer in time"):
                await ask("b")
            assert await ask("b", 2) == {}
            with pytest.raises(ClusterUnavailableError, match="servers of a gave no answer"):
                await ask("a", 250)
            later = SystemClock.elapsed_seconds() + module.SILENT_SECONDS
            monkeypatch.setattr(SystemClock, "elapsed_seconds", lambda: later)
            assert await ask("a") == {}

    asyncio.run(run())
