"""Real vLLM processes behind the rig's pods, and a router in front of them.

Every pod of a Deployment gets a process that runs its container's arguments on the pod's own
loopback address. The pod turns Ready when the engine's /health answers. Once it is deleted the
router sends it nothing more, the process gets SIGTERM, as from a kubelet, and the pod goes when the
process has ended, or its grace period has. The router gives a request to the Ready pod with the
fewest in flight.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import kubernetes
from aiohttp import web
from tests.validation.engine_process import (
    CoreTime,
    EngineSettings,
    core_time,
    hold_core,
    start_vllm,
)

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.kubernetes.kwok import (
    FAILURE_ANNOTATION,
    READY_DELAY_ANNOTATION,
    STOP_DELAY_ANNOTATION,
)
from servingslo_lab.rig.processes import ManagedProcess
from servingslo_lab.rig.waiting import http_get

GRACE_SECONDS = 150
_PORT = 8000
_LOOK_SECONDS = 0.5
# What endpoints need to reach a router that watches them; here it is told at once.
_BEFORE_TERM_SECONDS = 1.0
HEALTH_ANNOTATIONS = {
    # Held back until /health answers.
    FAILURE_ANNOTATION: "hang",
    READY_DELAY_ANNOTATION: "0s",
    STOP_DELAY_ANNOTATION: f"{GRACE_SECONDS}s",
}
"""Annotations of pods whose readiness and end are those of their process."""


@dataclass(slots=True)
class PodLife:
    """What became of one pod; moments in seconds of the clock that was given, None before.

    drained: requests in flight when the process was told to end; of those, broken ones are counted
    in `broken`. exit_status: of the process.
    """

    name: str
    started: float
    ready: float | None = None
    deleted: float | None = None
    terminated: float | None = None
    ended: float | None = None
    served: int = 0
    broken: int = 0
    drained: int = 0
    exit_status: int | None = None


@dataclass(slots=True)
class _Hosted:
    life: PodLife
    process: ManagedProcess
    address: str
    holder: ManagedProcess | None = None
    in_flight: int = 0
    routed: bool = False

    @property
    def url(self) -> str:
        return f"http://{self.address}:{_PORT}"


class RealEngines:
    """The engines of one namespace's pods."""

    def __init__(
        self,
        rig: Rig,
        settings: EngineSettings,
        namespace: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rig = rig
        self._settings = settings
        self._namespace = namespace
        self._clock = clock
        self._core = kubernetes.client.CoreV1Api(rig.api_client())
        self._hosted: dict[str, _Hosted] = {}
        self._runner: web.AppRunner | None = None
        self.lives: list[PodLife] = []
        self.url = ""

    @property
    def ready_count(self) -> int:
        """Pods that the router sends requests to."""
        return sum(one.routed for one in self._hosted.values())

    @property
    def in_flight(self) -> int:
        """Requests that the router waits for."""
        return sum(one.in_flight for one in self._hosted.values())

    def core_times(self) -> CoreTime:
        """Of all engines that run, what they got of the machine and waited for."""
        found = [core_time(one.process) for one in self._hosted.values()]
        return CoreTime(
            ran_seconds=sum(one.ran_seconds for one in found),
            waited_seconds=sum(one.waited_seconds for one in found),
        )

    # Pods and their processes

    async def follow(self) -> None:
        """Do what a kubelet does, until cancelled."""
        while True:
            with contextlib.suppress(kubernetes.client.ApiException, OSError):
                pods = await asyncio.to_thread(self._core.list_namespaced_pod, self._namespace)
                for pod in pods.items:
                    await asyncio.to_thread(self._follow_pod, pod)
                self._forget({pod.metadata.uid for pod in pods.items})
            await asyncio.sleep(_LOOK_SECONDS)

    def _follow_pod(self, pod: Any) -> None:
        hosted = self._hosted.get(pod.metadata.uid)
        deleting = pod.metadata.deletion_timestamp is not None
        if hosted is None:
            if pod.status.pod_ip and not deleting:
                self._begin(pod)
            return
        if deleting:
            self._drain(pod, hosted)
            return
        conditions = {one.type: one.status for one in pod.status.conditions or []}
        hosted.routed = conditions.get("Ready") == "True"
        if not hosted.process.running:
            hosted.routed = False
            self._annotate(pod.metadata.name, "exit")
        elif hosted.life.ready is None and http_get(f"{hosted.url}/health") is not None:
            name = f"core-{pod.metadata.name}"
            hosted.holder = hold_core(self._rig, name, self._settings, hosted.process)
            self._annotate(pod.metadata.name, None)
            hosted.life.ready = self._clock()

    def _begin(self, pod: Any) -> None:
        words = tuple(pod.spec.containers[0].args)
        address, name = pod.status.pod_ip, pod.metadata.name
        process = start_vllm(self._rig, f"vllm-{name}", self._settings, words, address, _PORT)
        life = PodLife(name=name, started=self._clock())
        self.lives.append(life)
        self._hosted[pod.metadata.uid] = _Hosted(life=life, process=process, address=address)

    def _annotate(self, name: str, failure: str | None) -> None:
        body = {"metadata": {"annotations": {FAILURE_ANNOTATION: failure}}}
        self._core.patch_namespaced_pod(name, self._namespace, body)

    def _drain(self, pod: Any, hosted: _Hosted) -> None:
        """The router has let go of it; SIGTERM, wait, and let the pod go."""
        hosted.routed = False
        life, now = hosted.life, self._clock()
        if life.deleted is None:
            life.deleted = now
        if life.terminated is None and now - life.deleted >= _BEFORE_TERM_SECONDS:
            life.terminated, life.drained = now, hosted.in_flight
            # A signal to a process that is stopped may reach a thread that does not act on it.
            if hosted.holder is not None:
                hosted.holder.stop()
            if hosted.process.pid is not None:
                os.kill(hosted.process.pid, signal.SIGTERM)
        if now - life.deleted >= GRACE_SECONDS:
            hosted.process.stop(kill=True)
        if not hosted.process.running and life.ended is None:
            life.ended, life.exit_status = now, hosted.process.exit_status
            self._core.delete_namespaced_pod(
                pod.metadata.name, self._namespace, grace_period_seconds=0
            )

    def _forget(self, uids: set[str]) -> None:
        """A pod that is gone without its process having ended has used up its grace period."""
        for uid in self._hosted.keys() - uids:
            hosted = self._hosted.pop(uid)
            if hosted.process.running:
                hosted.process.stop(kill=True)
            if hosted.life.ended is None:
                hosted.life.ended = self._clock()
                hosted.life.exit_status = hosted.process.exit_status

    # The router, and what Prometheus asks it

    async def serve(self) -> None:
        """Answer on a port of loopback until `close`."""
        application = web.Application(client_max_size=2**22)
        application.add_routes(
            [web.post("/v1/completions", self._complete), web.get("/sd", self._discovery)]
        )
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        address, port = self._runner.addresses[0][:2]
        self.url = f"http://{address}:{port}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )

    async def close(self) -> None:
        """Stop answering."""
        if self._runner is not None:
            await self._session.close()
            await self._runner.cleanup()

    async def _discovery(self, _: web.Request) -> web.Response:
        """Every engine that answers, with the labels that a PodMonitor gives it."""
        found = [
            {
                "targets": [f"{one.address}:{_PORT}"],
                "labels": {
                    "namespace": self._namespace, "pod": one.life.name, "container": "vllm",
                },
            }
            for one in self._hosted.values()
            if one.life.ready is not None
        ]  # fmt: skip
        return web.json_response(found)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        ready = [one for one in self._hosted.values() if one.routed]
        if not ready:
            return web.Response(status=503, text="no pod is Ready")
        body = await request.read()
        hosted = min(ready, key=lambda one: one.in_flight)
        hosted.in_flight += 1
        whole = False
        try:
            response = await self._passed_on(request, hosted, body)
            whole = response.status == 200
            return response
        finally:
            hosted.in_flight -= 1
            hosted.life.served += whole
            hosted.life.broken += not whole

    async def _passed_on(
        self, request: web.Request, hosted: _Hosted, body: bytes
    ) -> web.StreamResponse:
        """The engine's answer as it comes; a connection that breaks off there breaks off here."""
        async with self._session.post(
            f"{hosted.url}{request.path}", data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            response = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.content_type}
            )
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            await response.write_eof()
            return response
