"""How thresholds are divided between prefill and decode from tick to tick."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.policy_world import TARGETS, TICK_SECONDS, World, steady
from tests.unit.pools_world import DECODE, PREFILL, pools_record, worlds
from tests.unit.test_policy_pools_demand import seen_at
from tests.unit.test_policy_pools_guards import fleet, world

from servingslo.api.convert import fleet_from_spec
from servingslo.policy.inputs import Limits, SignalProblem
from servingslo.policy.planner import observe
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.demand import learn_demand
from servingslo.policy.pools.path import divide_path, waits_for_room
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.stages import STAGES
from servingslo.reasons import Action, Reason

NAMES = {"prefill": PREFILL, "decode": DECODE}
AWAY = SignalProblem(reason=Reason.CLUSTER_UNAVAILABLE, detail="no answer")
TICKS = 16


def decided(
    unseen: Iterable[int] = (), pool: str = "decode", most: int = 12, **world: Any
) -> list[FleetDecision]:
    """Decisions of some ticks, which are not carried out.

    unseen: ticks in which a pool is not observed. most: replicas of that pool.
    """
    targets = fleet_from_spec(pools_record().spec)
    assert targets is not None
    own = targets.pool(pool).targets
    bounded = replace(own.replicas, maximum=most)
    targets = targets.with_targets({pool: replace(own, replicas=bounded)})
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
        fleet, state = plan_fleet(seen, targets, Limits(), state, at)
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


def test_the_whole_is_about_the_pool_that_lacks_replicas() -> None:
    """Decode has its maximum; prefill, the first of the spec, has all that it needs."""
    last = decided(most=1, rate=steady(4.0), prefill=6, decode=1)[-1]
    assert {one.action for one in last.pools.values()} == {Action.HOLD}
    assert (last.binding_pool, last.reason) == ("decode", Reason.MAX_REPLICAS_REACHED)


def test_one_preemption_in_decode_holds_no_prompts() -> None:
    """Its request runs again a moment later; prefill is held up where requests go on waiting."""
    decode = world(2, 2)["decode"]
    told = (({"preemptions_per_second": 0.1}, False), ({"waiting_sustained": True}, True))
    for signal, held in told:
        shown = replace(decode.context.estimate.saturation_signal, **signal)
        estimate = replace(decode.context.estimate, saturation_signal=shown)
        seen = replace(decode, context=replace(decode.context, estimate=estimate))
        assert waits_for_room(seen) is held


def test_a_rollout_while_prompts_are_held_leaves_the_old_law() -> None:
    """Nothing is learnt meanwhile; the queue orders nothing and forbids steps down."""
    state, prefill = PlannerState(), World(rate=steady(4.0), replicas=2)
    for tick in range(1, 2 * TICKS):
        if tick == TICKS:
            prefill.roll_out("t2", "vllm:2")
        held = replace(STAGES, held_up=tick >= TICKS)
        at = tick * TICK_SECONDS
        seen = observe(prefill.observe(at), TARGETS, Limits(), state, at, stages=held)
        state = seen.state
    assert state.estimator.law.fits[0].configuration.image == "vllm:2"
    assert state.estimator.law.fits[0].information.weight == 0.0
    estimate = seen.context.estimate
    assert (estimate.ordering_ratio, estimate.keeping_ratio) == (0.0, 1.0)


def test_longer_prompts_grow_on_up_to_another_mix_and_decode_by_what_it_holds() -> None:
    """1.9 times as long in the last minute is no forecast of five times; answers stay as long."""
    seen = {}
    for name, one in world(2, 2).items():
        estimate = replace(
            one.context.estimate,
            longer_ratios=(1.9 if name == "prefill" else 1.0, 1.0),
            prompt_tokens_mean=300.0,
            output_tokens_mean=200.0,
        )
        seen[name] = replace(one, context=replace(one.context, estimate=estimate))
    state = FleetState()
    for tick in range(1, 9):
        state = learn_demand(fleet(), state, seen_at(10.0, 10.0), tick * TICK_SECONDS)
    shared, _, _ = divide_path(fleet(), state, seen, 8 * TICK_SECONDS)
    rates = {n: one.context.estimate.forecast.mean_per_second(0.0) for n, one in shared.items()}
    # A prompt of 300 tokens and half of 200: twice the prompt is 700 over 400.
    assert rates == pytest.approx({"prefill": 20.0, "decode": 17.5}, rel=0.01)
