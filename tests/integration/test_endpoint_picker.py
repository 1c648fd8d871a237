"""The inference extension's own endpoint picker behind a real Envoy: its counts, what it obeys."""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import kubernetes
import pytest
from tests.integration.manifests import workload
from tests.integration.operator_under_test import Engines, Operator, Tenant

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.estimation.sample import GatewaySample
from servingslo.runtimes.gateway_catalogue import gateway_profile
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.gateways.picker_front import OBJECTIVE_HEADER, PickerFront
from servingslo_lab.rig.programs.versions import PICKER
from servingslo_lab.rig.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1200)]
RIG_TOOLS = (PICKER,)
PROFILE = "gateway-api-inference-extension"
CHAT, BATCH = 10, -10
SLOTS, WAITING, LEAST_REFUSED = ("--max-num-seqs=4",), 6, 10
CROWDS = {"chat": 12, "batch": 40}
TOKENS = 60
# The picker holds requests while one waits in each engine. Of the background ones, so many may wait
# there. The concurrency detector of v1.5.0 is of no use here: its saturation stayed at 0.
CONFIG: dict[str, Any] = {
    "featureGates": ["flowControl"],
    "plugins": [
        {"type": "queue-scorer"},
        {"type": "utilization-detector", "parameters": {"queueDepthThreshold": 1}},
    ],
    "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}],
    "saturationDetector": {"pluginRef": "utilization-detector"},
    "flowControl": {
        "defaultRequestTTL": "60s",
        "priorityBands": [{"priority": BATCH, "maxRequests": WAITING}],
    },
}
OUTCOMES = "inference_extension_flow_control_request_queue_duration_seconds_count"
ERRORS = "inference_objective_request_error_total"
REQUESTS = "inference_objective_request_total"


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """The administrator has the picker read."""
    return (f"gateway.profile={PROFILE}",)


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """As the chart would start it."""
    return (f"--gateway-profile={PROFILE}",)


@contextlib.contextmanager
def picked(rig: Rig, namespace: str) -> Iterator[PickerFront]:
    """Picker and Envoy before the pods of `chat`."""
    front = PickerFront(rig, namespace, "chat")
    front.create({"chat": CHAT, "batch": BATCH})
    with rig.scrape_plan_kept():
        front.start(CONFIG)
        yield front
        front.stop()


@pytest.fixture
def front(rig: Rig, namespace: str, engines: Engines) -> Iterator[PickerFront]:
    """Before two engines of few slots."""
    apps = kubernetes.client.AppsV1Api(rig.api_client())
    apps.create_namespaced_deployment(namespace, workload("chat", replicas=2, args=SLOTS))
    with picked(rig, namespace) as found:
        wait_until(lambda: burst(found.url, chat=1) == {("chat", 200): 1}, what="an answer")
        yield found


async def _ask(session: aiohttp.ClientSession, url: str, objective: str) -> int:
    document = {
        "model": "tiny", "prompt": "words", "prompt_tokens": 64, "max_tokens": TOKENS,
    }  # fmt: skip
    headers = {OBJECTIVE_HEADER: objective}
    async with session.post(f"{url}/v1/completions", json=document, headers=headers) as answer:
        await answer.read()
        return answer.status


def burst(url: str, **counts: int) -> Counter[tuple[str, int]]:
    """How many requests of each objective, all sent at once, got which status."""
    asked = [name for name, count in counts.items() for _ in range(count)]

    async def send() -> list[int]:
        timeout = aiohttp.ClientTimeout(total=90)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            return await asyncio.gather(*(_ask(session, url, name) for name in asked))

    return Counter(zip(asked, asyncio.run(send()), strict=True))


@contextlib.contextmanager
def crowds(url: str, **clients: int) -> Iterator[Counter[tuple[str, int]]]:
    """So many clients of each objective, each of which asks again once it was answered.

    Yields how often an objective got a status, complete at the end of the block.
    """
    ended, answered = threading.Event(), Counter[tuple[str, int]]()

    async def ask_again(session: aiohttp.ClientSession, name: str) -> None:
        while not ended.is_set():
            status = await _ask(session, url, name)
            answered[name, status] += 1
            if status != 200:
                await asyncio.sleep(0.5)

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            names = [name for name, count in clients.items() for _ in range(count)]
            await asyncio.gather(*(ask_again(session, name) for name in names))

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield answered
    finally:
        ended.set()
        thread.join()


