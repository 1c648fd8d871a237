"""Replicas of a real Triton follow Poisson load, by a law fitted from its own counters."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
from tests.integration.operator_under_test import Operator, Tenant

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.pod_servers import Clients, PodServers
from servingslo_lab.rig.triton import TritonModel, affine, missing_for_triton
from servingslo_lab.rig.triton_pods import infer, triton_behind

pytestmark = [pytest.mark.rig, pytest.mark.acceptance, pytest.mark.timeout(900)]
# T(b) = 150 ms + 25 ms·b: 22.9 requests per second of full batches.
FIXED, PER_REQUEST, LARGEST = 0.15, 0.025, 8
EMBED = TritonModel(
    name="embed", seconds=affine(FIXED, PER_REQUEST, LARGEST), window_microseconds=20_000
)
THRESHOLD = "700ms"
CALM_PER_SECOND, BUSY_PER_SECOND = 5.0, 24.0


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


def test_replicas_of_a_real_triton_follow_its_load(
    tenant: Tenant, operator: Operator, engines: PodServers, clients: Clients
) -> None:
    """One, then two or more, then one again; nothing fails, and the law is the model's."""
    container = {"name": "triton", "image": "tritonserver:2.51", "args": []}
    tenant.create_deployment("embed", replicas=1, container=container)
    tenant.create_slo(
        "embed",
        objectives=[{"metric": "latency", "percentile": 95, "threshold": THRESHOLD}],
        engine={"dynamicBatching": {"maxBatchSize": LARGEST, "maxQueueDelay": "20ms"}},
        coldStart="10s",
    )
    tenant.wait(lambda: len(engines.routed) == 1, what="a server", timeout_seconds=60)
    clients.rate_per_second = CALM_PER_SECOND
    tenant.wait(
        lambda: bool(operator.log_lines("decided", tenant.namespace, "runtime=triton")),
        what="a decision of triton",
        timeout_seconds=60,
    )
    clients.rate_per_second = BUSY_PER_SECOND
    tenant.wait(lambda: tenant.replicas("embed") > 1, what="a scale-up", timeout_seconds=120)
    tenant.wait(lambda: len(engines.routed) > 1, what="another server", timeout_seconds=60)
    tenant.wait(
        lambda: bool(operator.log_lines("decided", tenant.namespace, "law=counters")),
        what="a law of the counters",
        timeout_seconds=180,
    )
    time.sleep(20.0)
    settled = time.monotonic()
    time.sleep(20.0)
    law = tenant.decision("embed")["model"]["law"]
    at_full = law["stepFixedSeconds"] + LARGEST * law["stepPerSequenceSeconds"]
    seen = [seconds for seconds, _ in clients.since(settled)]
    print(  # noqa: T201 - what a reader of the run wants
        f"replicas={tenant.replicas('embed')} law={law} "
        f"p95={np.percentile(seen, 95):.3f} of {len(seen)}"
    )
    clients.rate_per_second = CALM_PER_SECOND
    tenant.wait(lambda: tenant.replicas("embed") == 1, what="a scale-down", timeout_seconds=240)
    clients.rate_per_second = 0.0
    time.sleep(2.0)
    assert {one.status for one in clients.answers} == {200}
    assert at_full == pytest.approx(FIXED + PER_REQUEST * LARGEST, rel=0.25)
