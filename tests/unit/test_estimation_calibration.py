"""Calibration: observed over predicted percentiles, learnt slowly and within bounds."""

import pytest

from servingslo.estimation.law import calibration
from servingslo.estimation.law.calibration import EMPTY_CALIBRATION
from servingslo.estimation.requests.histograms import HistogramDelta


def _latency(*counts: float) -> HistogramDelta:
    return HistogramDelta(upper_bounds=(0.1, 0.2, 0.4), counts=counts, sum=1.0)


@pytest.mark.parametrize(
    ("predicted", "low", "high"),
    [
        pytest.param(0.05, 1.5, 2.0, id="observed-higher"),
        pytest.param(0.15, 1.0, 1.0, id="same-bucket-is-right"),
        pytest.param(0.30, 0.7, 0.75, id="observed-lower"),
    ],
)
def test_calibration_moves_slowly_towards_the_observed_ratio(
    predicted: float, low: float, high: float
) -> None:
    """p99 observed in 0.1–0.2 s: bounds hold, and a prediction inside the bucket is not judged."""
    state = EMPTY_CALIBRATION
    latency = _latency(0.0, 1000.0, 0.0, 0.0)
    state = calibration.learn(state, {"ttft": {99.0: predicted}}, {"ttft": latency})
    assert abs(calibration.ratios(state).get("ttft", 1.0) - 1.0) < 0.15
    for _ in range(50):
        state = calibration.learn(state, {"ttft": {99.0: predicted}}, {"ttft": latency})
    assert low <= calibration.ratios(state)["ttft"] <= high
