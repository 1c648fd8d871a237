"""Days with office hours, and the fleets between bound and oracle, as the benchmark has them."""

import numpy as np
import pytest
from tests.benchmarks import matrix_gap, matrix_offices
from tests.benchmarks.matrix_gap import capacity, gap_of
from tests.benchmarks.matrix_offices import BEGIN, MORNINGS, past
from tests.benchmarks.seasons import DAY, HOUR, MONDAY

from servingslo.estimation.forecast.demand import ForecastState, with_history
from servingslo.reasons import Reason
from servingslo_lab.sim.bounds.bound import least_replica_hours
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.scenario import Scenario
from servingslo_lab.sim.traces.trace_files import write_trace
from servingslo_lab.sim.traces.workloads import constant, generated, uniform_lengths


def test_a_season_is_found_in_the_past():
    """Working days and rest days are told apart."""
    history = past(1).history_at(np.array([]), 0.0)
    finding = with_history(ForecastState(), history).season.finding

    assert history.start_seconds == MONDAY
    assert history.start_seconds + len(history.rates_per_second) * 300.0 == BEGIN
    assert finding.reason is Reason.SEASON_FOUND
    assert finding.season.rest_days == (2, 3)


def test_mornings_are_those_of_the_days_that_are_served():
    """Nine o'clock of Monday and of Tuesday lie in them, the rise takes place around it."""
    for day, (begin, end) in enumerate(MORNINGS, start=14):
        nine = MONDAY + day * DAY + 9 * HOUR - BEGIN
        assert begin < nine - 180.0 < nine + 180.0 < end
        rates = matrix_offices.offices(BEGIN + np.array([begin, end]), 1.0, 16.0)
        assert rates[1] > 3 * rates[0]


@pytest.fixture
def steady(tmp_path) -> Scenario:
    """An hour of steady demand on the small card."""
    rng = np.random.default_rng(1)
    trace = generated(constant(6.0, 1800.0), uniform_lengths((200, 800), (50, 150)), rng)
    path = tmp_path / "steady.csv"
    write_trace(trace, path)
    return Scenario(name="steady", fleet=FleetSpec(engine="l4-small"), trace_path=str(path))


def test_fleets_between_bound_and_oracle_cost_more_one_after_the_other(steady, monkeypatch):
    """Percentiles leave a part of a replica idle; whole replicas cost more than fractions."""
    monkeypatch.setattr(matrix_gap, "_REPLICAS", 6)
    monkeypatch.setattr(matrix_gap, "_SECONDS", 300.0)
    monkeypatch.setattr(matrix_gap, "_STEPS", 5)
    taken = capacity(steady, 1)
    gap = gap_of(steady, 1, taken)
    least = least_replica_hours(steady.fleet, steady.trace(1), steady.objectives)

    assert 0.5 < taken < 1.0
    assert least < gap.fluid_hours < gap.whole_hours
    # All of the work at that load.
    assert gap.fluid_hours == pytest.approx(least / 0.985 / taken, rel=0.04)
