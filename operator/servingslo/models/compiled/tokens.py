"""Moments of the time per output token of one load, compiled; see `inter_token`."""

import math
from typing import Any

import numpy as np

from servingslo.models import bursts, first_gaps, gap_loads, gap_prefill, inter_token
from servingslo.models.compiled.levels import found_by_arrivals
from servingslo.models.compiled.shared import share, share_modules
from servingslo.models.few_requests import FewLoad, few_load, where_few
from servingslo.models.gap_loads import GapLoad
from servingslo.models.levels import NEVER_IDLE, never_idle
from servingslo.models.occupancy import cluster_third_moment
from servingslo.models.output_laws import Moments, OutputGaps, gamma_skewness
from servingslo.models.service_time import FloatArray, RequestDemand

# Rows of `length_numbers`, a column for each output length.
GAPS, _INVERSE, _INVERSE_SQUARE, WEIGHTS = range(4)
# Rows of moments; and of those of requests that meet prefill, the share of the others.
MEAN, DEVIATION, SKEWNESS = range(3)
_BARE, MET_ROWS = 3, 4


def length_numbers(output: OutputGaps) -> FloatArray:
    """Gaps by output length as one array: gaps, 1/gaps, 1/gaps² and weights."""
    numbers = np.empty((WEIGHTS + 1, len(output.gaps)))
    numbers[:WEIGHTS] = output.powers
    numbers[WEIGHTS] = output.weights
    return numbers


def moments_of_gaps(
    demand: RequestDemand,
    lengths: Any,
    load: GapLoad,
    budget_tokens: float,
    moments: Any,
    others: Any,
) -> tuple[float, FewLoad]:
    """`inter_token.gap_moments` of one load, into three rows; returns the time of prefill.

    others: rows for those that meet prefill, and the share that does not, where few requests run.
    """
    step = gap_loads.own_step(demand, load)
    found = NEVER_IDLE
    if load.pool_count > 1 and not never_idle(load.mean, load.variance):
        found = found_by_arrivals(demand, inter_token.shared_of(load, step))
    first = inter_token.first_step(demand, load, step, budget_tokens)
    prefill = inter_token.first_token_after(demand, load, step, budget_tokens, first, found)
    met: Any = inter_token.met_in_gaps(demand, load, step, first, prefill)
    few = few_load(demand, load, step, found, budget_tokens)
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
        usual = inter_token.moments_in_gaps(powers, met, burst, load.pool_count)
        if few.few > 0.0:
            bare, apart, every = where_few(Moments(*usual), powers[0], powers[1], few)
            others[_BARE, column] = bare
            others[MEAN, column] = apart.mean
            others[DEVIATION, column] = apart.deviation
            others[SKEWNESS, column] = apart.skewness
            usual = every.mean, every.deviation, every.skewness
        mean, deviation, skewness = usual
        moments[MEAN, column] = mean
        moments[DEVIATION, column] = deviation
        moments[SKEWNESS, column] = skewness
    return prefill, few


def laws_met(demand: RequestDemand, lengths: Any, load: GapLoad, budget_tokens: float) -> Any:
    """Moments of those who meet both rates, and where arrivals are bursty of those who meet one.

    Each in two where few requests run: those that meet prefill, and those that do not.
    Moments as laws × 3 × lengths, and the weights of the lengths in each as laws × lengths: see
    `inter_token.states_of_bursts`.
    """
    count = lengths.shape[1]
    ratio = load.rate_per_second * demand.prefill_mean_seconds
    swing = bursts.swing_of(load.bursts, ratio)
    states = 1 if swing == 0.0 else 3
    moments = np.empty((2 * states, 3, count))
    weights = np.empty((2 * states, count))
    for column in range(count):
        weights[0, column] = lengths[WEIGHTS, column]
    if states == 3:
        step = demand.step_fixed_seconds + demand.step_growth_seconds * load.mean
        forgetting = -0.5 * step / ((1.0 - ratio) * load.bursts.correlation_seconds)
        for state in range(1, 3):
            change = swing if state == 2 else -swing
            for column in range(count):
                unchanged = math.exp(lengths[GAPS, column] * forgetting)
                met = 0.5 * (1.0 + change) * unchanged * lengths[WEIGHTS, column]
                weights[state, column] = met
                weights[0, column] -= met
    laws = states
    others = np.empty((MET_ROWS, count))
    for state in range(states):
        met_load = load
        if state > 0:
            change = swing if state == 2 else -swing
            met_load = gap_loads.at_changed_rate(demand, load, change, swing)
        _, few = moments_of_gaps(demand, lengths, met_load, budget_tokens, moments[state], others)
        if few.few > 0.0:
            for column in range(count):
                moments[laws, MEAN, column] = few.step
                moments[laws, DEVIATION, column] = few.deviation
                moments[laws, SKEWNESS, column] = gamma_skewness(few.step, few.deviation)
                weights[laws, column] = weights[state, column] * others[_BARE, column]
                weights[state, column] -= weights[laws, column]
                for row in range(3):
                    moments[state, row, column] = others[row, column]
            laws += 1
    return moments[:laws], weights[:laws]


share(
    gamma_skewness,
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
    inter_token.shared_of,
    inter_token.slower_in_bursts,
    moments_of_gaps,
    laws_met,
)
share_modules(gap_prefill)
