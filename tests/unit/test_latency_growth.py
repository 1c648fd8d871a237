"""Which part grew since the objectives were met, and what a plan makes of it: a line."""

from bisect import bisect_left
from dataclasses import replace

import pytest
from tests.unit.policy_world import REPLICAS_ONLY, World, reasons, run, steady

from servingslo.adapters.gauges import metric_samples
from servingslo.estimation.sample import GatewayInstance, GatewaySample, HistogramSample
from servingslo.explain.document import as_dict
from servingslo.explain.latency_text import growth_line
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.policy.inputs import Limits
from servingslo.policy.latency.growth import (
    MEMORY_SECONDS,
    NO_MEMORY,
    LatencyMemory,
    remember,
    with_growth,
)
from servingslo.policy.latency.report import LatencyReport, Part, PartReport, PartSource
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason
from servingslo.runtimes.gateways import CountedWhen

# Envoy's own edges; the last is open.
EDGES = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, float("inf"))
DELAY_SECONDS = 0.9
SLOW_FROM_SECONDS = 900.0


def report(**means: float) -> LatencyReport:
    """Measured parts with these means."""
    parts = tuple(
        PartReport(part=Part(name), source=PartSource.MEASURED, mean_seconds=mean)
        for name, mean in means.items()
    )
    return LatencyReport(percentile=95.0, parts=parts)


def remembered(**means: float) -> LatencyMemory:
    """A memory of these means that is compared with now."""
    return LatencyMemory(means_seconds=means, seconds=600.0, met_at_seconds=5.0, missed=True)


def test_nothing_has_grown_while_the_objectives_are_met() -> None:
    """Growth is from what was, so it needs a time when all was well."""
    now = report(gateway=0.5, queue=0.1)
    assert with_growth(now, NO_MEMORY) == now
    assert with_growth(now, replace(remembered(gateway=0.1), missed=False)) == now


def test_the_part_that_grew_most_is_named() -> None:
    """With its growth, and that of every other part."""
    found = with_growth(report(gateway=0.21, queue=0.05), remembered(gateway=0.03, queue=0.06))
    assert found.grew is Part.GATEWAY
    assert found.of(Part.GATEWAY).grown_seconds == pytest.approx(0.18)
    assert found.of(Part.QUEUE).grown_seconds == pytest.approx(-0.01)
    assert found.met_at_seconds == 5.0
    assert growth_line(found) == "gateway and network +180 ms: more replicas do not help"


def test_a_part_that_replicas_mend_has_no_such_line() -> None:
    """A queue that grew is what replicas are for."""
    found = with_growth(report(gateway=0.05, queue=0.9), remembered(gateway=0.03, queue=0.06))
    assert found.grew is Part.QUEUE
    assert growth_line(found) == ""


@pytest.mark.parametrize("grown", [0.009, 0.09])
def test_noise_is_not_named(grown: float) -> None:
    """Less than ten milliseconds, or less than a tenth of the whole."""
    found = with_growth(report(gateway=0.03 + grown), remembered(gateway=0.03, decode=0.9))
    assert found.grew is None
    assert found.of(Part.GATEWAY).grown_seconds == pytest.approx(grown)


def test_memory_is_a_mean_over_half_an_hour_at_most() -> None:
    """A new value weighs by its time; what is missed is not remembered."""
    memory = remember(NO_MEMORY, report(queue=0.1), met=True, elapsed_seconds=0.0, now_seconds=0.0)
    memory = remember(memory, report(queue=0.2), met=True, elapsed_seconds=15.0, now_seconds=15.0)
    memory = remember(memory, report(queue=0.1), met=True, elapsed_seconds=15.0, now_seconds=30.0)
    assert memory.means_seconds["queue"] == pytest.approx(0.15)
    missed = remember(memory, report(queue=9.0), met=False, elapsed_seconds=15.0, now_seconds=45.0)
    assert (missed.means_seconds, missed.met_at_seconds) == (memory.means_seconds, 30.0)
    assert missed.missed
    assert (
        remember(missed, report(queue=9.0), met=None, elapsed_seconds=1.0, now_seconds=60.0)
        == missed
    )
    later = replace(memory, seconds=MEMORY_SECONDS)
    later = remember(later, report(queue=1.15), met=True, elapsed_seconds=18.0, now_seconds=60.0)
    assert later.means_seconds["queue"] == pytest.approx(0.15 + 18.0 / MEMORY_SECONDS)


