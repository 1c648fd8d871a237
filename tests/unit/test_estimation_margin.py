"""The margin: budget that burns adds to it, budget that is left pays back, bounds hold."""

import numpy as np
import pytest

from servingslo.estimation.histograms import HistogramDelta
from servingslo.estimation.margin import (
    HIGHEST_SCORE,
    LARGEST_BURN,
    STEP_PER_SECOND,
    MarginState,
    burn_ratio,
    learn,
    quantile_with_margin,
)
from servingslo.models.latency import LatencyMetric, Objective

TTFT = Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0)
TPOT = Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.05)
WINDOW_SECONDS = 15.0


def seen(bounds: tuple[float, ...], counts: tuple[float, ...]) -> HistogramDelta:
    """Latencies with these counts in these buckets."""
    return HistogramDelta(upper_bounds=bounds, counts=counts, sum=1.0)


def test_budget_that_is_left_pays_back_what_was_added_and_buys_nothing_else() -> None:
    """Hours without a miss end where the margin began: luck is no evidence for fewer replicas."""
    state = MarginState(score=0.3)
    for _ in range(1000):
        state = learn(state, 0.0, WINDOW_SECONDS)
    assert state.score == 0.0


def test_budget_that_burns_raises_the_margin_to_its_bound_and_no_further() -> None:
    """Nothing but misses ends at the upper bound, faster than misses are forgiven."""
    state, windows = MarginState(), 0
    while state.score < HIGHEST_SCORE:
        state, windows = learn(state, 100.0, WINDOW_SECONDS), windows + 1
    assert windows < 10
    assert learn(state, 100.0, WINDOW_SECONDS).score == HIGHEST_SCORE


def test_a_shortage_of_a_minute_is_remembered_for_an_hour() -> None:
    """It burns the budget of hours, so an hour without a miss does not pay for it."""
    state = MarginState()
    for _ in range(4):
        state = learn(state, 100.0, WINDOW_SECONDS)
    for _ in range(240):
        state = learn(state, 0.0, WINDOW_SECONDS)
    assert state.score > 0.0


@pytest.mark.parametrize("delay", [pytest.param(0, id="at-once"), pytest.param(8, id="delayed")])
def test_the_mean_burn_tracks_one_while_no_bound_is_active(delay: int) -> None:
    """A plant whose misses answer the margin of `delay` windows ago: long-run burn is 1."""
    rng = np.random.default_rng(7)
    scores, burns = [0.2] * (delay + 1), []
    state = MarginState(score=0.2)
    for window in range(6000):
        drift = 0.1 * np.sin(window / 300.0)
        allowed_ratio = float(np.exp(-4.0 * (scores[-1 - delay] - drift - 0.2)))
        burn = float(min(allowed_ratio * rng.exponential(), LARGEST_BURN))
        state = learn(state, burn, WINDOW_SECONDS)
        scores.append(state.score)
        burns.append(burn)
    assert min(scores) > 0.0
    assert max(scores) < HIGHEST_SCORE
    moved = abs(scores[-1] - scores[0]) / (STEP_PER_SECOND * WINDOW_SECONDS * len(burns))
    assert abs(np.mean(burns) - 1.0) == pytest.approx(moved, abs=1e-6)
    assert np.mean(burns) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    "burn", [pytest.param(None, id="unseen"), pytest.param(float("nan"), id="nan")]
)
def test_no_evidence_moves_nothing(burn: float | None) -> None:
    """A window without requests, and one that is not a number."""
    state = MarginState(score=0.3, burn_ratio=0.5)
    assert learn(state, burn, WINDOW_SECONDS) == state


def test_burn_is_missed_over_allowed_of_the_worst_objective() -> None:
    """Two of 100 miss a p99, one of 100 a p95: burns of 2 and 0.2, together 3 of 5."""
    observed = {"ttft": seen((1.0,), (98.0, 2.0)), "tpot": seen((0.05,), (99.0, 1.0))}
    assert burn_ratio((TTFT, TPOT), observed, 0.0) == pytest.approx(2.0)


def test_misses_of_two_objectives_add_up_against_the_smallest_percentile() -> None:
    """Each is within its own, but together they may be 7 % where 5 % are allowed."""
    loose = Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0)
    observed = {"ttft": seen((1.0,), (96.0, 4.0)), "tpot": seen((0.05,), (97.0, 3.0))}
    assert burn_ratio((loose, TPOT), observed, 0.0) == pytest.approx(1.4)


def test_a_rejected_request_misses() -> None:
    """No latency is missed, but one in twenty is refused."""
    observed = {"tpot": seen((0.05,), (100.0, 0.0))}
    assert burn_ratio((TPOT,), observed, 0.05) == pytest.approx(1.0)


def test_a_threshold_between_two_edges_moves_nothing_while_either_could_be_true() -> None:
    """All that is known is that 1 to 30 % missed of the 5 % that may: no news."""
    observed = {"tpot": seen((0.025, 0.075), (70.0, 29.0, 1.0))}
    assert burn_ratio((TPOT,), observed, 0.0) == 1.0


def test_nothing_observed_is_no_evidence() -> None:
    """Not a burn of zero."""
    assert burn_ratio((TTFT, TPOT), {}, 0.0) is None


def test_the_quantile_moves_with_the_score() -> None:
    """Zero changes nothing; the answer stays a probability."""
    assert quantile_with_margin(0.75, 0.0) == pytest.approx(0.75)
    assert 0.85 < quantile_with_margin(0.75, HIGHEST_SCORE) < 1.0
