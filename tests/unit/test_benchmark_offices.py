"""Days with office hours, and the fleets between bound and oracle, as the benchmark has them."""

import numpy as np
import pytest
from tests.benchmarks import matrix_gap, matrix_offices
from tests.benchmarks.matrix_gap import capacity, gap_of
from tests.benchmarks.matrix_offices import BEGIN, MORNINGS, Remembering, past
from tests.benchmarks.seasons import DAY, HOUR, MONDAY

from servingslo.estimation.forecast import ForecastState, with_history
from servingslo.policy.inputs import Observation
from servingslo.reasons import Reason
from servingslo.sim.bound import least_replica_hours
from servingslo.sim.cluster import Wanted
from servingslo.sim.fleet import FleetSpec
from servingslo.sim.scenario import Scenario
from servingslo.sim.trace import Trace, write_trace
from servingslo.sim.workloads import constant, generated, uniform_lengths


def requests(seconds: float, every: float = 10.0) -> Trace:
    """One request every so many seconds."""
    arrivals = np.arange(0.0, seconds, every)
    ones = np.ones(len(arrivals), dtype=np.int64)
    return Trace(
        arrival_seconds=arrivals, prompt_tokens=ones, output_tokens=ones, duration_seconds=seconds
    )


def observed(time_seconds: float) -> Observation:
    """A look at nothing."""
    return Observation(
        time_seconds=time_seconds, namespace="a", name="b", uid="c", generation=1,
        desired_replicas=1, current_replicas=1, rollout_in_progress=False, pods=(),
    )  # fmt: skip


def test_the_past_is_what_the_operator_would_read():
    """Bins of five minutes up to now, fourteen days at most, what was served at its end."""
    first, later = (past(requests(2 * DAY), 1, until) for until in (0.0, DAY + 100.0))

    assert first.start_seconds == MONDAY
    assert first.start_seconds + len(first.rates_per_second) * 300.0 == BEGIN
    assert len(later.rates_per_second) == 14 * 288
    assert later.rates_per_second[-288:] == (0.1,) * 288
    assert later.start_seconds + 14 * DAY == BEGIN + DAY


def test_a_season_is_found_in_the_past():
    """Working days and rest days are told apart."""
    finding = with_history(ForecastState(), past(requests(60.0), 1, 0.0)).season.finding

    assert finding.reason is Reason.SEASON_FOUND
    assert finding.season.rest_days == (2, 3)


def test_the_planner_is_told_the_date_and_the_past_once_a_day():
    """At the first tick and a day later; never without a past."""

    class Asked:
        def __init__(self):
            self.seen = []

        def decide(self, observation):
            self.seen.append(observation)
            return Wanted()

    told, untold = Asked(), Asked()
    for planner, trace in ((told, requests(2 * DAY)), (untold, None)):
        world = Remembering(planner, trace, 1)
        for time in (15.0, 30.0, DAY, DAY + 15.0, DAY + 30.0):
            world.decide(observed(time))

    assert [o.history is not None for o in told.seen] == [True, False, False, True, False]
    assert all(o.history is None for o in untold.seen)
    assert [o.time_seconds - BEGIN for o in untold.seen[:2]] == [15.0, 30.0]


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
