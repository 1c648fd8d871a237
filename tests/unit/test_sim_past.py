"""The past that a backtest tells the planner: what the operator would have read, and when."""

import numpy as np
import pytest

from servingslo.adapters.prometheus.past import rates as past_rates
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.policy.inputs import Observation
from servingslo_lab.sim import past
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.past import Past, Remembering, past_of_history

DAY = 86400.0
TWO_WEEKS = tuple(float(place) for place in range(14 * 288))


def every(seconds: float, until: float) -> np.ndarray:
    """Arrivals at this distance, the first one at 0."""
    return np.arange(0.0, until, seconds)


def observed(time_seconds: float) -> Observation:
    """A look at nothing."""
    return Observation(
        time_seconds=time_seconds, namespace="a", name="b", uid="c", generation=1,
        desired_replicas=1, current_replicas=1, rollout_in_progress=False, pods=(),
    )  # fmt: skip


def test_bins_and_days_are_those_of_the_operator():
    """The simulator may not know the reader, so both state them."""
    assert past.BIN_SECONDS == past_rates.BIN_SECONDS
    assert past.HISTORY_DAYS == past_rates.HISTORY_DAYS


def test_what_arrived_since_is_remembered_with_the_past():
    """Whole bins up to now, fourteen days at most; at the begin the past alone."""
    known = Past(begin_seconds=30 * DAY, rates_per_second=TWO_WEEKS)
    first, later = (known.history_at(every(10.0, 2 * DAY), at) for at in (0.0, DAY + 100.0))

    assert first.rates_per_second == TWO_WEEKS
    assert first.start_seconds == 16 * DAY
    assert later.start_seconds == 17 * DAY
    assert later.rates_per_second == TWO_WEEKS[288:] + (0.1,) * 288


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        pytest.param(900.0, (2.0, 4.0), id="its end"),
        pytest.param(700.0, (2.0,), id="before its end"),
        pytest.param(1500.0, (2.0, 4.0, None, None), id="after its end"),
        pytest.param(100.0, (), id="before all of it"),
    ],
)
def test_a_history_is_cut_or_filled_to_the_begin(begin, expected):
    """Nothing later than the trace is told, and what is unknown is not taken for no requests."""
    history = RateHistory(start_seconds=300.0, bin_seconds=300.0, rates_per_second=(1.0, 2.0))
    assert past_of_history(history, begin_seconds=begin, scale=2.0).rates_per_second == expected


def test_the_planner_is_told_once_a_day_and_what_time_it_is():
    """At the first tick and a day later."""

    class Asked:
        def __init__(self):
            self.seen = []

        def decide(self, observation):
            self.seen.append(observation)
            return Wanted(replicas=3)

    planner = Asked()
    world = Remembering(planner, Past(begin_seconds=DAY), every(10.0, 2 * DAY))
    wanted = [world.decide(observed(at)) for at in (15.0, 30.0, DAY, DAY + 15.0, DAY + 30.0)]

    assert wanted[0].replicas == 3
    assert [o.history is not None for o in planner.seen] == [True, False, False, True, False]
    assert planner.seen[0].history.rates_per_second == ()
    assert planner.seen[3].history.rates_per_second == (0.1,) * 288
    assert [o.time_seconds - DAY for o in planner.seen[:2]] == [15.0, 30.0]
