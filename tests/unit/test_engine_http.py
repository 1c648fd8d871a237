"""Engines behind HTTP: answers take the simulated time, limits refuse, and deaths are seen."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.unit.test_engine_host import pod

from servingslo_lab.rig.simulated.engine_host import EngineHost
from servingslo_lab.rig.simulated.engine_http import EngineDoors
from servingslo_lab.rig.simulated.engine_pods import EnginePod
from servingslo_lab.rig.simulated.http_clients import ClientPlan, Clients, Ending, read_records
from servingslo_lab.rig.simulated.job_clients import Job, JobPlan
from servingslo_lab.rig.simulated.traffic import TrafficPlan
from servingslo_lab.rig.waiting import free_port

PATIENCE_SECONDS = 20.0


def listening(name: str = "chat-0", **changes: object) -> EnginePod:
    """A ready pod with a loopback address of its own."""
    address = (
        f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(250)}"
    )
    return pod(name, **{"address": address, "port": free_port(), **changes})


def url_of(one: EnginePod) -> str:
    """Where it completes."""
    return f"http://{one.address}:{one.port}/v1/completions"


@contextlib.asynccontextmanager
async def served(*pods: EnginePod) -> AsyncIterator[tuple[EngineHost, aiohttp.ClientSession]]:
    """A host with these pods on the wall clock, once they listen, and a client."""
    host = EngineHost()
    host.set_pods(pods)
    tasks = [asyncio.create_task(one) for one in (host.run(), EngineDoors(host).run())]
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for one in pods:
            await _listens(session, one)
        yield host, session
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _listens(session: aiohttp.ClientSession, one: EnginePod) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                await session.get(f"http://{one.address}:{one.port}/health")
                return
            await asyncio.sleep(0.01)


def body(tokens: int = 20) -> dict[str, int]:
    """A request for so many tokens."""
    return {"prompt_tokens": 100, "max_tokens": tokens}


async def _runs(host: EngineHost, one: EnginePod, count: int) -> None:
    """Wait until so many requests run in a pod's engine, by its own metrics."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            page = (await host.page(one.key) or "").splitlines()
            line = next((x for x in page if x.startswith("vllm:num_requests_running{")), "")
            if line and float(line.split()[-1]) == count:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("drain", "status"),
    [pytest.param(False, None, id="killed"), pytest.param(True, 200, id="drained")],
)
async def test_a_pod_that_goes_breaks_off_or_finishes(drain: bool, status: int | None) -> None:
    """Without draining the connection breaks; with it the answer comes, and nobody listens then."""
    one = listening(drain=drain)
    async with served(one) as (host, session):
        call = asyncio.ensure_future(session.post(url_of(one), json=body(40)))
        await _runs(host, one, 1)
        host.set_pods([])
        if status is None:
            with pytest.raises(aiohttp.ClientError):
                await call
        else:
            assert (await call).status == status
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    await session.get(f"http://{one.address}:{one.port}/health")
                except aiohttp.ClientConnectionError:
                    break
                await asyncio.sleep(0.02)


async def test_clients_write_down_what_they_saw(tmp_path: Path) -> None:
    """Every request of a trace has a record; what is refused is sent again as often as planned."""
    trace = tmp_path / "trace.csv"
    rows = [f"{0.02 * i:.2f},64,60" for i in range(12)]
    trace.write_text("arrival_seconds,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    one = listening(max_queued=1)
    traffic = TrafficPlan(
        name="t", namespace="llm", selector={}, trace=trace, duration_seconds=0.25
    )
    path = tmp_path / "records.jsonl"
    async with served(one):
        with path.open("w") as file:
            url = f"http://{one.address}:{one.port}"
            await Clients(ClientPlan(traffic=traffic, url=url, retries=1), file).run()
    records = read_records(path)
    sent = len(traffic.arrivals())
    assert len(records) == sent >= 12
    finished = [one for one in records if one.ending is Ending.FINISHED]
    refused = [one for one in records if one.ending is Ending.REFUSED]
    assert len(finished) + len(refused) == sent
    assert refused
    assert all(one.attempts == one.refusals == 2 for one in refused)
    assert all(0 < (one.ttft_seconds or 0) <= one.seconds for one in finished)
    assert all(one.meets(60.0, 60.0) for one in finished)
    assert not any(one.meets(60.0, 60.0) for one in refused)


async def test_a_job_sends_what_was_refused_again_until_all_is_served(tmp_path: Path) -> None:
    """Six workers on a bound of two: each request is served once, later ones after refusals."""
    one = listening(max_queued=2)
    path = tmp_path / "records.jsonl"
    plan = JobPlan(
        url=url_of(one).removesuffix("/v1/completions"), requests=[(100, 30)] * 12, workers=6,
        begin_seconds=0.2, pause_seconds=0.05, headers={"x-class": "job"},
    )  # fmt: skip
    async with served(one):
        with path.open("w", encoding="utf-8") as file:
            await Job(plan, file).run()
    records = read_records(path)
    assert [one.ending for one in records] == [Ending.FINISHED] * 12
    assert sum(one.refusals for one in records) > 0
    assert all(one.attempts == one.refusals + 1 for one in records)
    assert min(one.arrival_seconds for one in records) >= 0.2
