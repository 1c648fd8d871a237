"""Demand of prefill and decode: the share that passes prefill, and the rate of the whole."""

from dataclasses import replace

import pytest
from tests.unit.policy_world import TICK_SECONDS
from tests.unit.test_policy_pools_guards import NAMES, fleet, world

from servingslo.estimation.forecast.demand import ForecastState
from servingslo.policy.planner import Seen
from servingslo.policy.pools.demand import (
    forecast_of,
    learn_demand,
    learn_through_ratio,
    whole_rate_per_second,
)
from servingslo.policy.pools.state import FleetState


def seen_at(*rates: float | None, waiting: float = 0.0) -> dict[str, Seen]:
    """Both pools with these arrival rates; waiting: requests in the prefill pool's queues."""
    found = {}
    for (name, one), rate in zip(world(2, 2).items(), rates, strict=True):
        estimate = replace(
            one.context.estimate,
            arrival_rate_per_second=rate,
            waiting_requests=waiting if name == NAMES[0] else 0.0,
        )
        found[name] = replace(one, context=replace(one.context, estimate=estimate))
    return found


def learned(*samples: tuple[float, float], waiting: float = 0.0) -> float | None:
    """The share after these rates of prefill and decode, one a tick."""
    state = FleetState()
    for place, rates in enumerate(samples):
        now = (place + 1) * TICK_SECONDS
        through = learn_through_ratio(fleet(), state, seen_at(*rates, waiting=waiting), now)
        state = FleetState(through_ratio=through, demand=ForecastState(time_seconds=now))
    return state.through_ratio


def test_one_comparison_is_no_share() -> None:
    """A prefill pool that has just become ready counts few requests; demand is not multiplied."""
    through = learned((0.07, 2.4))
    assert through is not None
    assert through > 0.9
    assert whole_rate_per_second(fleet(), seen_at(2.4, 2.4), through) == pytest.approx(2.4, rel=0.1)


def test_a_share_is_learnt_within_minutes() -> None:
    """Half of the requests go to decode at once; after twenty minutes that is known."""
    through = learned(*[(2.0, 4.0)] * 80)
    assert through == pytest.approx(0.5, abs=0.02)
    assert whole_rate_per_second(fleet(), seen_at(2.0, 4.0), through) == pytest.approx(
        4.0, rel=0.05
    )


def test_chance_leaves_no_share_below_one() -> None:
    """Where all pass, counts of both pools differ by chance, one way as often as the other."""
    through = learned(*[(3.6, 3.0), (2.4, 3.0)] * 40)
    assert through is not None
    assert through > 0.97


def test_a_full_prefill_pool_teaches_nothing() -> None:
    """Its queue keeps requests from decode, so the two rates are not of the same requests."""
    assert learned(*[(4.0, 1.0)] * 10, waiting=40.0) is None
    assert learned(*[(1.0, 4.0)] * 10, waiting=40.0) is None


def rates_after(
    *ticks: tuple[float, float], waiting: float = 0.0, unread: frozenset[int] = frozenset()
) -> list[float]:
    """A high quantile of demand after each tick of (prefill, decode).

    waiting: in the last. unread: ticks, from 0, at which prefill has no new reading.
    """
    state, found = FleetState(), []
    for place, rates in enumerate(ticks):
        now, queue = (place + 1) * TICK_SECONDS, waiting if place == len(ticks) - 1 else 0.0
        seen = {
            name: replace(
                one,
                state=replace(
                    one.state,
                    estimator=replace(
                        one.state.estimator,
                        forecast=replace(
                            one.state.estimator.forecast,
                            time_seconds=now - TICK_SECONDS
                            if name == "prefill" and place in unread
                            else now,
                        ),
                    ),
                ),
            )
            for name, one in seen_at(*rates, waiting=queue).items()
        }
        state = learn_demand(fleet(), state, seen, now)
        found.append(forecast_of(fleet(), state, now).quantile_per_second(30.0, 0.95))
    return found


def test_requests_that_decode_did_not_see_are_put_off_for_one_tick() -> None:
    """A page that was empty for a moment shows all its requests at once; a crowd stays."""
    calm = rates_after((1.0, 1.0), (1.0, 1.0), (10.0, 0.5), (1.0, 1.0))
    assert max(calm[1:]) < 1.5
    crowd = rates_after((1.0, 1.0), (1.0, 1.0), (10.0, 0.5), (10.0, 0.5))
    assert crowd[-1] > 3.0


def test_the_same_reading_of_prefill_confirms_nothing() -> None:
    """A tick that looks at the same scrape again is no second count."""
    ticks = (1.0, 1.0), (1.0, 1.0), (10.0, 0.5), (10.0, 0.5), (1.0, 1.0)
    assert max(rates_after(*ticks, unread=frozenset({3}))[1:]) < 1.5
    assert max(rates_after(*ticks)[1:]) > 3.0


def test_a_crowd_that_waits_in_prefill_counts_at_once() -> None:
    """What decode did not see is still there."""
    rates = rates_after((1.0, 1.0), (1.0, 1.0), (10.0, 1.0), waiting=130.0)
    assert rates[-1] > 3.0
