"""Engines behind HTTP: every engine listens on its pod's own loopback address.

`POST /v1/completions` with `prompt_tokens` and `max_tokens` takes as long as the simulated engine.
The whole answer is sent at the end, or with `stream` its first part at the first token. 503 if the
engine's own limit refuses, 400 if the request can never fit. If a client disconnects, its request
is aborted. A failing pod closes its connections without an answer. `kv_transfer_params` pass KV
caches between engines: `kv_transfers`. `POST /sleep` and `/wake_up` are vLLM's: meanwhile a request
waits, and `/health` answers.
"""

import asyncio
import contextlib
import ipaddress
import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from servingslo_lab.rig.simulated.direct_requests import LOST, DirectRequest
from servingslo_lab.rig.simulated.engine_host import EngineHost
from servingslo_lab.rig.simulated.kv_transfers import CacheAddress, parameters_of
from servingslo_lab.sim.replicas.engine import Outcome, RequestRecord

_LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
_STATUSES = {Outcome.FINISHED: 200, Outcome.REJECTED: 503, Outcome.INVALID: 400}
_LARGEST_BODY_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Door:
    """The listening address of one incarnation of a pod's engine."""

    key: str
    incarnation: str
    address: str
    port: int


class EngineDoors:
    """Opens and closes the listeners of engines as pods come and go."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._open: dict[Door, web.AppRunner] = {}
        self._listening: dict[Door, web.TCPSite] = {}

    async def run(self) -> None:
        """Follow the host's pods until cancelled, then close everything."""
        try:
            while True:
                self._host.changed.clear()
                await self._follow()
                await self._host.changed.wait()
        finally:
            for runner in self._open.values():
                await runner.cleanup()

    async def _follow(self) -> None:
        wanted = {
            Door(pod.key, pod.incarnation, pod.address, pod.port)
            for pod in self._host.pods()
            if _is_loopback(pod.address)
        }
        for door in self._open.keys() - wanted:
            # Another pod may have its address by now; it still answers its open requests.
            if site := self._listening.pop(door, None):
                await site.stop()
            if self._host.has_left(door.key, door.incarnation):
                await self._open.pop(door).cleanup()
        for door in wanted - self._open.keys():
            runner = web.AppRunner(
                _application(self._host, door),
                access_log=None,
                handler_cancellation=True,
                shutdown_timeout=0.0,
            )
            await runner.setup()
            self._open[door] = runner
            site = web.TCPSite(runner, door.address, door.port)
            with contextlib.suppress(OSError):  # the pod answers nothing, and the gateway sees it
                await site.start()
                self._listening[door] = site


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in _LOOPBACK
    except ValueError:
        return False


def _application(host: EngineHost, door: Door) -> web.Application:
    async def complete(request: web.Request) -> web.StreamResponse:
        try:
            document = await request.json()
            prompt, output = int(document["prompt_tokens"]), int(document["max_tokens"])
        except (ValueError, KeyError, TypeError):
            return _error(400, "prompt_tokens and max_tokens: two integers")
        transfer = document.get("kv_transfer_params") or {}
        if not isinstance(transfer, dict):
            return _error(400, "kv_transfer_params: an object")
        await host.awake(door.key)
        if host.breaks(door.key):
            return _error(500, "broken on purpose")
        sent = host.submit(door.key, prompt_tokens=prompt, output_tokens=output, transfer=transfer)
        if sent is None:
            return _error(503, "no engine")
        try:
            return await _answer(
                request, sent, stream=bool(document.get("stream")), address=door.address
            )
        except (asyncio.CancelledError, ConnectionError):
            host.abort(door.key, sent)
            raise

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=await host.page(door.key) or "")

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="")

    application = web.Application(client_max_size=_LARGEST_BODY_BYTES)
    application.add_routes(
        [
            web.post("/v1/completions", complete),
            web.get("/metrics", metrics),
            web.get("/health", health),
            *_sleep_routes(host, door.key),
        ]
    )
    return application


def _sleep_routes(host: EngineHost, key: str) -> list[web.RouteDef]:
    """Source: vllm/entrypoints/serve/dev/sleep/api_router.py."""

    async def sleep(request: web.Request) -> web.Response:
        host.put_to_sleep(key, asleep=request.query.get("level", "1") != "0")
        return web.Response()

    async def wake_up(_: web.Request) -> web.Response:
        host.put_to_sleep(key, asleep=False)
        return web.Response()

    async def is_sleeping(_: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": host.sleeps(key)})

    return [
        web.post("/sleep", sleep),
        web.post("/wake_up", wake_up),
        web.get("/is_sleeping", is_sleeping),
    ]


async def _answer(
    request: web.Request, sent: DirectRequest, *, stream: bool, address: str
) -> web.StreamResponse:
    await sent.started.wait()
    if not stream or sent.record.done():
        return _whole(request, await sent.record, sent.kept, address)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"data: {}\n\n")
    record = await sent.record
    if record.outcome in LOST:
        _break_off(request)
        return response
    await response.write(f"data: {json.dumps(_usage(record))}\n\n".encode())
    await response.write_eof(b"data: [DONE]\n\n")
    return response


def _whole(
    request: web.Request, record: RequestRecord, kept: CacheAddress | None, address: str
) -> web.Response:
    if record.outcome in LOST:
        _break_off(request)
        return web.Response(status=500)
    if record.outcome is not Outcome.FINISHED:
        return _error(_STATUSES[record.outcome], f"the request was {record.outcome.value}")
    parameters = None if kept is None else parameters_of(kept, record.prompt_tokens, address)
    return web.json_response({**_usage(record), "kv_transfer_params": parameters})


def _break_off(request: web.Request) -> None:
    """Close the connection without an answer, like a killed process."""
    if request.transport is not None:
        request.transport.abort()


def _usage(record: RequestRecord) -> dict[str, Any]:
    """The end of an answer, with the engine's own times."""
    return {
        "usage": {
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.output_tokens,
        },
        "engine": {
            "ttft_seconds": record.ttft_seconds,
            "seconds": record.finish_seconds - record.arrival_seconds,
        },
    }


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)
