"""Where the time goes, through a real Envoy: reported, never sized by."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.engines_behind_envoy import engines_behind_envoy
from tests.unit.policy_world import REPLICAS_ONLY

from servingslo.features.latency_budget.report import LATENCY, Part, PartSource
from servingslo.features.latency_budget.text import growth_line
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.reasons import Reason

pytestmark = pytest.mark.rig
RATE_PER_SECOND = 5.0
# Of every byte, there and back.
DELAY_SECONDS = 0.4
TARGETS = replace(
    REPLICAS_ONLY,
    objectives=(Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=0.7),),
)


async def test_a_slow_network_is_named_and_orders_no_replica(tmp_path: Path) -> None:
    """A delay on the links between Envoy and engines: their own histograms do not show it."""
    async with engines_behind_envoy(tmp_path, 2, TARGETS) as world:
        before = await world.run(45.0, RATE_PER_SECOND)
        world.delay(DELAY_SECONDS)
        after = await world.run(75.0, RATE_PER_SECOND)
    calm = LATENCY.of(before[-1].features)
    assert calm is not None
    assert {one.part: one.source for one in calm.parts} == {
        Part.GATEWAY: PartSource.DERIVED,
        Part.QUEUE: PartSource.MEASURED,
        Part.PREFILL: PartSource.MEASURED,
        Part.DECODE: PartSource.MEASURED,
        Part.OTHER: PartSource.DERIVED,
    }
    assert all(Reason.MORE_REPLICAS_DO_NOT_HELP not in {s.reason for s in d.steps} for d in before)
    last = after[-1]
    latency = LATENCY.of(last.features)
    assert latency is not None
    assert latency.grew is Part.GATEWAY
    # The window of two minutes holds the time before the delay too.
    grown = latency.of(Part.GATEWAY).grown_seconds
    share = 75.0 / 120.0
    assert grown == pytest.approx(2.0 * DELAY_SECONDS * share, rel=0.4)
    assert "more replicas do not help" in growth_line(latency)
    assert Reason.MORE_REPLICAS_DO_NOT_HELP in {step.reason for step in last.steps}
    # The objective is of the engines, and no count changes their way to the clients.
    assert max(d.recommended_replicas or 0 for d in after) <= max(
        d.recommended_replicas or 0 for d in before
    )
    assert set(world.statuses) == {200}
