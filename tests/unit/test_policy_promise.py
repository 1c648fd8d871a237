"""The attained share of requests beside the declared one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.misses import Misses, Within, misses
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.replicas.promise import (
    PromiseState,
    after_window,
    misses_of,
    promise_report,
)
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.stored_state import learned, restore
from servingslo_lab.sim.production import benchmark_targets

TICK = 15.0
TTFT = Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0)
TPOT = Objective(metric=LatencyMetric.TPOT, percentile=99.0, threshold_seconds=0.05)


def _counted(state: PromiseState, *shares: float, rate: float = 20.0) -> PromiseState:
    """The state after ticks in which these shares of the requests missed."""
    begin = 0.0 if state.at_seconds is None else state.at_seconds
    for place, share in enumerate(shares, start=1):
        requests = rate * TICK
        missed = share * requests
        state = after_window(
            state,
            Misses(requests=requests, least=missed, most=missed),
            period_seconds=86_400.0,
            now_seconds=begin + place * TICK,
        )
    return state


BEGUN = replace(PromiseState(), at_seconds=0.0)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=200), st.floats(0.01, 500.0))
def test_the_share_is_that_of_the_requests(shares: list[float], rate: float):
    """Whatever is missed, at any rate."""
    state = _counted(BEGUN, *shares, rate=rate)
    assert state.attained_ratio == pytest.approx(1.0 - sum(shares) / len(shares), abs=0.02)


def test_time_that_goes_back_or_stands_teaches_nothing():
    """A tick that is repeated is no second reading."""
    state = _counted(BEGUN, 0.0, 0.0)
    again = after_window(
        state, Misses(requests=9.0, least=9.0, most=9.0), period_seconds=1e5,
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
    """An engine without histograms is neither in time nor late."""
    assert misses_of({}, (TTFT, TPOT), refused=0.0) is None


def test_what_was_attained_survives_a_restart():
    """The share is as it was; how long the pause was is not known."""
    before = _counted(BEGUN, *[0.0] * 200, 0.2)
    stored = learned(PlannerState(promise=before), now_seconds=5e3)
    back = restore(stored, now_seconds=6e3).promise
    assert back.attained_ratio == pytest.approx(before.attained_ratio, abs=1e-3)
    assert back.at_seconds is None


@given(
    requests=st.lists(
        st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=200
    ),
    refused=st.integers(0, 50),
)
def test_what_really_missed_lies_within_the_interval(requests, refused):
    """Requests that meet or miss each of three objectives, in any combination."""
    columns = list(zip(*requests, strict=True))
    each = [
        Within(requests=float(len(column)), least=float(sum(column)), most=float(sum(column)))
        for column in columns
    ]
    found = misses(each, float(refused))
    truth = sum(not all(one) for one in requests) + refused
    assert found.least <= truth <= found.most
    assert found.requests == len(requests) + refused
    assert found.most <= found.requests


def test_what_an_older_release_stored_is_still_read():
    """Its score and rate are ignored, and no more missed than arrived."""
    stored = {"score": -9.0, "requests": 10.0, "missed": 99.0, "rate": 1.0, "seconds": 5.0}
    found = restore({"version": 1, "promise": stored}, now_seconds=1e3).promise
    assert found.attained_ratio == 0.0


def test_share_and_period_are_those_that_are_stated():
    """Else the smallest percentile, and a day."""
    plain = benchmark_targets()
    assert plain.promised_share_ratio == min(one.percentile for one in plain.objectives) / 100.0
    stated = replace(plain, stated_share_ratio=0.995, promise_period_seconds=7 * 86400.0)
    report = promise_report(stated, _counted(BEGUN, 0.0, 0.0))
    assert report is not None
    assert (report.target_ratio, report.period_seconds) == (0.995, 7 * 86400.0)
    assert promise_report(plain, PromiseState()) is None
