"""Observed over predicted percentiles, learnt slowly and within bounds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from servingslo.copying import replace
from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.models.engine.service_time import ServiceLaw

# A law that is off by more than this is wrong, not uncalibrated: the trust gate judges it.
RATIO_BOUNDS = (0.7, 2.0)
# Share of the log ratio that one full window of two minutes moves: ten minutes of memory.
LEARNING_RATE = 0.2
# Observations that make a window full at the percentile: this many are expected beyond it.
EXPECTED_BEYOND = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationState:
    """Logarithms of observed / predicted by metric.

    stated: the law that predicted, if the resource states it; None for a fitted law, which follows
    the engine by itself.
    """

    log_ratios: Mapping[str, float]
    stated: ServiceLaw | None = None


EMPTY_CALIBRATION = CalibrationState(log_ratios={})


def ratios(state: CalibrationState) -> dict[str, float]:
    """Return observed over predicted by metric, within [0.7, 2]; absent metrics have 1."""
    low, high = RATIO_BOUNDS
    return {
        metric: min(max(math.exp(value), low), high) for metric, value in state.log_ratios.items()
    }


def of_law(state: CalibrationState, stated: ServiceLaw | None) -> CalibrationState:
    """Return the state if it was learnt under this law; else an empty one.

    The errors of another law no longer apply. stated: None for a fitted law.
    """
    if state.stated == stated:
        return state
    return CalibrationState(log_ratios={}, stated=stated)


def learn(
    state: CalibrationState,
    predicted_seconds: Mapping[str, Mapping[float, float]],
    observed: Mapping[str, HistogramDelta],
) -> CalibrationState:
    """Return the state after comparing predictions for the present load with observations.

    predicted_seconds: uncalibrated, by metric and percentile. Buckets are coarse: a prediction
    inside the observed quantile's bucket is right. Outside, only the distance to the bucket's edge
    counts as error.
    """
    low, high = (math.log(bound) for bound in RATIO_BOUNDS)
    logs = dict(state.log_ratios)
    for metric, by_percentile in predicted_seconds.items():
        latency = observed.get(metric)
        if latency is None:
            continue
        for percentile, predicted in by_percentile.items():
            error = log_error(latency, percentile, predicted * math.exp(logs.get(metric, 0.0)))
            if error is None:
                continue
            beyond = latency.count * (1.0 - percentile / 100.0)
            rate = LEARNING_RATE * min(beyond / EXPECTED_BEYOND, 1.0) / len(by_percentile)
            step = min(max(error, low), high)
            logs[metric] = min(max(logs.get(metric, 0.0) + rate * step, low), high)
    return replace(state, log_ratios=logs)


def log_error(latency: HistogramDelta, percentile: float, predicted: float) -> float | None:
    """Return the log of observed over predicted, 0 inside the bucket; None without evidence."""
    bucket = latency.bucket_of(percentile)
    if bucket is None or not math.isfinite(predicted) or predicted <= 0:
        return None
    lower, upper, _ = bucket
    if predicted < lower:
        return math.log(lower / predicted)
    if predicted > upper > 0:
        return math.log(upper / predicted)
    return 0.0
