"""The quantile of demand that is planned for."""

from dataclasses import replace

import pytest

from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.forecast.demand import Forecast, ForecastState, forecast, observe
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.forecast.season_offset import SeasonForecast
from servingslo.estimation.forecast.season_profile import Season
from servingslo.policy.replicas.demand import (
    CALM_PROBABILITY,
    PLAIN_LEAD_SECONDS,
    SURGE_PROBABILITY,
    Fleet,
    expected_demand,
    planned_probability,
    step_down_load,
)


def _calm(lead_seconds):
    return planned_probability(Forecast(), lead_seconds)


def test_the_calm_quantile_grows_with_the_lead_within_bounds():
    """What is missing is missing for a lead, so more is planned for a longer one."""
    assert _calm(PLAIN_LEAD_SECONDS) == pytest.approx(CALM_PROBABILITY)
    leads = (1.0, 60.0, 120.0, 270.0, 480.0, 7200.0)
    found = [_calm(lead) for lead in leads]
    assert found == sorted(found)
    assert 0.5 <= found[0] < found[1] < CALM_PROBABILITY
    assert 0.87 < found[3] <= found[4] == found[5] == SURGE_PROBABILITY


def test_a_jump_is_planned_for_as_the_crowd_that_it_may_be():
    """Half as much again within one scrape: the crowd's quantile, until demand is seen to stay."""
    state = ForecastState()
    rates = [20.0] * 40 + [30.0] * 12
    found = []
    for tick, rate in enumerate(rates):
        state = observe(state, RateWindow(rate_per_second=rate, seconds=15.0), 15.0 * tick)
        known = forecast(state, 15.0 * tick)
        found.append(planned_probability(known, PLAIN_LEAD_SECONDS))
    assert found[39] == pytest.approx(CALM_PROBABILITY, abs=0.02)
    assert found[40] > CALM_PROBABILITY + 0.04
    assert found[-1] < CALM_PROBABILITY + 0.02


def _kept(lead_seconds: float) -> float:
    """What a step down must leave at noon, with a peak of 100/s on 20/s from 12:05 to 12:10."""
    profile = [20.0] * 288
    profile[145] = 100.0
    season = Season(
        slot_seconds=300.0,
        day_start_seconds=0.0,
        rest_days=(),
        profiles=(tuple(profile),),
        slot_variances=((1e-4,) * 288,),
        strength_ratio=0.95,
    )
    noon = 12 * 3600.0
    state = ForecastState()
    for tick in range(40):
        at = noon - 15.0 * (39 - tick)
        state = observe(state, RateWindow(rate_per_second=20.0, seconds=15.0), at)
    believed = SeasonForecast(
        season=season, time_seconds=noon, offset=0.0, variance=1e-4, weights=(1.0, 1.0, 1.0)
    )
    known = replace(forecast(state, noon), season=believed)
    _, unknown = update(EstimatorState(), FleetSample(time_seconds=noon, pods=()))
    estimate = replace(unknown, arrival_rate_per_second=20.0, forecast=known)
    fleet = Fleet(serving=10, coming=0, saturation_rate_per_second=16.0)
    demand = expected_demand(estimate, fleet, lead=lead_seconds, wait_budget=1.0)
    assert demand is not None
    return step_down_load(estimate, demand).rate_per_second


def test_a_peak_of_the_season_within_the_lead_keeps_what_it_needs() -> None:
    """It is over when a replica could be had again; a lead that ends before it keeps nothing."""
    assert _kept(900.0) > 80.0
    assert _kept(60.0) < 30.0


def test_a_queue_inside_engines_is_no_work_for_new_replicas() -> None:
    """20,000 requests that wait at engines drain there; those at a gateway can be moved."""
    _, unknown = update(EstimatorState(), FleetSample(time_seconds=0.0, pods=()))
    state = ForecastState()
    for tick in range(20):
        state = observe(state, RateWindow(rate_per_second=5.0, seconds=15.0), 15.0 * tick)
    estimate = replace(
        unknown,
        arrival_rate_per_second=5.0,
        backlog_requests=20_000.0,
        forecast=forecast(state, 285.0),
    )
    found = []
    for queued in (20_000.0, 0.0):
        fleet = Fleet(serving=2, coming=0, saturation_rate_per_second=16.0, queued_requests=queued)
        demand = expected_demand(estimate, fleet, lead=120.0, wait_budget=1.0)
        assert demand is not None
        found.append(demand.backlog_at_lead_requests)
    assert found[0] == 0.0
    assert found[1] > 15_000.0
