"""A write whose lease ended is not sent, wherever it is on its way when that happens."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from servingslo.adapters.kubernetes.api.client import KubeClient, Patch
from servingslo.adapters.kubernetes.api.fence import DeadMansSwitch, FencedRequest, namespace_of
from servingslo.errors import NotLeaderError

PATH = "/apis/apps/v1/namespaces/inference/deployments/llama/scale"


@dataclass
class Lease:
    """Says no from a given look on."""

    looks_left: int = 100
    seconds: float = 5.0
    asked: list[str] = field(default_factory=list)

    def write_seconds(self, namespace: str) -> float:
        """As told."""
        self.asked.append(namespace)
        self.looks_left -= 1
        if self.looks_left < 0:
            raise NotLeaderError("no valid lease")
        return self.seconds


@dataclass
class Server:
    """A server on loopback that remembers what reached it."""

    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        """An object, whatever is asked for."""
        await request.read()
        self.requests.append((request.method, request.path))
        return web.json_response({"kind": "Scale"})


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """The server, while it is needed."""
    server = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def with_client(
    test: Callable[[KubeClient, Server], Awaitable[None]],
    lease: Lease,
    switch: DeadMansSwitch | None = None,
) -> None:
    """Run a test with a client whose writes ask the lease."""

    async def run() -> None:
        async with serving() as server:
            configuration = Configuration(host=server.url)
            configuration.client_session_kwargs = {"request_class": FencedRequest}
            api = ApiClient(configuration)
            try:
                await test(KubeClient(api).fenced(lease, switch), server)
            finally:
                await api.close()

    asyncio.run(run())


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_write_whose_lease_ends_on_its_way_is_not_sent(looks: int) -> None:
    """At the beginning, when the connection is there, and when the body is about to be sent."""
    lease = Lease(looks_left=looks)

    async def test(client: KubeClient, server: Server) -> None:
        with pytest.raises(NotLeaderError):
            await client.patch(PATH, [{"op": "add"}], Patch.JSON)
        assert server.requests == []
        assert len(lease.asked) == looks + 1

    with_client(test, lease)


def test_a_write_with_a_lease_is_sent_and_reading_asks_nobody() -> None:
    """The namespace is that of the path; a GET needs no lease."""
    lease = Lease()

    async def test(client: KubeClient, server: Server) -> None:
        await client.patch(PATH, [{"op": "add"}], Patch.JSON)
        assert server.requests == [("PATCH", PATH)]
        assert set(lease.asked) == {"inference"}
        lease.looks_left = 0
        await client.get(PATH)
        assert len(server.requests) == 2

    with_client(test, lease)


def test_a_connection_whose_write_was_held_back_is_not_used_again() -> None:
    """Half of a request must not be finished by the next one."""
    lease = Lease(looks_left=2)

    async def test(client: KubeClient, server: Server) -> None:
        with pytest.raises(NotLeaderError):
            await client.patch(PATH, [{"op": "add"}], Patch.JSON)
        lease.looks_left = 100
        await client.patch(PATH, [{"op": "add"}], Patch.JSON)
        assert server.requests == [("PATCH", PATH)]

    with_client(test, lease)


def test_the_switch_stands_while_writes_are_under_way() -> None:
    """Armed with what is left of the lease, and disarmed when the last one has ended."""
    armed: list[float] = []
    switch = DeadMansSwitch(armed.append, clock=lambda: 0.0)

    async def test(client: KubeClient, _server: Server) -> None:
        writes = (client.patch(PATH, [{"op": "add"}], Patch.JSON) for _ in range(3))
        await asyncio.gather(*writes)
        assert armed == [5.0, 5.0, 5.0, 0.0]

    with_client(test, Lease(), switch)


_STOPPED = """
import os, sys, time
from servingslo.adapters.kubernetes.api.fence import process_switch
process_switch(0.5)
sys.stdout.write("armed\\n")
sys.stdout.flush()
while True:
    os.write(2, b".")
    time.sleep(0.001)
"""


def test_a_process_stopped_until_after_its_lease_executes_nothing_more() -> None:
    """It ends when it is continued, before its next instruction; stopped for less it goes on."""
    process = subprocess.Popen(
        [sys.executable, "-c", _STOPPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"armed\n"
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    os.set_blocking(process.stderr.fileno(), False)
    process.stderr.read()
    time.sleep(1.0)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(timeout=10) == -signal.SIGALRM
    assert not process.stderr.read()


@pytest.mark.parametrize(
    ("path", "namespace"),
    [
        pytest.param(PATH, "inference", id="scale"),
        pytest.param("/api/v1/namespaces/a/events", "a", id="core"),
        pytest.param("/apis/servingslo.dev/v1beta1/servingslos", "", id="cluster"),
        pytest.param("/api/v1/namespaces", "", id="namespaces"),
    ],
)
def test_the_namespace_is_that_of_the_path(path: str, namespace: str) -> None:
    """Of the object that is written."""
    assert namespace_of(path) == namespace
