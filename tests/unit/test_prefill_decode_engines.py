"""KV caches pass from prefill to decode engines, and a router forwards requests to both."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.test_engine_http import listening, served, url_of

from servingslo_lab.rig.simulated.engine_host import EngineHost
from servingslo_lab.rig.simulated.engine_pods import EnginePod
from servingslo_lab.rig.simulated.kv_transfers import (
    Connector,
    Transfer,
)
from servingslo_lab.rig.simulated.prefill_decode_router import Route, Router

SLOW = Connector(transfer=Transfer(fixed_seconds=0.2, tokens_per_second=10_000.0))
KEEP = {"do_remote_decode": True, "do_remote_prefill": False}
PROMPT, OUTPUT = 1000, 20


def engine(name: str, app: str, **changes: object) -> EnginePod:
    """A listening pod of a Deployment, with a slow connector."""
    return listening(name, **{"labels": {"app": app}, "connector": SLOW, **changes})


async def sample(host: EngineHost, pod: EnginePod, name: str, **labels: str) -> float:
    """A value of a pod's page."""
    page = await host.page(pod.key) or ""
    return next(
        one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
        if one.name == name and labels.items() <= one.labels.items()
    )


async def prefilled(session: aiohttp.ClientSession, pod: EnginePod) -> dict:
    """The answer of a prefill engine that keeps the cache."""
    document = {"prompt_tokens": PROMPT, "max_tokens": 1, "kv_transfer_params": KEEP}
    return await (await session.post(url_of(pod), json=document)).json()


def decoding(parameters: object) -> dict:
    """A request for the rest of the answer."""
    return {"prompt_tokens": PROMPT, "max_tokens": OUTPUT, "kv_transfer_params": parameters}


async def test_a_prompt_computed_elsewhere_is_read_and_not_computed_again() -> None:
    """Decode waits for the transfer; its page has the tokens as external, and the transfer."""
    one, other = engine("p-0", "prefill"), engine("d-0", "decode")
    async with served(one, other) as (host, session):
        first = await prefilled(session, one)
        told = first["kv_transfer_params"]
        assert first["usage"]["completion_tokens"] == 1
        assert (told["do_remote_prefill"], told["remote_host"]) == (True, one.address)
        assert len(told["remote_block_ids"]) == 63  # of 16 tokens each
        answer = await (await session.post(url_of(other), json=decoding(told))).json()
        # 0.2 s and 1,000 tokens at 10,000 a second; to compute them takes 95 ms more.
        assert 0.3 < answer["engine"]["ttft_seconds"] < 0.35
        assert answer["usage"]["completion_tokens"] == OUTPUT
        for name, labels, value in (
            ("vllm:nixl_xfer_time_seconds_count", {}, 1.0),
            ("vllm:nixl_xfer_time_seconds_sum", {}, 0.3),
            ("vllm:external_prefix_cache_hits_total", {}, 999.0),
            ("vllm:prefix_cache_hits_total", {}, 0.0),
            ("vllm:prompt_tokens_by_source_total", {"source": "external_kv_transfer"}, 999.0),
            ("vllm:prompt_tokens_by_source_total", {"source": "local_compute"}, 1.0),
            ("vllm:prompt_tokens_cached_total", {}, 999.0),
        ):
            assert await sample(host, other, name, **labels) == pytest.approx(value), name
        assert await sample(host, one, "vllm:prompt_tokens_cached_total") == 0.0


async def test_a_prefill_pod_that_ends_keeps_its_caches_until_they_are_read() -> None:
    """With a graceful end; without one, the request fails, or its prompt is computed again."""
    again = dataclasses.replace(SLOW, recompute=True)
    for drain, connector, answered in ((True, SLOW, 999.0), (False, SLOW, None), (False, again, 0)):
        one = engine("p-0", "prefill", drain=drain)
        other = engine("d-0", "decode", connector=connector)
        async with served(one, other) as (host, session):
            told = (await prefilled(session, one))["kv_transfer_params"]
            host.set_pods([other])
            try:
                answer = await session.post(url_of(other), json=decoding(told))
                assert answer.status == 200
                cached = await sample(host, other, "vllm:prompt_tokens_cached_total")
            except aiohttp.ClientError:
                cached = None
            assert cached == answered
            assert host.has_left(one.key, one.incarnation)


@contextlib.asynccontextmanager
async def routed(
    *pods: EnginePod, direct_below: int = 0
) -> AsyncIterator[tuple[EngineHost, aiohttp.ClientSession, Router, str]]:
    """A router in front of these pods."""
    async with served(*pods) as (host, session):
        route = Route(
            namespace=pods[0].namespace, prefill="prefill", decode="decode",
            direct_below=direct_below,
        )  # fmt: skip
        router = Router(route, session)
        router.set_pods(pods)
        runner = web.AppRunner(router.application(), handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address, port = runner.addresses[0][:2]
        yield host, session, router, f"http://{address}:{port}/v1/completions"
        await runner.cleanup()


async def test_requests_pass_prefill_and_short_ones_go_to_decode() -> None:
    """Streams are passed on; the least loaded pod is chosen; short prompts skip prefill."""
    pods = [engine("p-0", "prefill"), engine("d-0", "decode"), engine("d-1", "decode")]
    async with routed(*pods, direct_below=100) as (host, session, router, url):
        document = {"prompt_tokens": PROMPT, "max_tokens": OUTPUT, "stream": True}
        answers = await asyncio.gather(*(session.post(url, json=document) for _ in range(4)))
        texts = [await one.text() for one in answers]
        short = await session.post(url, json={"prompt_tokens": 10, "max_tokens": 2})
        assert all("[DONE]" in text and text.startswith("data: {}") for text in texts)
        assert (await short.json())["usage"]["prompt_tokens"] == 10
        assert await sample(host, pods[0], "vllm:prompt_tokens_total") == 4 * PROMPT
    counts = router.counts
    assert (counts.requests, counts.through_prefill, counts.failed) == (5, 4, 0)
    assert sorted(counts.served.values()) == [2, 3, 4]
    assert not any(counts.in_flight.values())


async def test_no_request_is_lost_while_pods_of_both_roles_end() -> None:
    """Pods that drain finish what they have; what they refuse goes to others."""
    stays = [engine("p-0", "prefill", drain=True), engine("d-0", "decode", drain=True)]
    ends = [engine("p-1", "prefill", drain=True), engine("d-1", "decode", drain=True)]
    async with routed(*stays, *ends) as (host, session, router, url):
        document = {"prompt_tokens": PROMPT, "max_tokens": OUTPUT, "stream": True}

        async def ask(delay: float) -> str:
            await asyncio.sleep(delay)
            return await (await session.post(url, json=document)).text()

        calls = [asyncio.create_task(ask(0.05 * i)) for i in range(20)]
        await asyncio.sleep(0.5)
        host.set_pods(stays)
        await asyncio.sleep(0.2)  # the router learns it later
        router.set_pods(stays)
        texts = await asyncio.gather(*calls)
    assert all("[DONE]" in text for text in texts)
    assert router.counts.failed == 0
    assert all(router.counts.served[pod.key] for pod in ends)
