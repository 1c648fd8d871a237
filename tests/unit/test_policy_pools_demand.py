"""Demand of prefill and decode: the share that passes prefill, and the rate of the whole."""

from dataclasses import replace

import pytest
from tests.unit.policy_world import TICK_SECONDS
from tests.unit.test_policy_pools_guards import NAMES, fleet, world

from servingslo.estimation.forecast import demand as forecasts
from servingslo.estimation.forecast.demand import ForecastState
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.policy.planner import Seen
from servingslo.policy.pools.demand import (
    forecast_of,
    learn_demand,
    learn_through_ratio,
    whole_window,
)
from servingslo.policy.pools.inputs import FleetTargets, Role
from servingslo.policy.pools.state import FleetState


def seen_at(
    *rates: float | None, waiting: float = 0.0, seconds: float = TICK_SECONDS
) -> dict[str, Seen]:
    """Both pools with these arrival rates; waiting: requests in the prefill pool's queues.

    seconds: that the rates were counted over.
    """
    found = {}
    for (name, one), rate in zip(world(2, 2).items(), rates, strict=True):
        window = None if rate is None else RateWindow(rate_per_second=rate, seconds=seconds)
        estimate = replace(
            one.context.estimate,
            arrival_rate_per_second=rate,
            window=window,
            waiting_requests=waiting if name == NAMES[0] else 0.0,
        )
        found[name] = replace(one, context=replace(one.context, estimate=estimate))
    return found


def learned(*samples: tuple[float, float], waiting: float = 0.0) -> FleetState:
    """The memory after these rates of prefill and decode, one a tick."""
    state = FleetState()
    for place, rates in enumerate(samples):
        now = (place + 1) * TICK_SECONDS
        state = learn_demand(fleet(), state, seen_at(*rates, waiting=waiting), now)
    return state


def rate_after(state: FleetState, *rates: float) -> float:
    """The level of demand once these rates have been counted often."""
    for place in range(40):
        now = (place + 100) * TICK_SECONDS
        state = learn_demand(fleet(), state, seen_at(*rates), now)
    return forecast_of(fleet(), state, now).mean_per_second(0.0)


def test_one_comparison_is_no_share() -> None:
    """A prefill pool that has just become ready counts few requests; demand is not multiplied."""
    assert learned((0.07, 2.4)).through_ratio == 1.0


def test_a_share_is_learnt_within_minutes() -> None:
    """Half of the requests go to decode at once; after twenty minutes that is known."""
    state = learned(*[(2.0, 4.0)] * 80)
    assert state.through_ratio == pytest.approx(0.5, abs=0.02)
    assert rate_after(state, 2.0, 4.0) == pytest.approx(4.0, rel=0.05)


def test_chance_leaves_the_share_at_one() -> None:
    """Where all pass, counts of both pools differ by chance, one way as often as the other."""
    state = FleetState()
    for place, rates in enumerate([(3.6, 3.0), (2.4, 3.0)] * 40):
        now = (place + 1) * TICK_SECONDS
        state = learn_demand(fleet(), state, seen_at(*rates), now)
        assert state.through_ratio == 1.0


def test_a_full_prefill_pool_teaches_nothing() -> None:
    """Its queue keeps requests from decode, so the two rates are not of the same requests."""
    for rates in ((4.0, 1.0), (1.0, 4.0)):
        seen = seen_at(*rates, waiting=40.0)
        assert learn_through_ratio(fleet(), FleetState(), seen, 15.0) == FleetState()


def test_prefills_window_is_learnt_as_the_pool_counted_it() -> None:
    """With the time and the error that it was counted with, as for a single target."""
    state = FleetState()
    own = ForecastState()
    for place, (rate, seconds) in enumerate([(20.0, 15.0), (23.0, 5.0), (40.0, 30.0)]):
        now = (place + 1) * TICK_SECONDS
        seen = seen_at(rate, 0.5 * rate, waiting=1_000.0, seconds=seconds)
        state = learn_demand(fleet(), state, seen, now)
        window = seen[NAMES[0]].context.estimate.window
        assert window is not None
        own = forecasts.observe(own, window, now)
    assert state.demand == own


def test_without_prefills_count_it_is_decodes() -> None:
    """Every request passes decode."""
    assert rate_after(FleetState(), 0.0, 3.0) == pytest.approx(3.0, rel=0.05)


def test_direct_requests_are_planned_for_at_once() -> None:
    """Decode counts them before the share is learnt, and also where its window is of before."""
    state = FleetState()
    for place in range(80):
        last = 10.0 if place < 40 else 20.0
        seen = seen_at(10.0, last)
        if place > 40 and place % 2:
            seen = {**seen, NAMES[1]: _counted_before(seen[NAMES[1]])}
        state = learn_demand(fleet(), state, seen, (place + 1) * TICK_SECONDS)
        if place >= 44:
            rate = forecast_of(fleet(), state, (place + 1) * TICK_SECONDS).mean_per_second(0.0)
            # Chance alone explains 17 where 20 were counted in a window.
            assert rate == pytest.approx(20.0, rel=0.2), place


def test_decodes_count_alone_teaches_nothing_while_prefill_counts_later() -> None:
    """A full prefill pool lets few through: that is not the demand."""
    state = learned(*[(10.0, 4.0)] * 4, waiting=40.0)
    seen = seen_at(10.0, 4.0, waiting=40.0)
    seen = {**seen, NAMES[0]: _counted_before(seen[NAMES[0]])}
    assert whole_window(fleet(), state, seen, 90.0) is None


def test_pools_of_whole_requests_count_each_second_once_and_none_without_a_rate() -> None:
    """Ticks between two scrapes of a pool, and a pool whose engines are not read."""
    targets = FleetTargets(
        pools=tuple(replace(pool, role=Role.COMBINED) for pool in fleet().pools), gpus_max=None
    )
    state = learn_demand(targets, FleetState(), seen_at(2.0, 3.0), 15.0)
    seen = seen_at(2.0, 3.0)
    seen = {**seen, NAMES[0]: _counted_before(seen[NAMES[0]])}
    window = whole_window(targets, state, seen, 20.0)
    assert window is not None
    assert (window.rate_per_second, window.seconds) == (5.0, 5.0)
    assert whole_window(targets, state, seen_at(2.0, None), 20.0) is None


def _counted_before(seen: Seen) -> Seen:
    """The pool with its rate, and nothing new."""
    estimate = replace(seen.context.estimate, window=None)
    return replace(seen, context=replace(seen.context, estimate=estimate))
