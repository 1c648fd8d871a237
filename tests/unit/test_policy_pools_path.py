"""How thresholds are divided between prefill and decode from tick to tick."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.unit.policy_world import TICK_SECONDS, steady
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


def test_no_part_of_a_threshold_is_zero() -> None:
    """From the first division on, by means and then by laws, each pool has a part to keep."""
    divided = [parts for fleet in decided() if (parts := _limits(fleet))]
    assert len(divided) > TICKS / 2
    assert all(parts[name]["ttft:95"] > 0.02 for parts in divided for name in NAMES)


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


def test_a_pool_that_queues_nothing_orders_nothing_while_the_other_one_is_short() -> None:
    """However long requests wait in decode, prefill is left what it takes, up to half."""
    found = decided(rate=steady(5.0), prefill=4, decode=1)
    short = [
        fleet
        for fleet in found
        if any((one.observed_seconds or 0.0) > 2.0 for one in fleet.pools["decode"].objectives)
    ]
    assert len(short) > TICKS / 2
    for fleet in short:
        prefill = fleet.pools["prefill"]
        assert (prefill.recommended_replicas or 0) <= 4
        (ttft,) = prefill.objectives
        assert (ttft.observed_seconds or 0.0) < ttft.threshold_seconds <= 1.0
