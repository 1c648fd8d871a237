r"""The engine host: one simulated engine for every Ready pod of the rig's cluster, over HTTP.

Start it as a separate process, so that its work does not disturb measurements:

    python -m servingslo_lab.rig.simulated.engines --kubeconfig FILE [--port N] \
        [--traffic FILE.json]

or run `EngineHost(...)` in an event loop. It ends on SIGINT and SIGTERM and leaves nothing behind.
Paths: `/sd` (Prometheus HTTP discovery), `/metrics/NAMESPACE/POD`, `/dcgm`, `/envoy`, `/healthz`,
`/stats`; POST `/traffic` begins traffic, DELETE `/traffic/NAME` ends it; POST `/faults` breaks the
metrics or the engine of one pod. In addition, every engine listens on its pod's own address:
`engine_http`.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from servingslo.errors import InvalidInputError, ServingSLOError
from servingslo_lab.rig.simulated.engine_host import EngineHost, Fault
from servingslo_lab.rig.simulated.engine_http import EngineDoors
from servingslo_lab.rig.simulated.engine_pods import PodWatch
from servingslo_lab.rig.simulated.traffic import TrafficPlan
from servingslo_lab.rig.waiting import until_signalled

_CONTENT_TYPE = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}

_PLAN: TypeAdapter[TrafficPlan] = TypeAdapter(TrafficPlan)
_FAULT: TypeAdapter[Fault] = TypeAdapter(Fault)


def traffic_plan(document: Mapping[str, Any]) -> TrafficPlan:
    """A plan from JSON. Raises: InvalidInputError naming field, value and allowed values."""
    try:
        return _PLAN.validate_python(dict(document))
    except ValidationError as error:
        raise _invalid(error) from error


def _invalid(error: ValidationError) -> InvalidInputError:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return InvalidInputError(where, first.get("input"), first["msg"])


def web_application(host: EngineHost) -> web.Application:  # noqa: C901 - one closure a path
    """The host's HTTP interface."""

    async def discovery(request: web.Request) -> web.Response:
        return web.json_response(host.discovery(request.host))

    async def metrics(request: web.Request) -> web.Response:
        key = f"{request.match_info['namespace']}/{request.match_info['pod']}"
        page = await host.page(key)
        if page is None:
            return web.Response(status=404, text=f"no engine runs for {key}\n")
        if host.failing(key):
            return web.Response(status=500, text="broken on purpose\n")
        return web.Response(text=page, headers=_CONTENT_TYPE)

    async def gpus(_: web.Request) -> web.Response:
        return web.Response(text=host.gpu_page(), headers=_CONTENT_TYPE)

    async def gateway(_: web.Request) -> web.Response:
        return web.Response(text=host.gateway_page(), headers=_CONTENT_TYPE)

    async def health(_: web.Request) -> web.Response:
        return web.Response(status=200 if host.synced else 503, text="ok\n")

    async def stats(_: web.Request) -> web.Response:
        return web.json_response(host.stats())

    async def begin(request: web.Request) -> web.Response:
        host.begin_traffic(traffic_plan(await request.json()))
        return web.json_response({})

    async def end(request: web.Request) -> web.Response:
        host.end_traffic(request.match_info["name"])
        return web.json_response({})

    async def fault(request: web.Request) -> web.Response:
        try:
            host.set_fault(_FAULT.validate_python(await request.json()))
        except ValidationError as error:
            raise _invalid(error) from error
        return web.json_response({})

    application = web.Application(middlewares=[_answer_bad_input])
    application.add_routes(
        [
            web.get("/sd", discovery),
            web.get("/metrics/{namespace}/{pod}", metrics),
            web.get("/dcgm", gpus),
            web.get("/envoy", gateway),
            web.get("/healthz", health),
            web.get("/stats", stats),
            web.post("/traffic", begin),
            web.delete("/traffic/{name}", end),
            web.post("/faults", fault),
        ]
    )
    return application


@web.middleware
async def _answer_bad_input(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)  # type: ignore[no-any-return]
    except (ServingSLOError, json.JSONDecodeError) as error:
        return web.json_response({"error": str(error)}, status=400)


async def serve(
    host: EngineHost, *, kubeconfig: str, port: int, plans: Sequence[TrafficPlan] = ()
) -> None:
    """Watch the cluster and answer on 127.0.0.1:port until cancelled; prints the address."""
    runner = web.AppRunner(web_application(host), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        address, bound = runner.addresses[0][:2]
        print(f"engines at http://{address}:{bound}", flush=True)  # noqa: T201 - for who started it
        for plan in plans:
            host.begin_traffic(plan)
        async with asyncio.TaskGroup() as group:
            group.create_task(host.run())
            group.create_task(EngineDoors(host).run())
            group.create_task(PodWatch(kubeconfig, host.set_pods).run())
    finally:
        await runner.cleanup()


async def _main(arguments: argparse.Namespace) -> None:
    plans = []
    if arguments.traffic is not None:
        document = json.loads(arguments.traffic.read_text(encoding="utf-8"))
        plans = [traffic_plan(one) for one in document]
    host = EngineHost(exported_gpu_labels=arguments.exported_gpu_labels)
    await until_signalled(
        serve(host, kubeconfig=arguments.kubeconfig, port=arguments.port, plans=plans)
    )


def main() -> None:
    """Run the host as a process."""
    parser = argparse.ArgumentParser(description="Simulated engines for every Ready pod.")
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--traffic", type=Path, help="JSON list of traffic plans to begin with")
    parser.add_argument("--exported-gpu-labels", action="store_true")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
