"""The quantile of demand that is planned for."""

from dataclasses import replace

import pytest

from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.forecast.demand import Forecast, ForecastState, forecast, observe
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.forecast.season_offset import SeasonForecast
from servingslo.estimation.forecast.season_profile import Season
from servingslo.estimation.forecast.surges import Recurrence
from servingslo.policy.replicas.demand import (
    KEPT_LEADS,
    PLAIN_LEAD_SECONDS,
    SURGE_PROBABILITY,
    Demand,
    Fleet,
    expected_demand,
    kept_rate_per_second,
    planned_probability,
    step_down_load,
)
from servingslo.policy.replicas.promise import SAFE_PROBABILITY, SAFE_SCORE


def _calm(lead_seconds, score=SAFE_SCORE):
    return planned_probability(Forecast(), lead_seconds, score)


def test_the_calm_quantile_grows_with_the_lead_within_bounds():
    """What is missing is missing for a lead, so more is planned for a longer one."""
    assert _calm(PLAIN_LEAD_SECONDS) == pytest.approx(SAFE_PROBABILITY)
    leads = (1.0, 60.0, 120.0, 270.0, 480.0, 7200.0)
    found = [_calm(lead) for lead in leads]
    assert found == sorted(found)
    assert 0.5 <= found[0] < found[1] < SAFE_PROBABILITY
    assert 0.89 < found[3] <= found[4] == found[5] == SURGE_PROBABILITY


def test_what_is_earned_moves_the_calm_quantile():
    """A lower score plans for less, a higher one for more, never below the median."""
    assert 0.5 == _calm(120.0, -0.25) < _calm(120.0, 0.4) < _calm(120.0)


def test_a_jump_is_planned_for_as_the_crowd_that_it_may_be():
    """Half as much again within one scrape: the crowd's quantile, until demand is seen to stay."""
    state = ForecastState()
    rates = [20.0] * 40 + [30.0] * 12
    found = []
    for tick, rate in enumerate(rates):
        state = observe(state, RateWindow(rate_per_second=rate, seconds=15.0), 15.0 * tick)
        known = forecast(state, 15.0 * tick)
        found.append(planned_probability(known, PLAIN_LEAD_SECONDS, 0.385))
    assert found[39] == pytest.approx(0.65, abs=0.02)
    assert found[40] > 0.8
    assert found[-1] < 0.7


def _after_two_bursts(rate_per_second: float) -> Demand:
    """What is planned for when 60/s that went to 120/s twice are at this rate, all at once."""
    state = ForecastState()
    rest, burst = [60.0] * 30, [120.0] * 6
    for tick, rate in enumerate([*rest, *burst, *rest, *burst, *rest, rate_per_second]):
        state = observe(state, RateWindow(rate_per_second=rate, seconds=15.0), 15.0 * tick)
        known = forecast(state, 15.0 * tick)
    _, unknown = update(EstimatorState(), FleetSample(time_seconds=0.0, pods=()))
    estimate = replace(unknown, arrival_rate_per_second=rate_per_second, forecast=known)
    fleet = Fleet(serving=10, coming=0, saturation_rate_per_second=16.0)
    found = expected_demand(
        estimate, fleet, lead=PLAIN_LEAD_SECONDS, wait_budget=1.0, score=SAFE_SCORE
    )
    assert found is not None
    return found


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
    demand = expected_demand(estimate, fleet, lead=lead_seconds, wait_budget=1.0, score=SAFE_SCORE)
    assert demand is not None
    return step_down_load(estimate, demand).rate_per_second


def test_a_peak_of_the_season_within_the_lead_keeps_what_it_needs() -> None:
    """It is over when a replica could be had again; a lead that ends before it keeps nothing."""
    assert _kept(900.0) > 80.0
    assert _kept(60.0) < 30.0


def test_a_rise_is_never_capped_by_what_came_before() -> None:
    """Bursts to 120/s came twice; one that rises is planned for as what it may become."""
    assert _after_two_bursts(118.0).scale_up_load.rate_per_second > 130.0
    assert _after_two_bursts(180.0).scale_up_load.rate_per_second > 200.0


@pytest.mark.parametrize(
    ("over_leads", "probability", "kept"),
    [
        pytest.param(0.0, 0.5, 120.0, id="while-it-lasts"),
        pytest.param(4.9, 0.5, 120.0, id="one-in-two-comes-again"),
        pytest.param(5.1, 0.5, 0.0, id="holding-costs-more"),
        pytest.param(6.5, 2 / 3, 120.0, id="it-came-again-before"),
        pytest.param(3.4, 1 / 3, 0.0, id="it-did-not"),
    ],
)
def test_what_a_surge_reached_is_kept_while_its_return_would_cost_more(
    over_leads: float, probability: float, kept: float
) -> None:
    """Ten leads of holding cost what one return misses, weighed by how likely it is."""
    lead = 90.0
    assert KEPT_LEADS == 10.0
    recurrence = Recurrence(
        count=1,
        interval_seconds=600.0,
        rate_per_second=120.0,
        over_seconds=over_leads * lead,
        probability=probability,
    )
    assert kept_rate_per_second(Forecast(recurrence=recurrence), lead) == kept


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
        demand = expected_demand(estimate, fleet, lead=120.0, wait_budget=1.0, score=SAFE_SCORE)
        assert demand is not None
        found.append(demand.backlog_at_lead_requests)
    assert found[0] == 0.0
    assert found[1] > 15_000.0