def read(rig: Rig, namespace: str) -> GatewaySample:
    """What the operator's reader has of the picker of `chat`."""
    reader = PrometheusReader(
        PrometheusConfig(url=rig.prometheus_url, gateway=gateway_profile(PROFILE))
    )
    try:
        found = asyncio.run(reader.read())
    finally:
        reader.close()
    return (found.gateways or {}).get((namespace, "chat"), GatewaySample())


def counted(sample: GatewaySample) -> dict[int, tuple[float, float]]:
    """Requests and refusals of each priority."""
    return {
        one.priority: (
            sum(each.requests_total or 0.0 for each in one.instances),
            sum(each.rejected_total or 0.0 for each in one.instances),
        )
        for one in sample.priorities
    }


def test_each_priority_is_counted_as_its_clients_were_answered(
    rig: Rig, front: PickerFront
) -> None:
    """Chat waits and is served; of the background requests those beyond the queue are refused."""
    batch, before = str(BATCH), front.total(REQUESTS)

    def refused() -> float:
        return front.total(OUTCOMES, priority=batch, outcome="RejectedCapacity")

    with crowds(front.url, **CROWDS) as answered:
        wait_until(lambda: refused() >= LEAST_REFUSED, what="some are refused")
    assert set(answered) == {("chat", 200), ("batch", 200), ("batch", 429)}
    chat, served = answered["chat", 200], answered["batch", 200]
    lost = answered["batch", 429]
    assert refused() == lost
    assert front.total(ERRORS, error_code="ResourceExhausted") == lost
    wanted = {CHAT: (chat + before, 0.0), BATCH: (float(served + lost), float(lost))}
    wait_until(
        lambda: counted(read(rig, front.namespace)) == wanted, what="the operator reads the same"
    )
    (instance,) = read(rig, front.namespace).instances
    assert instance.requests_total == before + sum(answered.values())
    assert instance.rejected_total == lost


def test_what_waits_is_read_by_priority(rig: Rig, front: PickerFront) -> None:
    """While both crowds ask, the picker is full and the background queue is not empty."""

    def waiting() -> dict[int, float]:
        return {
            one.priority: sum(each.queued or 0.0 for each in one.instances)
            for one in read(rig, front.namespace).priorities
        }

    def full() -> bool:
        found = read(rig, front.namespace).instances
        return any((one.saturation_ratio or 0.0) >= 1.0 for one in found)

    with crowds(front.url, **CROWDS):
        wait_until(lambda: waiting().get(BATCH, 0.0) >= WAITING / 2, what="some wait")
        wait_until(full, what="the picker says that its pool is full")


def test_a_priority_changes_while_the_picker_runs(front: PickerFront) -> None:
    """What an InferenceObjective says is in force with the next requests, without a restart."""
    assert burst(front.url, batch=1) == {("batch", 200): 1}
    assert front.total(REQUESTS, priority=str(BATCH)) == 1
    front.change_priority("batch", 5)

    def obeyed() -> bool:
        burst(front.url, batch=1)
        return front.total(REQUESTS, priority="5") > 0

    wait_until(obeyed, what="the new priority is in force")


def test_the_operator_counts_what_the_picker_refuses_and_holds_by_class(
    rig: Rig, tenant: Tenant, operator: Operator
) -> None:
    """By the picker's counters alone; a class is the requests of its priority."""
    tenant.create_deployment(replicas=2, args=SLOTS)
    with picked(rig, tenant.namespace) as front:
        tenant.create_slo(
            replicas={"min": 2, "max": 2}, mode="Recommend", admission={"mode": "Recommend"},
            classes=[
                {"name": "chat", "priority": CHAT, "route": "chat"},
                {"name": "batch", "priority": BATCH, "route": "batch"},
            ],
        )  # fmt: skip
        with crowds(front.url, **CROWDS):

            def told() -> bool:
                found = {one["name"]: one for one in tenant.status().get("classes") or ()}
                return (
                    set(found) == {"chat", "batch"}
                    and found["batch"].get("refusedPerSecond", 0.0) > 0.0
                    and found["chat"].get("refusedPerSecond", 0.0) == 0.0
                    and found["chat"].get("offeredPerSecond", 0.0) > 0.0
                )

            tenant.wait(told, what="the status has the classes as the picker counts them")
