"""The quantile of demand that is planned for."""

from dataclasses import replace

import pytest

from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.forecast import Forecast, ForecastState, forecast, observe
from servingslo.estimation.rate_filters import RateWindow
from servingslo.estimation.season import Season
from servingslo.estimation.seasonal import SeasonForecast
from servingslo.models.latency import LatencyMetric, Objective
from servingslo.policy.demand import (
    CALM_PROBABILITY,
    LEAST_PROBABILITY,
    PLAIN_LEAD_SECONDS,
    SURGE_PROBABILITY,
    Demand,
    Fleet,
    expected_demand,
    planned_probability,
    step_down_load,
    target_odds,
)
from servingslo.policy.inputs import ReplicaTargets, ScaleTarget, Targets


def _targets(*percentiles):
    return Targets(
        target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama"),
        replicas=ReplicaTargets(minimum=1, maximum=9),
        objectives=tuple(
            Objective(metric=LatencyMetric.TTFT, percentile=p, threshold_seconds=1.0)
            for p in percentiles
        ),
    )


def _calm(lead_seconds, margin_score=0.0):
    return planned_probability(Forecast(), lead_seconds, margin_score)


def test_the_calm_quantile_grows_with_the_lead_within_bounds():
    """What is missing is missing for a lead, so more is planned for a longer one."""
    assert _calm(PLAIN_LEAD_SECONDS) == pytest.approx(CALM_PROBABILITY)
    leads = (1.0, 60.0, 120.0, 270.0, 480.0, 7200.0)
    found = [_calm(lead) for lead in leads]
    assert found == sorted(found)
    assert 0.45 < found[0] < found[1] < CALM_PROBABILITY
    assert 0.7 < found[3] < found[4] == found[5] < SURGE_PROBABILITY


def test_the_margin_moves_the_calm_quantile():
    """Budget that is left plans for less, budget that burns for more."""
    assert _calm(120.0, -0.25) < _calm(120.0) < _calm(120.0, 0.5)


def test_a_jump_is_planned_for_as_the_crowd_that_it_may_be():
    """Half as much again within one scrape: the crowd's quantile, until demand is seen to stay."""
    state = ForecastState()
    rates = [20.0] * 40 + [30.0] * 12
    found = []
    for tick, rate in enumerate(rates):
        state = observe(state, RateWindow(rate_per_second=rate, seconds=15.0), 15.0 * tick)
        known = forecast(state, 15.0 * tick)
        found.append(planned_probability(known, PLAIN_LEAD_SECONDS, 0.0))
    assert found[39] == pytest.approx(CALM_PROBABILITY, abs=0.02)
    assert found[40] > 0.8
    assert found[-1] < 0.7


def test_a_stricter_target_plans_for_a_higher_quantile():
    """Where fewer requests may miss, the odds of enough capacity grow by the cube root."""
    odds = [target_odds(_targets(p)) for p in (95.0, 99.0, 99.9)]
    assert odds == pytest.approx([0.2 ** (1 / 3), 1.0, 10 ** (1 / 3)])
    found = [planned_probability(Forecast(), PLAIN_LEAD_SECONDS, 0.0, one) for one in odds]
    assert found == sorted(set(found))
    assert found[1] == pytest.approx(CALM_PROBABILITY)
    # 0.65 has odds of 1.857.
    assert found[2] == pytest.approx(4.0 / 5.0, rel=1e-3)


def test_the_strictest_objective_decides_and_none_plans_below_the_median():
    """Several objectives share one fleet."""
    assert target_odds(_targets(95.0, 99.9)) == target_odds(_targets(99.9))
    assert target_odds(_targets()) == 1.0
    lax = target_odds(_targets(50.0))
    assert planned_probability(Forecast(), PLAIN_LEAD_SECONDS, 0.0, lax) == LEAST_PROBABILITY


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
    found = expected_demand(estimate, fleet, lead=PLAIN_LEAD_SECONDS, wait_budget=1.0)
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
    demand = expected_demand(estimate, fleet, lead=lead_seconds, wait_budget=1.0)
    assert demand is not None
    return step_down_load(estimate, demand).rate_per_second


def test_a_peak_of_the_season_within_the_lead_keeps_what_it_needs() -> None:
    """It is over when a replica could be had again; a lead that ends before it keeps nothing."""
    assert _kept(900.0) > 80.0
    assert _kept(60.0) < 30.0


@pytest.mark.parametrize("rate", [118.0, 124.0])
def test_a_burst_that_recurs_goes_as_far_as_those_before_it(rate: float) -> None:
    """Two deviations of what is counted in a window are no further: 120/s is 120 +- 3.7."""
    assert _after_two_bursts(rate).scale_up_load.rate_per_second == pytest.approx(120.0, rel=0.01)


def test_what_goes_further_than_bursts_before_it_is_planned_for_as_what_it_may_become() -> None:
    """Half as much again is no chance."""
    assert _after_two_bursts(180.0).scale_up_load.rate_per_second > 200.0
