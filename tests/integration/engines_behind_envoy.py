"""Simulated engines behind a real Envoy, and a planner that reads both: no cluster is needed.

Envoy's clusters are named as Envoy Gateway names those of an HTTPRoute. What the planner reads are
the pages of Envoy and of the engines, through the operator's own reader.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
from tests.unit.managed_store import ManagedStore, Series, series_of
from tests.unit.test_engine_http import listening

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.prometheus.client import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.estimation.sample import PodSample
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits, Observation, Targets
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.runtimes.gateway_catalogue import gateway_profile
from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.gateways.slow_link import SlowLink
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.simulated.engine_host import EngineHost, Fault, FaultKind
from servingslo_lab.rig.simulated.engine_http import EngineDoors
from servingslo_lab.rig.simulated.engine_pods import EnginePod
from servingslo_lab.rig.waiting import free_port, http_get, wait_until

NAMESPACE, ROUTE = "inference", "chat"
TICK_SECONDS = 3.0
BODY = {"prompt_tokens": 100, "max_tokens": 20}
_CLUSTER = f"httproute/{NAMESPACE}/{ROUTE}/rule/0"
_PREFIX = "type.googleapis.com/envoy.extensions.filters"
_OLD_SECONDS = 3600.0


@dataclass
class World:
    """The engines, their links, Envoy's addresses, and everything that was decided."""

    host: EngineHost
    pods: tuple[EnginePod, ...]
    links: tuple[SlowLink, ...]
    url: str
    statistics_url: str
    targets: Targets
    state: PlannerState = field(default_factory=PlannerState)
    decisions: list[Decision] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def delay(self, seconds: float) -> None:
        """Let every byte between Envoy and engines take so long."""
        for link in self.links:
            link.delay_seconds = seconds

    def break_engines(self, share: float) -> None:
        """Let every engine answer this share of its requests with 500."""
        for pod in self.pods:
            fault = Fault(namespace=pod.namespace, pod=pod.name, kind=FaultKind.BROKEN, value=share)
            self.host.set_fault(fault)

    async def run(self, seconds: float, rate_per_second: float) -> list[Decision]:
        """Send requests evenly and decide every few seconds. The decisions of this time."""
        before = len(self.decisions)
        sending = asyncio.create_task(self._send(rate_per_second))
        try:
            for _ in range(int(seconds / TICK_SECONDS)):
                await asyncio.sleep(TICK_SECONDS)
                await self._decide()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        return self.decisions[before:]

    async def _send(self, rate_per_second: float) -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._request(session))
                await asyncio.sleep(1.0 / rate_per_second)

    async def _request(self, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{self.url}/v1/completions", json=BODY) as answer:
            await answer.read()
            self.statuses.append(answer.status)

    async def _decide(self) -> None:
        page = await asyncio.to_thread(http_get, self.statistics_url)
        now = SystemClock().now_seconds()
        series: list[Series] = series_of(page or "", now, namespace="gateway", pod="envoy-0")
        for pod in self.pods:
            own = await self.host.page(pod.key) or ""
            series += series_of(own, now, namespace=NAMESPACE, pod=pod.name)
        config = PrometheusConfig(url="http://pages.test", gateway=gateway_profile("envoy-gateway"))
        reader = PrometheusReader(config, client=ManagedStore(lambda: now, series))
        try:
            metrics = await asyncio.to_thread(reader._read)
        finally:
            reader.close()
        assert metrics.problem is None, metrics.problem
        assert metrics.gateways is not None
        observation = Observation(
            time_seconds=now,
            namespace=NAMESPACE,
            name=ROUTE,
            desired_replicas=len(self.pods),
            current_replicas=len(self.pods),
            runtime="vllm",
            pods=tuple(
                PodSample(
                    name=pod.name, ready=True, age_seconds=_OLD_SECONDS,
                    ready_for_seconds=_OLD_SECONDS, template_hash="a", image="vllm:1",
                    engines=tuple(
                        replace(
                            engine,
                            max_num_seqs=pod.limits.max_num_seqs,
                            max_num_batched_tokens=pod.limits.max_num_batched_tokens,
                        )
                        for engine in metrics.pods[NAMESPACE, pod.name].engines
                    ),
                )
                for pod in self.pods
            ),
            gateway=metrics.gateways[NAMESPACE, ROUTE],
        )  # fmt: skip
        limits = Limits(tick_seconds=TICK_SECONDS)
        decision, self.state = plan(observation, self.targets, limits, self.state, now)
        self.decisions.append(decision)


@contextlib.asynccontextmanager
async def engines_behind_envoy(folder: Path, count: int, targets: Targets) -> AsyncIterator[World]:
    """So many engines, an Envoy that spreads requests over them, and a planner."""
    envoy = ensure_tools((versions.ENVOY,))[versions.ENVOY.name]
    host = EngineHost()
    pods = tuple(listening(f"chat-{number}") for number in range(count))
    host.set_pods(pods)
    tasks = [asyncio.create_task(one) for one in (host.run(), EngineDoors(host).run())]
    links = tuple(SlowLink(pod.address, pod.port) for pod in pods)
    for link in links:
        await link.start()
    port, admin_port = free_port(), free_port()
    file = folder / "envoy.json"
    file.write_text(json.dumps(_bootstrap(port, admin_port, [link.port for link in links])))
    process = await asyncio.create_subprocess_exec(
        str(envoy), "-c", str(file), "--disable-hot-restart", "--concurrency", "1",
        "--log-level", "error",
    )  # fmt: skip
    world = World(
        host=host, pods=pods, links=links, url=f"http://127.0.0.1:{port}",
        statistics_url=f"http://127.0.0.1:{admin_port}/stats/prometheus", targets=targets,
    )  # fmt: skip
    try:
        await asyncio.to_thread(
            wait_until,
            lambda: http_get(world.statistics_url) is not None,
            what="Envoy answers",
        )
        yield world
    finally:
        process.terminate()
        await process.wait()
        for link in links:
            await link.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _bootstrap(port: int, admin_port: int, engine_ports: list[int]) -> dict[str, object]:
    route = {"match": {"prefix": "/"}, "route": {"cluster": _CLUSTER, "timeout": "300s"}}
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{_PREFIX}.http.router.v3.Router"},
    }
    manager = {
        "@type": f"{_PREFIX}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "http_filters": [router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    }
    named = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    ends = [{"endpoint": {"address": _socket(one)}} for one in engine_ports]
    cluster = {
        "name": _CLUSTER,
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {"cluster_name": _CLUSTER, "endpoints": [{"lb_endpoints": ends}]},
    }
    return {
        "admin": {"address": _socket(admin_port)},
        "static_resources": {
            "listeners": [{"address": _socket(port), "filter_chains": [{"filters": [named]}]}],
            "clusters": [cluster],
        },
    }


def _socket(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
