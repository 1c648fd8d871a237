"""The planner with a part taken out: only as long as asked for, and only that part."""

import numpy as np
import pytest
from tests.benchmarks.matrix_parts import PARTS, PresentForecast, without

from servingslo.estimation.forecast.demand import ForecastState, forecast, observe
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.production import Production, benchmark_targets
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.workloads import RateCourse, generated, ramp, uniform_lengths

FLEET = FleetSpec(
    engine="l4-small", initial_replicas=3, cold_start=ColdStart(mean_seconds=60.0), max_replicas=20
)


def climb() -> Trace:
    """Three minutes at 9 requests a second, four to four times as many, and back."""
    course = ramp(
        9.0, 36.0, up_seconds=240.0, hold_seconds=60.0, down_seconds=60.0, rest_seconds=180.0
    )
    return generated(course, uniform_lengths((100, 900), (20, 200)), np.random.default_rng(5))


def level() -> Trace:
    """Ten minutes at 30 requests a second, where misses of one plan cannot raise the next."""
    course = RateCourse(times_seconds=(0.0, 600.0), rates_per_second=(30.0, 30.0))
    return generated(course, uniform_lengths((100, 900), (20, 200)), np.random.default_rng(5))


def wanted(trace: Trace, **objectives: float) -> list[int]:
    """The counts that the planner orders."""
    targets = benchmark_targets(max_replicas=20, **objectives)
    return [tick.desired for tick in simulate(FLEET, trace, Production(targets), seed=1).ticks]


@pytest.mark.parametrize(
    ("part", "trace", "objectives"),
    [
        pytest.param("forecast", climb(), {}, id="forecast"),
        pytest.param("quantile", climb(), {}, id="quantile"),
        # Where objectives are easily met the utilization binds.
        pytest.param("ceiling", level(), {"ttft_seconds": 5.0, "tpot_seconds": 0.2}, id="ceiling"),
    ],
)
def test_a_part_is_missing_as_long_as_the_block_lasts(part, trace, objectives):
    """Less is ordered without it, and as much as ever afterwards."""
    whole = wanted(trace, **objectives)
    with without(part):
        less = wanted(trace, **objectives)

    assert sum(less) < sum(whole)
    assert wanted(trace, **objectives) == whole


def test_means_order_less_than_percentiles_where_no_ceiling_does():
    """The part of the percentiles is found where percentiles are judged."""
    with without("ceiling"):
        by_percentiles = wanted(level(), tpot_seconds=0.03)
    with without("ceiling and percentiles"):
        by_means = wanted(level(), tpot_seconds=0.03)

    assert sum(by_means) < sum(by_percentiles)


def test_every_part_that_is_taken_out_can_be_found():
    """A name that the planner does not have any more would be taken out of nothing."""
    for part in PARTS:
        with without(part):
            pass


def test_without_a_forecast_the_rate_of_now_is_known_as_well_as_ever():
    """At every lead what is known at lead 0."""
    state = ForecastState()
    for at, rate in enumerate((4.0, 6.0, 9.0, 11.0)):
        state = observe(state, RateWindow(rate_per_second=rate, seconds=15.0), 15.0 * at)
    known = forecast(state, 45.0)
    present = PresentForecast(**{name: getattr(known, name) for name in known.__dataclass_fields__})

    assert present.mean_per_second(240.0) == known.mean_per_second(0.0)
    assert present.quantile_per_second(240.0, 0.9) == known.quantile_per_second(0.0, 0.9)
    assert present.mean_per_second(240.0) < known.mean_per_second(240.0)
