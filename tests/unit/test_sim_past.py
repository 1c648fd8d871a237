"""The past that a backtest tells the planner: what the operator would have read, and when."""

import numpy as np
import pytest

from servingslo.adapters.prometheus.past import rates as past_rates
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.policy.inputs import Observation
from servingslo_lab.sim import past
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.past import Past, Remembering, history_of_arrivals, past_of_history
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.transforms import window

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


def test_the_bin_that_a_trace_begins_in_is_unknown():
    """Only a part of it was counted."""
    history = Past(begin_seconds=1100.0, rates_per_second=(2.0,)).history_at(every(1.0, 1e4), 950.0)

    assert history.start_seconds == 600.0
    assert history.rates_per_second == (2.0, None, 1.0, 1.0)


def test_arrivals_are_counted_in_whole_bins():
    """What begins or ends inside a bin is left out, and so is what comes later."""
    found = history_of_arrivals(100.0 + every(2.0, 5000.0), 100.0, 1000.0)

    assert found.start_seconds == 300.0
    assert found.rates_per_second == (0.5, 0.5)


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


def test_minutes_of_the_last_day_end_at_the_begin():
    """Of arrivals before the trace, then of its own; as many as Prometheus is asked for."""
    before = history_of_arrivals(every(2.0, 3610.0), 0.0, 3610.0)
    known = past_of_history(before, begin_seconds=3700.0, scale=3.0)
    later = known.history_at(every(0.5, 200.0), 150.0).recent

    assert known.recent_per_second == (1.5,) * 60 + (None,)
    assert later.rates_per_second == (*known.recent_per_second, 2.0, 2.0)
    assert later.start_seconds == 3700.0 - 61 * 60.0
    whole = known.history_at(every(60.0, 2 * DAY), 2 * DAY).recent
    assert len(whole.rates_per_second) == 1440


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


def test_a_part_of_a_trace_knows_when_it_begins():
    """As the whole does."""
    ones = np.ones(3, dtype=np.int64)
    whole = Trace(
        arrival_seconds=np.array([0.0, 60.0, 90.0]), prompt_tokens=ones, output_tokens=ones,
        duration_seconds=90.0, start_seconds=1000.0,
    )  # fmt: skip
    assert window(whole, 50.0, 90.0).start_seconds == 1050.0
