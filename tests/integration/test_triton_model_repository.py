"""Limits read from a real Triton, and set on it under load, by what the operator does it with."""

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from servingslo.adapters.engines.channel import EngineChannel, engine_options
from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.errors import EngineRefusedError
from servingslo.features.dynamic_batches.model_repository import ModelRepository
from servingslo.features.dynamic_batches.servers import BatcherLimits, Owner
from servingslo_lab.rig.processes import ProcessFamily
from servingslo_lab.rig.triton import TritonModel, TritonServer, affine, missing_for_triton

pytestmark = [
    pytest.mark.rig,
    pytest.mark.slow("servingslo.runtimes.engines.triton", "servingslo.features.dynamic_batches"),
]
REF = ResourceRef(namespace="team-a", name="embed", uid="u-1")
FILE = BatcherLimits(2, 20_000, 0)
WANTED = BatcherLimits(8, 2_000, 64)
EMBED = TritonModel(
    name="embed", seconds=affine(0.04, 0.01, 8), window_microseconds=20_000, largest_batch=2
)
CLIENTS, KEY = 8, "of-team-a"
POD: dict[str, Any] = {
    "metadata": {"namespace": "team-a", "name": "embed-0", "uid": "p-1"},
    "spec": {},
    "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A real server that lets nobody change models without a key."""
    if missing := missing_for_triton():
        pytest.skip(missing)
    work_dir = tmp_path_factory.mktemp("triton")
    family = ProcessFamily(work_dir=work_dir, remove_work_dir=True)
    try:
        server = TritonServer(
            work_dir=work_dir,
            family=family,
            models=(EMBED,),
            flags=(f"--http-restricted-api=model-repository:admin-key={KEY}",),
        )
        server.start()
        yield server
    finally:
        family.stop()


class Cluster:
    """The API server as far as that pod is asked for."""

    async def get(self, _path: str) -> dict[str, Any]:
        """The pod."""
        return POD

    def permitted(self, _namespace: str) -> Any:
        """So many seconds."""
        return nullcontext(5.0)


def repository(keys: Path) -> ModelRepository:
    """What the operator speaks to the pod by."""
    client: Any = Cluster()
    channel = EngineChannel(engine_options("--engine-range", ["127.0.0.0/8"], keys))
    record = pod_record(POD, None)
    return ModelRepository(channel, client, lambda *_: record)


def test_a_load_under_traffic_fails_no_request(served: TritonServer, tmp_path: Path) -> None:
    """Refused without the key; with it in force, read back, counted, and put back to the letter."""
    port = int(served.url.rpartition(":")[2])
    models = repository(tmp_path)
    before = config(served)
    statuses: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            statuses.append(status(served))

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        with pytest.raises(EngineRefusedError, match="403"):
            asyncio.run(models.set(REF, "embed-0", port, "embed", WANTED))
        (tmp_path / "team-a").write_text(f"admin-key={KEY}\n", encoding="utf-8")
        began = time.monotonic()
        assert asyncio.run(models.set(REF, "embed-0", port, "embed", WANTED))
        took = time.monotonic() - began
        time.sleep(2.0)
        read = asyncio.run(models.read(REF, "embed-0", port, "embed"))
        assert asyncio.run(models.set(REF, "embed-0", port, "embed", None))
        time.sleep(1.0)
    finally:
        ended.set()
        for client in clients:
            client.join()
    print(f"load {took:.1f} s, {len(statuses)} requests, batches {sorted(read.batches)}")  # noqa: T201
    assert (read.limits, read.owner, read.former_max_batch_size) == (WANTED, Owner.OURS, 2)
    assert max(read.batches) > FILE.max_batch_size
    for size, (count, microseconds) in read.batches.items():
        # Or longer, where the machine is busy.
        assert microseconds / count / 1e6 >= EMBED.seconds[size - 1]
    assert config(served) == before
    assert set(statuses) == {200}


def config(server: TritonServer) -> dict[str, Any]:
    """The model's configuration as the server has it."""
    url = f"{server.url}/v2/models/embed/config"
    with urllib.request.urlopen(url, timeout=10) as page:  # noqa: S310 - our own server
        found: dict[str, Any] = json.load(page)
    return found


def status(server: TritonServer) -> int:
    """Of one request."""
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{server.url}/v2/models/embed/infer",
        json.dumps({"inputs": [tensor]}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            found: int = answer.status
    except urllib.error.HTTPError as error:
        return error.code
    return found
