"""A real program behind each Ready pod of a Deployment, its discovery, and Poisson clients."""

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import aiohttp
import kubernetes

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.processes import ManagedProcess, ProcessFamily
from servingslo_lab.rig.waiting import http_get

_LOOK_SECONDS = 0.5


class Server(Protocol):
    """One program that serves on its pod's address."""

    address: str
    url: str
    ready_url: str
    metrics_url: str
    process: ManagedProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a server runs. arguments: of the pod's first container."""

    work_dir: Path
    family: ProcessFamily
    address: str
    arguments: tuple[str, ...]


class PodServers:
    """Servers of the pods with a label, each on its pod's loopback address.

    A server starts with its pod, and gets requests once both are ready. When its pod is deleted,
    it gets no new requests, finishes the running ones, and ends.
    """

    def __init__(self, rig: Rig, selector: str, server_at: Callable[[Place], Server]) -> None:
        self._rig, self._selector, self._server_at = rig, selector, server_at
        self._family = ProcessFamily(work_dir=rig.work_dir, remove_work_dir=False)
        self._servers: dict[str, Server] = {}
        self._urls: dict[str, str] = {}
        self._ended = threading.Event()
        self.in_flight: dict[str, int] = {}
        self.routed: tuple[str, ...] = ()
        self.targets: list[dict[str, Any]] = []
        self._left: frozenset[str] = frozenset()
        owner = self

        class Discovery(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                """Return the targets in Prometheus' discovery format."""
                body = json.dumps(owner.targets).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._discovery = ThreadingHTTPServer(("127.0.0.1", 0), Discovery)
        self.url = f"http://127.0.0.1:{self._discovery.server_address[1]}"
        self._threads = [
            threading.Thread(target=self._discovery.serve_forever, daemon=True),
            threading.Thread(target=self._follow, daemon=True),
        ]

    def start(self) -> None:
        """Follow the pods from now on."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End everything."""
        self._ended.set()
        self._threads[1].join()
        self._discovery.shutdown()
        self._family.stop()

    def kill(self, pod: str) -> None:
        """Kill a pod's server like a crash: at once, with its requests."""
        self._servers[pod].process.stop(kill=True)

    def address(self, pod: str) -> str:
        """The current or last address of a pod's server."""
        return self._urls[pod]

    def _follow(self) -> None:
        core = kubernetes.client.CoreV1Api(self._rig.api_client())
        while not self._ended.wait(_LOOK_SECONDS):
            with contextlib.suppress(kubernetes.client.ApiException, OSError):
                self._look(core.list_pod_for_all_namespaces(label_selector=self._selector).items)

    def _look(self, pods: Sequence[Any]) -> None:
        living = {p.metadata.name: p for p in pods if not p.metadata.deletion_timestamp}
        gone = {server.address for name, server in self._servers.items() if name not in living}
        addressed = {
            name
            for name, pod in living.items()
            # The earlier server at this address first finishes its requests.
            if pod.status.pod_ip and pod.status.pod_ip not in gone
        }
        for name in addressed - self._servers.keys():
            place = Place(
                work_dir=self._rig.work_dir,
                family=self._family,
                address=living[name].status.pod_ip,
                arguments=tuple(living[name].spec.containers[0].args or ()),
            )
            server = self._server_at(place)
            server.process.start()
            self._urls[name], self.in_flight[name] = server.url, 0
            self._servers[name] = server
        served = sorted(self._servers.keys() & living.keys())
        ready = tuple(name for name in served if self._ready(name, living[name]))
        self.routed = ready
        self.targets = [
            {
                "targets": [self._servers[name].metrics_url.split("/")[2]],
                "labels": {
                    "namespace": living[name].metadata.namespace,
                    "pod": name,
                    "container": living[name].spec.containers[0].name,
                },
            }
            for name in ready
        ]
        left = self._servers.keys() - living.keys()
        # A client that chose a pod just before it left begins its request until the next look.
        for name in left & self._left:
            if not self.in_flight[name]:
                self._servers.pop(name).process.stop()
        self._left = frozenset(left)

    def _ready(self, name: str, pod: Any) -> bool:
        conditions = {one.type: one.status for one in (pod.status.conditions or [])}
        if conditions.get("Ready") != "True":
            return False
        return http_get(self._servers[name].ready_url) is not None


class Question(NamedTuple):
    """One request: its path, its body, and how many tokens its answer has."""

    path: str
    body: str
    output_tokens: int = 1


class Answered(NamedTuple):
    """One request's end: when it was sent, its durations, and its status (0: no answer).

    first_seconds: to the first part of the answer; equal to seconds if there was none.
    """

    sent: float
    seconds: float
    status: int
    first_seconds: float
    output_tokens: int


class Clients:
    """Poisson clients, whose requests go to the server with the fewest of them in flight.

    question: makes a request from random numbers.
    """

    def __init__(self, pods: PodServers, question: Callable[[random.Random], Question]) -> None:
        self._pods, self._question = pods, question
        self.rate_per_second = 0.0
        self.answers: list[Answered] = []
        self._ended = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        """Begin; no requests are sent while the rate is 0."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, and wait for requests in flight."""
        self._ended = True
        if self._thread.is_alive():
            self._thread.join()

    def since(self, began: float) -> list[tuple[float, int]]:
        """Duration and status of requests sent since then, on the monotonic clock."""
        return [(one.seconds, one.status) for one in self.answers if one.sent >= began]

    async def _run(self) -> None:
        numbers, tasks = random.Random(5), set()  # noqa: S311 - traffic, not a secret
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            due = time.monotonic()
            while not self._ended:
                if self.rate_per_second <= 0.0 or not self._pods.routed:
                    await asyncio.sleep(0.1)
                    due = time.monotonic()
                    continue
                due += numbers.expovariate(self.rate_per_second)
                await asyncio.sleep(max(due - time.monotonic(), 0.0))
                task = asyncio.create_task(self._ask(session, self._question(numbers)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)

    async def _ask(self, session: aiohttp.ClientSession, question: Question) -> None:
        began, status, first_seconds = time.monotonic(), 0, None
        pod = min(self._pods.routed, key=self._pods.in_flight.__getitem__, default=None)
        if pod is not None:
            self._pods.in_flight[pod] += 1
            try:
                url = f"{self._pods.address(pod)}{question.path}"
                async with session.post(url, data=question.body) as answer:
                    async for _ in answer.content.iter_any():
                        first_seconds = first_seconds or time.monotonic() - began
                    status = answer.status
            except (aiohttp.ClientError, OSError):
                pass
            finally:
                self._pods.in_flight[pod] -= 1
        seconds = time.monotonic() - began
        self.answers.append(
            Answered(began, seconds, status, first_seconds or seconds, question.output_tokens)
        )
