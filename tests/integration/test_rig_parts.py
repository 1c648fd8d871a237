"""The rig's own processes: what Prometheus scrapes, who can reach them, and how they end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from tests.answering import Answering, serving

from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.rig.waiting import http_get, wait_until

# Of the rig itself: what it runs is another matter.
pytestmark = pytest.mark.slow("servingslo_lab.rig")

_PARTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
    "prometheus",
)
_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp
_LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def _query(rig: Rig, expression: str) -> list[dict[str, Any]]:
    body = http_get(f"{rig.prometheus_url}/api/v1/query?query={urllib.parse.quote(expression)}")
    return [] if body is None else json.loads(body)["data"]["result"]


@pytest.fixture
def _scrape_plan(rig: Rig) -> Iterator[None]:
    """Changes to what Prometheus scrapes end with the test."""
    with rig.scrape_plan_kept():
        yield


@contextlib.contextmanager
def _engine_pages(namespace: str) -> Iterator[str]:
    """A discovery endpoint with one engine, and that engine's metrics, on one address."""

    class Pages(Answering):
        def reply(self) -> None:
            host = f"127.0.0.1:{self.server.server_address[1]}"
            labels = {"namespace": namespace, "pod": "pod-a", "container": "engine"}
            found = [{"targets": [host], "labels": labels}]
            is_discovery = self.path == "/sd"
            body = json.dumps(found) if is_discovery else "vllm:num_requests_running 7\n"
            kind = "application/json" if is_discovery else "text/plain; version=0.0.4"
            self.answer(body.encode(), kind=kind)

    with serving(Pages) as url:
        yield f"{url}/sd"


@pytest.mark.usefixtures("_scrape_plan")
def test_prometheus_scrapes_what_discovery_lists(rig, namespace):
    """Targets of HTTP discovery are scraped and carry namespace, pod and container."""
    with _engine_pages(namespace) as url:
        rig.configure_prometheus(http_sd_url=url)
        expression = f'{{__name__="vllm:num_requests_running",namespace="{namespace}"}}'
        rig.wait_for(lambda: _query(rig, expression), what="the engine's metric in Prometheus")
        (sample,) = _query(rig, expression)
    assert sample["value"][1] == "7"
    assert sample["metric"]["pod"] == "pod-a"
    assert sample["metric"]["container"] == "engine"


def test_every_part_listens_on_loopback_alone(rig):
    """No process of the rig can be reached from another machine."""
    addresses = {
        address for part in _PARTS for address in _listening_addresses(rig.processes[part].pid)
    }
    assert addresses
    assert addresses <= _LOOPBACK


def _listening_addresses(pid: int) -> set[str]:
    """Local addresses, as the kernel writes them, that a process listens on."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(descriptor.readlink()))
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == _LISTEN and row[9] in inodes}


def _alive(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return not stat.parent.parent.exists() or stat.read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def test_second_rig_runs_beside_the_first_and_leaves_nothing_behind(rig):
    """Two rigs do not disturb each other; a stopped one has no process and no file left."""
    with Rig.start(RigOptions(scrape_interval_seconds=5)) as second:
        assert second.api_url != rig.api_url
        assert second.work_dir.exists()
        pids = [process.pid for process in second.processes.values()]
        assert all(_alive(pid) for pid in pids)
        core = kubernetes.client.CoreV1Api(second.api_client())
        assert core.list_node().items == []
    assert not any(_alive(pid) for pid in pids)
    assert not second.work_dir.exists()
    assert kubernetes.client.CoreV1Api(rig.api_client()).list_node().items


_PARENT = """
import time
from servingslo_lab.rig.cluster import Rig
with Rig.start() as rig:
    print(*(process.pid for process in rig.processes.values()), rig.work_dir, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGKILL, id="SIGKILL"),
    ],
)
def test_rig_ends_with_its_program_however_that_ends(number):
    """No process and no file outlives a program that was interrupted, ended or killed."""
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_PARENT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        *pids, work_dir = program.stdout.readline().split()
        assert len(pids) == len(_PARTS)
        program.send_signal(number)
        program.wait(timeout=30)
    finally:
        program.kill()
    wait_until(
        lambda: not any(_alive(int(pid)) for pid in pids) and not Path(work_dir).exists(),
        what="processes and files of the killed program are gone",
    )
