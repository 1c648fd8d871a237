"""Limits of dynamic batches of real Tritons: set on one pod, on all, again, and taken back."""

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.operator_under_test import Operator, Tenant

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.pod_servers import Clients, PodServers
from servingslo_lab.rig.triton import TritonModel, affine, missing_for_triton
from servingslo_lab.rig.triton_pods import infer, triton_behind

pytestmark = [
    pytest.mark.rig,
    pytest.mark.slow(
        "servingslo.runtimes.engines.triton",
        "servingslo.features.dynamic_batches",
    ),
]
# Its file allows batches of 2, which answer 10 requests per second of the 29 that 16 would.
EMBED = TritonModel(
    name="embed", seconds=affine(0.15, 0.025, 16), window_microseconds=1_000, largest_batch=2
)
RATE_PER_SECOND = 12.0
THRESHOLD = "700ms"
CONTAINER = {"name": "triton", "image": "tritonserver:2.51", "args": []}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a file for each namespace that has a key."""
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def operator_settings(keys: Path) -> tuple[str, ...]:
    """The administrator opens the way to pods of the rig, and lets limits be set on servers."""
    return (
        "--batching-apply=true",
        "--batching-servers-only=true",
        "--engine-range=127.0.0.0/8",
        f"--engine-keys-directory={keys}",
    )


@pytest.fixture(scope="module")
def engines(rig: Rig) -> Iterator[PodServers]:
    """A real server behind each pod instead of a simulated engine, scraped every three seconds."""
    if missing := missing_for_triton():
        pytest.skip(missing)
    with rig.scrape_plan_kept():
        pods = PodServers(rig, "app=embed", triton_behind(EMBED))
        pods.start()
        rig.configure_prometheus(http_sd_url=pods.url, scrape_interval_seconds=3.0)
        yield pods
        pods.stop()


@pytest.fixture
def clients(engines: PodServers) -> Iterator[Clients]:
    """Poisson clients."""
    running = Clients(engines, infer("embed"))
    running.start()
    yield running
    running.stop()


def config(engines: PodServers, pod: str) -> dict[str, Any]:
    """What `curl POD:8000/v2/models/embed/config` says."""
    url = f"{engines.address(pod)}/v2/models/embed/config"
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own server
        found: dict[str, Any] = json.load(answer)
    return found


def largest(engines: PodServers) -> dict[str, int]:
    """max_batch_size of each pod that is routed to."""
    return {pod: config(engines, pod)["max_batch_size"] for pod in engines.routed}


def all_have_them(engines: PodServers) -> bool:
    """Whether both pods, or more, are routed to and none has the file's limit."""
    found = largest(engines).values()
    return len(found) >= 2 and min(found) > 2


@pytest.mark.acceptance
def test_limits_are_set_on_one_pod_then_on_all_and_again_on_a_successor(
    tenant: Tenant, operator: Operator, engines: PodServers, clients: Clients
) -> None:
    """Under load, with no request failed; gone with the ServingSLO."""
    tenant.create_deployment("embed", replicas=2, container=CONTAINER)
    tenant.wait(lambda: len(engines.routed) == 2, what="two servers", timeout_seconds=60)
    before = config(engines, engines.routed[0])
    assert before["max_batch_size"] == 2
    clients.rate_per_second = RATE_PER_SECOND
    tenant.create_slo(
        "embed",
        objectives=[{"metric": "latency", "percentile": 95, "threshold": THRESHOLD}],
        model="embed",
        replicas={"min": 2, "max": 4},
        batching={"mode": "Auto", "maxSequences": 16, "minInterval": "30s"},
        coldStart="10s",
    )
    seen: list[dict[str, int]] = []

    def one_has_them() -> bool:
        # On a busy machine one may be out of the routing for a moment.
        seen[:] = [largest(engines)]
        return len(seen[0]) >= 2 and max(seen[0].values()) > 2

    tenant.wait(one_has_them, what="one pod", timeout_seconds=180)
    (alone,) = seen
    assert sorted(alone.values())[:-1] == [2] * (len(alone) - 1), alone
    began = time.monotonic()
    tenant.wait(lambda: all_have_them(engines), what="all pods", timeout_seconds=180)
    print(f"first {alone}, all {largest(engines)} after {time.monotonic() - began:.0f} s")  # noqa: T201
    after = config(engines, engines.routed[0])
    print(f"before {told(before)}, after {told(after)}")  # noqa: T201
    succeeded(tenant, operator, engines)
    drifted(tenant, engines)
    clients.rate_per_second = 6.0
    tenant.delete_slo("embed")
    tenant.wait(
        lambda: set(largest(engines).values()) == {2}, what="the file's again", timeout_seconds=60
    )
    for pod in engines.routed:
        assert config(engines, pod) == before
    clients.rate_per_second = 0.0
    time.sleep(2.0)
    took = [one.seconds for one in clients.answers]
    print(f"p95 {np.percentile(took, 95):.3f} s of {len(took)}")  # noqa: T201
    assert {one.status for one in clients.answers} == {200}
    told_back = operator.log_lines("changed", tenant.namespace, "knob=dynamic-batching")
    assert "reason=BatchingCanaryStarted" in told_back[0]
    assert "outcome=rolled-back" in told_back[-1]


def told(found: dict[str, Any]) -> dict[str, Any]:
    """What of a configuration is set."""
    return {"max_batch_size": found["max_batch_size"], **found["dynamic_batching"]}


def succeeded(tenant: Tenant, operator: Operator, engines: PodServers) -> None:
    """A pod is killed: its successor has the limits before it counts."""
    victim = engines.routed[0]
    wanted = min(largest(engines).values())  # larger ones may be on trial by now
    known = set(engines.routed)
    tenant.core.delete_namespaced_pod(victim, tenant.namespace, grace_period_seconds=0)
    tenant.wait(lambda: bool(set(engines.routed) - known), what="a successor", timeout_seconds=60)
    (successor, *_) = set(engines.routed) - known
    began = time.monotonic()
    tenant.wait(
        lambda: largest(engines).get(successor, 0) >= wanted, what="its limits", timeout_seconds=60
    )
    print(f"successor {successor} set {time.monotonic() - began:.1f} s after it served")  # noqa: T201
    tenant.wait(
        lambda: bool(
            operator.log_lines("changed", tenant.namespace, "knob=dynamic-batching", successor)
        ),
        what="the change is told",
    )
    events = tenant.core.list_namespaced_event(tenant.namespace).items
    left_out = [
        event.message for event in events if f"{successor} (limits not set)" in event.message
    ]
    assert left_out, "the successor counted before it had the limits"
    print(left_out[0])  # noqa: T201


def drifted(tenant: Tenant, engines: PodServers) -> None:
    """Somebody loads other limits: they are mended."""
    pod = engines.routed[0]
    wanted = config(engines, pod)
    edited = {**wanted, "max_batch_size": 1}
    edited["dynamic_batching"] = {**wanted["dynamic_batching"], "preferred_batch_size": [1]}
    load(engines, pod, edited)
    tenant.wait(lambda: largest(engines)[pod] > 1, what="drift is mended", timeout_seconds=90)


def load(engines: PodServers, pod: str, wanted: dict[str, Any]) -> None:
    """Load the model with this configuration."""
    body = json.dumps({"parameters": {"config": json.dumps(wanted)}}).encode()
    url = f"{engines.address(pod)}/v2/repository/models/embed/load"
    urllib.request.urlopen(urllib.request.Request(url, body), timeout=10).close()  # noqa: S310
