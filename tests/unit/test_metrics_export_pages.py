"""The operator's own metrics page and probes."""

import socket
from dataclasses import replace

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.golden.decisions import BLIND, SCALE_UP

from servingslo.adapters.gauges import DESIRED
from servingslo.adapters.metrics_export import (
    HANDED_OVER_SECONDS,
    STUCK_TICKS,
    Health,
    HealthServer,
    OperatorMetrics,
)
from servingslo.policy.decision_parts import HandOver
from servingslo.policy.inputs import Actuation
from servingslo.policy.pools.decision import FleetDecision
from servingslo.reasons import Reason


class _Clock:
    """A monotonic clock that moves when told."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def _samples(metrics):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def _of(metrics, sample, /, **labels):
    return _samples(metrics).get((sample, tuple(sorted(labels.items()))))


LLAMA = {"namespace": "inference", "name": "llama-chat"}


def test_decisions_are_counted_by_action_and_reason_and_shown_by_resource():
    """Two decisions count two; the page shows the numbers of the last one."""
    metrics = OperatorMetrics()
    metrics.observe(FleetDecision.of(SCALE_UP))
    metrics.observe(FleetDecision.of(replace(SCALE_UP, replicas_after=6)))
    page = "servingslo_decisions_total"
    assert _of(metrics, page, action="scale-up", reason="KVCacheBound") == 2
    assert _of(metrics, DESIRED, **LLAMA) == 6
    assert (
        _of(metrics, "servingslo_predicted_seconds", **LLAMA, metric="ttft", percentile="99")
        == 0.38
    )


def test_what_became_unknown_is_shown_no_more():
    """A stale prediction must not look like a fresh one."""
    metrics = OperatorMetrics()
    metrics.observe(FleetDecision.of(SCALE_UP))
    metrics.observe(FleetDecision.of(BLIND))
    assert _of(metrics, DESIRED, **LLAMA) == 5
    assert _of(metrics, "servingslo_arrivals_per_second", **LLAMA) is None
    assert _of(metrics, "servingslo_metrics_fresh", **LLAMA) == 0


def test_a_deleted_resource_leaves_nothing_but_its_count():
    """Gauges of a resource go with it, those of others stay."""
    metrics = OperatorMetrics()
    metrics.observe(FleetDecision.of(SCALE_UP))
    metrics.observe(FleetDecision.of(replace(SCALE_UP, name="other")))
    metrics.forget("inference", "llama-chat")
    metrics.forget("inference", "never-seen")
    shown = {dict(labels).get("name") for _, labels in _samples(metrics)}
    assert "llama-chat" not in shown
    assert "other" in shown


def test_conflicts_failures_and_ticks_are_counted():
    """Each event moves its own counter."""
    clock = _Clock()
    metrics = OperatorMetrics(clock)
    metrics.count_conflict()
    metrics.count_failure("prometheus")
    metrics.count_failure("prometheus")
    metrics.observe_tick(0.2)
    clock.now += 7
    assert _of(metrics, "servingslo_write_conflicts_total") == 1
    assert _of(metrics, "servingslo_failures_total", part="prometheus") == 2
    assert _of(metrics, "servingslo_tick_duration_seconds_count") == 1
    assert _of(metrics, "servingslo_last_success_age_seconds") == 7


@pytest.mark.parametrize(
    ("ticks", "silence_in_ticks", "alive", "ready"),
    [
        pytest.param([], 1, True, False, id="starting"),
        pytest.param([], STUCK_TICKS + 1, False, False, id="never-came-round"),
        pytest.param([False], 1, True, False, id="failing-from-the-start"),
        pytest.param([True], 1, True, True, id="working"),
        pytest.param([True, False], STUCK_TICKS - 1, True, True, id="failing-later-is-no-restart"),
        pytest.param([True], STUCK_TICKS + 1, False, False, id="stuck"),
    ],
)
def test_probes_follow_the_loop(ticks, silence_in_ticks, alive, ready):
    """Ready after the first success; dead only when rounds stop ending."""
    clock = _Clock()
    metrics = OperatorMetrics(clock)
    for succeeded in ticks:
        metrics.observe_tick(0.1, succeeded=succeeded)
    clock.now += silence_in_ticks * 15
    health = metrics.health(15)
    assert (health.alive, health.ready) == (alive, ready)


@pytest.mark.parametrize("dual", [True, False])
async def test_all_addresses_are_those_of_both_families(monkeypatch, dual):
    """The kubelet probes a pod at its address, of IPv6 alone or of IPv4 alone."""
    has_both = socket.has_dualstack_ipv6()
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: dual and has_both)
    server = HealthServer(OperatorMetrics(), lambda: Health(alive=True, ready=True), port=0)
    await server.start()
    try:
        async with aiohttp.ClientSession() as client:
            for host in ("127.0.0.1", *(["[::1]"] if dual and has_both else [])):
                async with client.get(f"http://{host}:{server.port}/readyz") as answer:
                    assert answer.status == 200
    finally:
        await server.stop()


async def test_pages_are_served_with_their_status():
    """Metrics parse as Prometheus text; probes answer 200 or 503 with the reason."""
    metrics = OperatorMetrics()
    metrics.observe(FleetDecision.of(SCALE_UP))
    states = [Health(alive=True, ready=False, detail="no successful round yet")]
    server = HealthServer(metrics, lambda: states[-1], host="127.0.0.1", port=0)
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client:

            async def get(path):
                async with client.get(path) as answer:
                    return answer.status, await answer.text()

            assert await get("/healthz") == (200, "no successful round yet\n")
            assert await get("/readyz") == (503, "no successful round yet\n")
            states.append(Health(alive=False, ready=False, detail="no round for 200 s"))
            assert await get("/healthz") == (503, "no round for 200 s\n")
            status, page = await get("/metrics")
            assert status == 200
            assert DESIRED in page
            assert (await get("/else"))[0] == 404
    finally:
        await server.stop()
    await server.stop()


def test_a_resource_that_nothing_is_decided_for_shows_why_and_no_numbers():
    """Its old numbers would go on firing alerts, or hide that nobody decides."""
    metrics = OperatorMetrics()
    metrics.observe(FleetDecision.of(SCALE_UP))
    metrics.observe_undecided(LLAMA["namespace"], LLAMA["name"], "InvalidSpec")
    assert _of(metrics, DESIRED, **LLAMA) is None
    assert _of(metrics, "servingslo_not_ready", **LLAMA, reason="InvalidSpec") == 1
    metrics.observe_undecided(LLAMA["namespace"], LLAMA["name"], None)
    assert _of(metrics, "servingslo_not_ready", **LLAMA, reason="InvalidSpec") is None
    metrics.observe(FleetDecision.of(SCALE_UP))
    assert _of(metrics, DESIRED, **LLAMA) == 5
    assert _of(metrics, "servingslo_binding_constraint", **LLAMA, constraint="kv-cache") == 1


def test_a_count_for_others_is_gone_when_nobody_decides_any_more():
    """An autoscaler must not follow a number that a loop that hangs left behind."""
    clock = _Clock()
    metrics = OperatorMetrics(monotonic=clock)
    given = HandOver(actuation=Actuation.METRIC, reason=Reason.HANDED_OVER, replicas=5)
    metrics.observe(FleetDecision.of(replace(SCALE_UP, handed_over=given)))
    assert _of(metrics, DESIRED, **LLAMA) == 5
    clock.now += HANDED_OVER_SECONDS + 1
    assert _of(metrics, DESIRED, **LLAMA) is None
    assert _of(metrics, "servingslo_replicas_recommended", **LLAMA) == 5
    metrics.observe(FleetDecision.of(replace(SCALE_UP, handed_over=given)))
    assert _of(metrics, DESIRED, **LLAMA) == 5
    metrics.follow(lambda: False, lambda: 0)
    assert _of(metrics, DESIRED, **LLAMA) is None
