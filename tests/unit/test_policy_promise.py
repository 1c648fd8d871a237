"""The planned quantile: it begins safe, is earned by kept requests, and comes back with misses."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.misses import Misses
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import ErrorBudgetTargets
from servingslo.policy.replicas.promise import (
    DEFAULT_PERIOD_SECONDS,
    EARNED_SECONDS,
    HIGHEST_SCORE,
    LOWEST_SCORE,
    SAFE_PROBABILITY,
    SAFE_SCORE,
    PromiseState,
    misses_of,
    period_seconds,
    promise_report,
    steer,
)
from servingslo.policy.state import PlannerState
from servingslo.policy.stored_state import learned, restore
from servingslo_lab.sim.production import benchmark_targets

TICK = 15.0
TTFT = Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0)
TPOT = Objective(metric=LatencyMetric.TPOT, percentile=99.0, threshold_seconds=0.05)


def _steered(state: PromiseState, *shares: float, rate: float = 20.0) -> PromiseState:
    """The state after ticks in which these shares of the requests missed."""
    begin = 0.0 if state.at_seconds is None else state.at_seconds
    for place, share in enumerate(shares, start=1):
        requests = rate * TICK
        missed = share * requests
        state = steer(
            state,
            Misses(requests=requests, least=missed, most=missed),
            target_ratio=0.99,
            period_seconds=DEFAULT_PERIOD_SECONDS,
            now_seconds=begin + place * TICK,
        )
    return state


BEGUN = replace(PromiseState(), at_seconds=0.0)


def test_a_new_workload_is_planned_for_at_the_safe_quantile():
    """And one reading alone moves nothing: how long it speaks for is not known."""
    assert PromiseState().probability == pytest.approx(SAFE_PROBABILITY)
    assert _steered(PromiseState(), 0.5).score == SAFE_SCORE


def test_what_was_kept_for_hours_is_earned_step_by_step():
    """Without a miss the way to the lowest takes the stated time, and no longer goes on then."""
    halfway = _steered(BEGUN, *[0.0] * round(EARNED_SECONDS / 2 / TICK))
    assert halfway.score == pytest.approx((SAFE_SCORE + LOWEST_SCORE) / 2, abs=1e-3)
    assert _steered(halfway, *[0.0] * round(EARNED_SECONDS / TICK)).score == LOWEST_SCORE


def test_a_miss_moves_it_back_faster_than_it_came():
    """One minute in which one request in ten misses takes back what nine minutes earned."""
    earned = _steered(BEGUN, *[0.0] * 120)
    missed = _steered(earned, *[0.1] * 4)
    assert missed.score - earned.score == pytest.approx(9 * (SAFE_SCORE - earned.score) / 30, 0.05)
    assert _steered(earned, *[0.5] * 40).score == HIGHEST_SCORE


def test_a_share_that_is_just_the_declared_one_moves_nothing():
    """One in a hundred may miss: neither earned nor owed."""
    assert _steered(BEGUN, *[0.01] * 100).score == pytest.approx(SAFE_SCORE, abs=1e-9)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=200), st.floats(0.01, 500.0))
def test_the_score_stays_within_its_bounds_and_the_share_is_that_of_the_requests(
    shares: list[float], rate: float
):
    """Whatever is missed, at any rate."""
    state = _steered(BEGUN, *shares, rate=rate)
    assert LOWEST_SCORE <= state.score <= HIGHEST_SCORE
    assert state.attained_ratio == pytest.approx(1.0 - sum(shares) / len(shares), abs=0.02)


@given(st.lists(st.floats(0.0, 0.3), min_size=300, max_size=300))
def test_what_is_missed_beyond_the_target_is_answered_by_a_safer_quantile(shares: list[float]):
    """At the end it is as low as before only if no more was missed than allowed, up to its bounds.

    The guarantee of conformal control: the sum of moves is the sum of what is owed.
    """
    state = _steered(BEGUN, *shares)
    if sum(shares) / len(shares) > 0.02:
        assert state.score > SAFE_SCORE


def test_time_that_goes_back_or_stands_teaches_nothing():
    """A tick that is repeated is no second reading."""
    state = _steered(BEGUN, 0.0, 0.0)
    again = steer(
        state, Misses(requests=9.0, least=9.0, most=9.0), target_ratio=0.99, period_seconds=1e5,
        now_seconds=TICK,
    )  # fmt: skip
    assert again == state


def _latency(counts: tuple[float, ...], bounds: tuple[float, ...]) -> HistogramDelta:
    return HistogramDelta(upper_bounds=bounds, counts=counts, sum=0.0)


def test_requests_that_miss_any_objective_and_those_refused_count_as_missed():
    """At least as many as missed the worst objective, at most the sum; refusals in full."""
    seen = misses_of(
        {
            "ttft": _latency((90.0, 10.0), (1.0,)),
            "tpot": _latency((95.0, 5.0), (0.05,)),
        },
        (TTFT, TPOT),
        refused=4.0,
    )
    assert seen == Misses(requests=104.0, least=14.0, most=19.0)


def test_where_nothing_is_observed_nothing_is_concluded():
    """An engine without histograms neither earns nor loses."""
    assert misses_of({}, (TTFT, TPOT), refused=0.0) is None


def test_what_was_earned_survives_a_restart():
    """Score and attained share are as they were; how long the pause was is not known."""
    earned = _steered(BEGUN, *[0.0] * 200, 0.2)
    stored = learned(PlannerState(promise=earned), now_seconds=5e3)
    back = restore(stored, now_seconds=6e3).promise
    assert back.score == pytest.approx(earned.score, abs=1e-3)
    assert back.attained_ratio == pytest.approx(earned.attained_ratio, abs=1e-3)
    assert back.at_seconds is None


@pytest.mark.parametrize(
    "stored", [None, 3, {"score": "high"}, {"score": 1.0, "requests": -1.0}, {"score": True}]
)
def test_what_cannot_be_read_begins_at_the_safe_quantile(stored: object):
    """A status that was edited by hand saves nothing."""
    memory = restore({"version": 1, "promise": stored}, now_seconds=1e3)
    assert memory.promise == PromiseState()


def test_a_score_from_elsewhere_is_brought_within_bounds():
    """Nothing in a status lowers the quantile below what can be earned."""
    stored = {"score": -9.0, "requests": 10.0, "missed": 99.0, "rate": 1.0, "seconds": 5.0}
    found = restore({"version": 1, "promise": stored}, now_seconds=1e3).promise
    assert found.score == LOWEST_SCORE
    assert found.attained_ratio == 0.0


def test_target_and_period_are_the_error_budgets_where_one_is_stated():
    """Else the smallest percentile, and a day."""
    plain = benchmark_targets()
    assert period_seconds(plain) == DEFAULT_PERIOD_SECONDS
    stated = replace(
        plain, error_budget=ErrorBudgetTargets(target_ratio=0.995, window_seconds=7 * 86400.0)
    )
    report = promise_report(stated, _steered(BEGUN, 0.0, 0.0))
    assert report is not None
    assert (report.target_ratio, report.period_seconds) == (0.995, 7 * 86400.0)
    assert promise_report(plain, PromiseState()) is None
