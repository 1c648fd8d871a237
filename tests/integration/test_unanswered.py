"""What is not answered, through a real Envoy: reported, never sized by."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from tests.integration.engines_behind_envoy import engines_behind_envoy
from tests.unit.policy_world import REPLICAS_ONLY

from servingslo.models.objectives import LatencyMetric, Objective

pytestmark = pytest.mark.rig
RATE_PER_SECOND = 5.0
TARGETS = replace(
    REPLICAS_ONLY,
    objectives=(Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=0.7),),
    availability_target_ratio=0.99,
)


async def test_engines_that_answer_5xx_cost_availability_and_no_replica(tmp_path: Path) -> None:
    """A fifth of the answers is 500: the gateway counts them, ledger and share show them."""
    async with engines_behind_envoy(tmp_path, 2, TARGETS) as world:
        before = await world.run(30.0, RATE_PER_SECOND)
        promised = world.state.promise.attained_ratio
        world.break_engines(0.2)
        world.statuses.clear()
        after = await world.run(45.0, RATE_PER_SECOND)
    seen = world.statuses.count(500) / len(world.statuses)
    assert seen == pytest.approx(0.2, abs=0.08)
    assert before[-1].availability is not None
    assert before[-1].availability.answered_ratio == 1.0
    last = after[-1]
    assert last.availability is not None
    assert last.availability.uncounted == ()
    expected = 1.0 - seen * 45.0 / 75.0
    assert last.availability.answered_ratio == pytest.approx(expected, abs=0.04)
    failed = [d.demand.ledger.failed_per_second for d in after[3:] if d.demand.ledger is not None]
    assert fmean(rate or 0.0 for rate in failed) == pytest.approx(seen * RATE_PER_SECOND, rel=0.3)
    assert max(d.recommended_replicas or 0 for d in after) <= max(
        d.recommended_replicas or 0 for d in before
    )
    # They count against the promise, too.
    assert promised == 1.0
    assert world.state.promise.attained_ratio == pytest.approx(expected, abs=0.06)