def behind_gateway(world: World, delay) -> GatewaySample:
    """What an Envoy in front of the world counts; delay: on the way, by the time of arrival."""
    ended = [r for r in world.records if r.finish_seconds is not None]
    times = [r.finish_seconds - r.arrival_seconds + delay(r.arrival_seconds) for r in ended]
    counts = [0] * len(EDGES)
    for seconds in times:
        counts[bisect_left(EDGES, seconds)] += 1
    cumulative = [float(sum(counts[: place + 1])) for place in range(len(EDGES))]
    held = sum(e.running + e.waiting for e in world.service.engines.values())
    instance = GatewayInstance(
        name="envoy-0",
        age_seconds=2.0,
        requests_total=float(len(world.records)) + held,
        rejected_total=0.0,
        errors_total=0.0,
        aborted_total=0.0,
        latency_seconds=HistogramSample(
            upper_bounds=EDGES, cumulative_counts=tuple(cumulative), sum=sum(times),
            count=cumulative[-1],
        ),
    )  # fmt: skip
    return GatewaySample(counted=CountedWhen.PASSED_ON, instances=(instance,))


@pytest.fixture(scope="module")
def story():
    """Forty minutes of steady traffic; from the fifteenth on the way to the engines is slow."""
    world, state, decisions = World(steady(3.0), replicas=3), PlannerState(), []

    def delay(at: float) -> float:
        return DELAY_SECONDS if at >= SLOW_FROM_SECONDS else 0.02

    for tick in range(1, 2400 // 15 + 1):
        at = 15.0 * tick
        observation = replace(world.observe(at), gateway=behind_gateway(world, delay))
        decision, state = plan(observation, REPLICAS_ONLY, Limits(), state, at)
        decisions.append(decision)
        if decision.apply_replicas:
            world.scale(decision.replicas_after)
    return decisions


def test_a_slow_network_is_named_and_orders_nothing(story) -> None:
    """The count stays; the step, the line, the gauge and the log say where the time went."""
    before = [d for d in story if 600.0 <= d.time_seconds < SLOW_FROM_SECONDS]
    after = [d for d in story if d.time_seconds >= SLOW_FROM_SECONDS + 300.0]
    assert all(Reason.MORE_REPLICAS_DO_NOT_HELP not in reasons(d) for d in before)
    assert all(d.latency.grew is None for d in before)
    assert all(d.latency.grew is Part.GATEWAY for d in after)
    assert all(Reason.MORE_REPLICAS_DO_NOT_HELP in reasons(d) for d in after)
    assert max(d.replicas_after for d in after) <= max(d.replicas_after for d in before)
    last = after[-1]
    grown = last.latency.of(Part.GATEWAY).grown_seconds
    assert grown == pytest.approx(DELAY_SECONDS - 0.02, rel=0.15)
    assert "Outside of the replicas: gateway and network +8" in text(last)
    assert "grew=gateway+" in log_line(last)
    gauges = {(s.name, s.labels.get("part")): s.value for s in metric_samples(last)}
    assert gauges["servingslo_latency_part_grown_seconds", "gateway"] == pytest.approx(grown)
    assert as_dict(last)["latency"]["grew"] == "gateway"


def test_without_a_gateway_the_same_traffic_says_nothing_of_the_network() -> None:
    """Nothing is guessed."""
    decisions = run(World(steady(3.0), replicas=3)).until(300.0).decisions
    gateway = decisions[-1].latency.of(Part.GATEWAY)
    assert gateway.source is PartSource.NOT_MEASURED
    assert "gateway and network: not measured, no gateway is read" in text(decisions[-1])
