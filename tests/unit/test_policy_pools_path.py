"""How thresholds are divided between prefill and decode from tick to tick."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.policy_world import TICK_SECONDS
from tests.unit.pools_world import DECODE, PREFILL, pools_record, worlds

from servingslo.api.convert import fleet_targets_of, parse_spec
from servingslo.policy.inputs import Limits, SignalProblem
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.planner import plan_pools
from servingslo.policy.pools.state import FleetState
from servingslo.reasons import Reason

NAMES = {"prefill": PREFILL, "decode": DECODE}
AWAY = SignalProblem(reason=Reason.CLUSTER_UNAVAILABLE, detail="no answer")
TICKS = 16


def decided(unseen: Iterable[int] = (), pool: str = "decode", **world: Any) -> list[FleetDecision]:
    """Decisions of some ticks, which are not carried out.

    unseen: ticks in which a pool is not observed.
    """
    targets = fleet_targets_of(parse_spec(pools_record().spec))
    assert targets is not None
    both, state, found, blind = worlds(**world), FleetState(), [], set(unseen)
    for tick in range(TICKS):
        at = (tick + 1) * TICK_SECONDS
        seen = {
            name: replace(
                both[target].observe(at),
                pool=name,
                problems=(AWAY,) if name == pool and tick in blind else (),
            )
            for name, target in NAMES.items()
        }
        fleet, state = plan_pools(seen, targets, Limits(), state, at)
        found.append(fleet)
    return found


def _limits(fleet: FleetDecision) -> dict[str, dict[str, float]]:
    assert fleet.path is not None
    return {name: dict(parts) for name, parts in fleet.path.limits_seconds.items()}


def test_a_threshold_is_divided_by_decodes_steps_and_stays_divided() -> None:
    """A first token of decode takes one or two steps of at most 60 ms, and the transfer."""
    found = decided()
    limits = [parts for fleet in found if (parts := _limits(fleet))]
    assert len(limits) > TICKS / 2
    first, last = limits[0], limits[-1]
    assert first == last
    path = next(fleet.path for fleet in found if _limits(fleet))
    assert path is not None
    transfer = path.transfer_seconds
    assert first["prefill"]["ttft:95"] == pytest.approx(2.0 - 1.5 * 0.06 - transfer)
    assert first["decode"]["ttft:95"] == pytest.approx(2.0 * 0.06 + 3.5 * transfer)


def test_a_pool_that_is_not_observed_leaves_the_division_as_it_was() -> None:
    """Without its means the other would get the whole, and a threshold of zero would be left."""
    for first in (2, 10):
        found = decided(range(first, first + 4))
        before = _limits(found[first - 1])
        assert all(_limits(fleet) == before for fleet in found[first : first + 4])
    assert before


def test_a_pool_that_was_never_observed_may_use_the_whole_threshold() -> None:
    """Nothing is divided before both are known."""
    found = decided(range(TICKS))
    assert all(_limits(fleet) == {} for fleet in found)
    prefill = found[-1].pools["prefill"]
    assert [one.threshold_seconds for one in prefill.objectives] == [2.0]
