"""Moments of the time per output token of one load, compiled; see `inter_token`."""

import math
from typing import Any

import numpy as np

from servingslo.models import bursts, first_gaps, gap_loads, gap_prefill, inter_token
from servingslo.models.compiled.idle import idle_share
from servingslo.models.compiled.shared import share, share_modules
from servingslo.models.gap_loads import GapLoad
from servingslo.models.occupancy import cluster_third_moment
from servingslo.models.output_laws import OutputGaps
from servingslo.models.pools import Shared
from servingslo.models.service_time import FloatArray, RequestDemand

# Rows of `length_numbers`, a column for each output length.
GAPS, _INVERSE, _INVERSE_SQUARE, WEIGHTS = range(4)
# Rows of moments.
MEAN, DEVIATION, SKEWNESS = range(3)


def length_numbers(output: OutputGaps) -> FloatArray:
    """Gaps by output length as one array: gaps, 1/gaps, 1/gaps² and weights."""
    numbers = np.empty((WEIGHTS + 1, len(output.gaps)))
    numbers[:WEIGHTS] = output.powers
    numbers[WEIGHTS] = output.weights
    return numbers


def moments_of_gaps(
    demand: RequestDemand, lengths: Any, load: GapLoad, budget_tokens: float, moments: Any
) -> float:
    """`inter_token.gap_moments` of one load, into three rows; returns the time of prefill."""
    step = gap_loads.own_step(demand, load)
    busy = 1.0
    if load.pool_count > 1:
        busy -= idle_share(
            demand,
            Shared(
                load.pool_count,
                load.rate_per_second,
                load.mean,
                load.variance,
                step,
                load.prefill_steps,
            ),
        )
    first = inter_token.first_step(demand, load, step, budget_tokens)
    others = first.others_seconds * busy
    prefill = inter_token.first_token_after(demand, load, step, budget_tokens, others)
    met: Any = inter_token.met_in_gaps(demand, load, step, first, prefill, busy)
    bursty = load.bursts.limit_excess > 0.0
    for column in range(lengths.shape[1]):
        powers: Any = (
            lengths[GAPS, column],
            lengths[_INVERSE, column],
            lengths[_INVERSE_SQUARE, column],
        )
        burst: Any = (0.0, 0.0)
        if bursty:
            burst = inter_token.burst_in_gaps(powers, met)
        mean, deviation, skewness = inter_token.moments_in_gaps(powers, met, burst, load.pool_count)
        moments[MEAN, column] = mean
        moments[DEVIATION, column] = deviation
        moments[SKEWNESS, column] = skewness
    return prefill


def laws_met(demand: RequestDemand, lengths: Any, load: GapLoad, budget_tokens: float) -> Any:
    """Moments of those who meet both rates, and where arrivals are bursty of those who meet one.

    Moments as laws × 3 × lengths, and the weights of the lengths in each as laws × lengths: see
    `inter_token.states_of_bursts`.
    """
    count = lengths.shape[1]
    ratio = load.rate_per_second * demand.prefill_mean_seconds
    swing = bursts.swing_of(load.bursts, ratio)
    states = 1 if swing == 0.0 else 3
    moments = np.empty((states, 3, count))
    weights = np.empty((states, count))
    moments_of_gaps(demand, lengths, load, budget_tokens, moments[0])
    for column in range(count):
        weights[0, column] = lengths[WEIGHTS, column]
    if states == 1:
        return moments, weights
    step = demand.step_fixed_seconds + demand.step_growth_seconds * load.mean
    forgetting = -0.5 * step / ((1.0 - ratio) * load.bursts.correlation_seconds)
    for state in range(1, 3):
        change = swing if state == 2 else -swing
        shifted = gap_loads.at_changed_rate(demand, load, change, swing)
        moments_of_gaps(demand, lengths, shifted, budget_tokens, moments[state])
        for column in range(count):
            unchanged = math.exp(lengths[GAPS, column] * forgetting)
            met = 0.5 * (1.0 + change) * unchanged * lengths[WEIGHTS, column]
            weights[state, column] = met
            weights[0, column] -= met
    return moments, weights


share(
    bursts.lasting_change,
    bursts.remembered_share,
    bursts.swing_of,
    cluster_third_moment,
    first_gaps.own_step_of,
    gap_loads.at_changed_rate,
    gap_loads.gap_load,
    gap_loads.own_step,
    inter_token.burst_in_gaps,
    inter_token.cluster_covariance,
    inter_token.first_step,
    inter_token.first_token_after,
    inter_token.law_skewness,
    inter_token.mean_gap,
    inter_token.met_in_gaps,
    inter_token.moments_in_gaps,
    inter_token.slower_in_bursts,
    moments_of_gaps,
    laws_met,
)
share_modules(gap_prefill)
