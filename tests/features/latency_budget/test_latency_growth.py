"""Which part grew since the objectives were met, and what a plan makes of it: a line."""

from dataclasses import replace

import pytest
from tests.golden.decisions import SCALE_UP
from tests.unit.policy_world import REPLICAS_ONLY, World, reasons, run, steady
from tests.unit.test_policy_pools_path import decided
from tests.unit.world_gateway import behind_gateway

from servingslo.adapters.gauges import metric_samples
from servingslo.explain.document import as_dict
from servingslo.explain.log_line import log_line
from servingslo.explain.pools import fleet_lines
from servingslo.explain.text import text
from servingslo.features.latency_budget.growth import (
    MEMORY_SECONDS,
    NO_MEMORY,
    LatencyMemory,
    Seen,
    are_met,
    remember,
    with_growth,
)
from servingslo.features.latency_budget.report import (
    LATENCY,
    LatencyReport,
    Part,
    PartReport,
    PartSource,
)
from servingslo.features.latency_budget.status import LatencyStatus
from servingslo.features.latency_budget.text import growth_line
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.inputs import Limits
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason

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


@pytest.mark.parametrize(("least", "met"), [(0.25, True), (0.29, False)])
def test_a_gateway_adds_to_what_a_percentile_is_at_least(least, met):
    """20 ms on top of a bucket that begins well below the threshold miss nothing."""
    objective = Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=0.3)
    part = PartReport(part=Part.GATEWAY, source=PartSource.DERIVED, mean_seconds=0.02)
    report = LatencyReport(percentile=95.0, parts=(part,))
    assert are_met([Seen(objective, least, 1.0)], report) is met


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
    assert all(LATENCY.of(d.features).grew is None for d in before)
    assert all(LATENCY.of(d.features).grew is Part.GATEWAY for d in after)
    assert all(Reason.MORE_REPLICAS_DO_NOT_HELP in reasons(d) for d in after)
    assert max(d.replicas_after for d in after) <= max(d.replicas_after for d in before)
    last = after[-1]
    grown = LATENCY.of(last.features).of(Part.GATEWAY).grown_seconds
    assert grown == pytest.approx(DELAY_SECONDS - 0.02, rel=0.15)
    assert "Outside of the replicas: gateway and network +8" in text(last)
    assert "grew=gateway+" in log_line(last)
    gauges = {(s.name, s.labels.get("part")): s.value for s in metric_samples(last)}
    assert gauges["servingslo_latency_part_grown_seconds", "gateway"] == pytest.approx(grown)
    assert as_dict(last)["latency"]["grew"] == "gateway"


def test_without_a_gateway_the_same_traffic_says_nothing_of_the_network() -> None:
    """Nothing is guessed."""
    decisions = run(World(steady(3.0), replicas=3)).until(300.0).decisions
    gateway = LATENCY.of(decisions[-1].features).of(Part.GATEWAY)
    assert gateway.source is PartSource.NOT_MEASURED
    assert "gateway and network: not measured, no gateway is read" in text(decisions[-1])


def test_the_latency_of_a_whole_path_has_the_parts_of_both_pools():
    """Queue and prefill of both, the transfer, and decode; each pool reports no gateway."""
    fleet = decided()[-1]
    latency = LATENCY.of(fleet.features)
    assert [one.part for one in latency.parts] == [
        Part.GATEWAY, Part.QUEUE, Part.PREFILL, Part.TRANSFER, Part.DECODE, Part.OTHER,
    ]  # fmt: skip
    assert latency.of(Part.GATEWAY).source is PartSource.NOT_MEASURED
    transfer = latency.of(Part.TRANSFER)
    assert transfer.source.value == fleet.path.transfer_source
    assert transfer.mean_seconds == pytest.approx(
        fleet.path.through_ratio * fleet.path.transfer_seconds
    )
    own = LATENCY.of(fleet.pools["decode"].features).of(Part.DECODE)
    assert latency.of(Part.DECODE) == own
    assert LATENCY.of(fleet.pools["prefill"].features).of(Part.GATEWAY) is None
    assert any(line.startswith("Where the time goes") for line in fleet_lines(fleet))
    assert LatencyStatus.of(latency).parts[3].startswith("transfer ")


def test_every_gauge_of_a_part_is_filled() -> None:
    """Mean, percentile and growth of a part that is measured and grew, with the labels declared."""
    queue = PartReport(
        part=Part.QUEUE, source=PartSource.MEASURED,
        mean_seconds=0.1, percentile_seconds=0.2, grown_seconds=0.05,
    )  # fmt: skip
    told = LatencyReport(percentile=95.0, parts=(queue,))
    samples = metric_samples(replace(SCALE_UP, features={LATENCY.name: told}))
    found = {one.name: (set(one.labels), one.value) for one in samples}
    values = (0.1, 0.2, 0.05)
    assert [found[row.name] for row in LatencyStatus.gauge_rows] == [
        (set(row.labels), value)
        for row, value in zip(LatencyStatus.gauge_rows, values, strict=True)
    ]
