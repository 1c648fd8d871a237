"""A router in front of prefill and decode engines, which forwards as llm-d's routing sidecar does.

    python -m servingslo_lab.rig.simulated.prefill_decode_router --kubeconfig FILE \
        --namespace N --prefill APP --decode APP [--direct-below TOKENS] [--port N]

A request goes to a prefill engine with one output token and `do_remote_decode`, and then, with the
`kv_transfer_params` of the answer, to a decode engine, whose stream is passed on. Each time the
ready pod with the fewest requests in flight is chosen. A prompt below the bound, or one without a
ready prefill pod, goes to decode directly. An engine that refuses because its pod ends is replaced
by another one. `/stats` counts what happened.

Source: llm-d-inference-scheduler `pkg/sidecar/proxy/connector_nixlv2.go`.
"""

import argparse
import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from servingslo_lab.rig.simulated.engine_pods import EnginePod, PodWatch
from servingslo_lab.rig.waiting import until_signalled

_OK, _UNAVAILABLE = 200, 503
# An engine that ends is known to the router some time after it refuses.
_ATTEMPTS = 5
_PAUSE_SECONDS = 0.1
_LARGEST_BODY_BYTES = 65_536
_ASK_TO_KEEP: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which pods serve: by namespace and label `app`. direct_below: prompts that skip prefill."""

    namespace: str
    prefill: str
    decode: str
    direct_below: int = 0


@dataclass(slots=True)
class RouterCounts:
    """What happened. retried: calls that another engine got instead. failed: without an answer."""

    requests: int = 0
    through_prefill: int = 0
    retried: int = 0
    failed: int = 0
    in_flight: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)


class NoEngineError(Exception):
    """No engine of a role took the request."""


class Router:
    """Forwards requests to the ready pods of two Deployments."""

    def __init__(self, route: Route, session: aiohttp.ClientSession) -> None:
        self.counts = RouterCounts()
        self._route = route
        self._session = session
        self._pods: Sequence[EnginePod] = ()
        self.synced = asyncio.Event()

    def set_pods(self, pods: Sequence[EnginePod]) -> None:
        """Route to these pods from now on, if they are ready."""
        self.synced.set()
        self._pods = tuple(
            pod for pod in pods
            if pod.ready and pod.address and pod.namespace == self._route.namespace
        )  # fmt: skip

    def pods_of(self, app: str) -> list[EnginePod]:
        """The ready pods of a Deployment, the one with the fewest requests first."""
        load = self.counts
        found = [pod for pod in self._pods if pod.labels.get("app") == app]
        return sorted(found, key=lambda one: (load.in_flight[one.key], load.served[one.key]))

    def application(self) -> web.Application:
        """The router's HTTP interface."""
        application = web.Application(client_max_size=_LARGEST_BODY_BYTES)
        application.add_routes(
            [web.post("/v1/completions", self._complete), web.get("/stats", self._stats)]
        )
        return application

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            document = await request.json()
            prompt = int(document["prompt_tokens"])
        except (ValueError, KeyError, TypeError):
            return web.json_response({"error": "prompt_tokens: an integer"}, status=400)
        self.counts.requests += 1
        try:
            if prompt >= self._route.direct_below and self.pods_of(self._route.prefill):
                self.counts.through_prefill += 1
                parameters = await self._prefill(document)
                document = {**document, "kv_transfer_params": parameters}
            async with self._call(self._route.decode, document) as answer:
                return await _passed_on(request, answer)
        except (NoEngineError, aiohttp.ClientError, OSError):
            self.counts.failed += 1
            return web.json_response({"error": "no engine answered"}, status=502)

    async def _prefill(self, document: Mapping[str, Any]) -> Any:
        """The parameters of the KV cache that a prefill engine computed."""
        asked = {
            **document,
            "max_tokens": 1,
            "stream": False,
            "kv_transfer_params": dict(_ASK_TO_KEEP),
        }
        async with self._call(self._route.prefill, asked) as answer:
            if answer.status != _OK:
                raise NoEngineError
            return (await answer.json())["kv_transfer_params"]

    @contextlib.asynccontextmanager
    async def _call(
        self, app: str, document: Mapping[str, Any]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer of an engine; another one is tried while pods end or none is ready."""
        for attempt in range(_ATTEMPTS):
            pods = self.pods_of(app)
            if pods:
                with self._counted(pods[0]):
                    call = self._session.post(_url(pods[0]), json=document)
                    with contextlib.suppress(aiohttp.ClientConnectorError):
                        async with call as answer:
                            if answer.status != _UNAVAILABLE:
                                yield answer
                                return
            self.counts.retried += 1
            await asyncio.sleep(_PAUSE_SECONDS * 2**attempt)
        raise NoEngineError

    @contextlib.contextmanager
    def _counted(self, pod: EnginePod) -> Iterator[None]:
        self.counts.in_flight[pod.key] += 1
        self.counts.served[pod.key] += 1
        try:
            yield
        finally:
            self.counts.in_flight[pod.key] -= 1

    async def _stats(self, _: web.Request) -> web.Response:
        counts = self.counts
        return web.json_response(
            {
                "requests": counts.requests,
                "through_prefill": counts.through_prefill,
                "retried": counts.retried,
                "failed": counts.failed,
                "in_flight": {key: count for key, count in counts.in_flight.items() if count},
                "served": dict(counts.served),
            }
        )


def _url(pod: EnginePod) -> str:
    return f"http://{pod.address}:{pod.port}/v1/completions"


async def _passed_on(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Pass an answer on as it arrives; one that breaks off is broken off."""
    response = web.StreamResponse(
        status=answer.status, headers={"Content-Type": answer.content_type}
    )
    await response.prepare(request)
    try:
        async for part in answer.content.iter_any():
            await response.write(part)
    except (aiohttp.ClientError, OSError):
        if request.transport is not None:
            request.transport.abort()
        return response
    await response.write_eof()
    return response


async def _serve(arguments: argparse.Namespace) -> None:
    route = Route(
        namespace=arguments.namespace,
        prefill=arguments.prefill,
        decode=arguments.decode,
        direct_below=arguments.direct_below,
    )
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        router = Router(route, session)
        runner = web.AppRunner(router.application(), access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(PodWatch(arguments.kubeconfig, router.set_pods).run())
                await router.synced.wait()
                await web.TCPSite(runner, "127.0.0.1", arguments.port).start()
                address, bound = runner.addresses[0][:2]
                print(f"router at http://{address}:{bound}", flush=True)  # noqa: T201
        finally:
            await runner.cleanup()


def main() -> None:
    """Run the router as a process."""
    parser = argparse.ArgumentParser(description="A router for prefill and decode engines.")
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--prefill", required=True, help="label app of prefill pods")
    parser.add_argument("--decode", required=True, help="label app of decode pods")
    parser.add_argument("--direct-below", type=int, default=0, help="prompts that skip prefill")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    asyncio.run(until_signalled(_serve(parser.parse_args())))


if __name__ == "__main__":
    main()
