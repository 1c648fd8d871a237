"""Bursts: a rate of arrivals that moves, and how far a replica follows it.

The rate alternates between two values, λ(1 ± swing), and forgets with a correlation time τ. An
index of dispersion, measured over a residence, fixes the swing once τ is known; without it bursts
are taken to last as long as a residence (τ half of it), which is rough where they do not.
Source: counts of a modulated Poisson process, Var N(t) = λt + 2σ²τ(t − τ(1 − e^(−t/τ))); Cox and
Lewis, The Statistical Analysis of Series of Events (1966), chapter 7.
Assumes: one memory; what runs follows the rate as an Ornstein–Uhlenbeck process.
Fails: bursts that nearly fill the engine, and those of which only the index is known.
Shown by: `make validate`, the three groups of bursts.
"""

import math
from typing import NamedTuple

import numpy as np

from servingslo.models.engine.service_time import FloatArray, RequestDemand

# Correlation time of a rate that stays at each of two values for a mean time of 1: both ends of a
# burst forget it. Bursts of which nothing is known are taken to last as long as a residence.
CORRELATION_PER_BURST = 0.5
# The two rates stay this far from no arrivals at all, and from a step that never ends. With 0.95
# percentiles move by 2 % at most, and only in strong bursts.
_LARGEST_SWING = 0.9
_LARGEST_PREFILL_RATIO = 0.9
# Swings below this move no percentile by more than 1 %, and are mostly noise of the measurement.
_LEAST_SWING = 0.1
# Against a division by zero, as a share of the memory.
_LEAST_STAY = 1e-6
# Rounds of a fixed point: twice as many move no percentile by more than 0.06 %.
_MEMORY_ITERATIONS = 4
# Halvings of the range of logarithms below: to 1e-12 of it.
_SEARCH_STEPS = 40
# Correlation times between which the search looks, in units of the longer window.
_SHORTEST_CORRELATION = 1e-3
_LONGEST_CORRELATION = 1e2


class Bursts(NamedTuple):
    """How the arrival rate of a replica moves; `STEADY` where it does not.

    variance_ratio: squared coefficient of variation of the rate. correlation_seconds: its memory.
    limit_excess: index of dispersion over a long time, less 1. relaxed_excess: less 1 over the time
    that the running sequences need to follow. followed_ratio: relative change of the running
    sequences that is met together with a relative change of the rate.
    """

    variance_ratio: float
    correlation_seconds: float
    limit_excess: float
    relaxed_excess: float
    followed_ratio: float


# A rate that does not move has a memory of any length.
STEADY = Bursts(0.0, 1.0, 0.0, 0.0, 0.0)


def lasting_change(
    bursts: Bursts,
    change: float,
    step_seconds: float,
    prefill_ratio: float,
    batch_work_seconds: float = 0.0,
) -> float:
    """What steps feel of a relative change of the rate.

    Prefill lets further prompts in, so that steps of s follow the rate with the memory
    s/(1 − p)², which takes off what a burst does not last for. The prompts of a step came
    before it began: who meets it, half of its length ago. Half of a mean step is in that
    memory; but steps are met in proportion to their length, and a mean step met is longer by
    the variance of steps over their mean.
    batch_work_seconds: λ·c²·E[I²], which over 1 − p² is that. 0: for who does not meet one step.
    """
    lasting = 0.0
    for _ in range(_MEMORY_ITERATIONS):
        ratio = prefill_ratio * (1.0 + lasting)
        memory = step_seconds / (1.0 - ratio) ** 2
        memory += 0.5 * batch_work_seconds * (1.0 + lasting) / (1.0 - ratio * ratio)
        lasting = change / (1.0 + memory / bursts.correlation_seconds)
    return lasting


def swing_of(bursts: Bursts, prefill_ratio: float) -> float:
    """Relative swing of the two rates λ(1 ± swing), bounded where prefill would never end.

    0 where it is too small to matter.
    """
    most = _LARGEST_PREFILL_RATIO / prefill_ratio - 1.0 if prefill_ratio > 0.0 else math.inf
    swing = min(math.sqrt(bursts.variance_ratio), most)
    return swing if swing >= _LEAST_SWING else 0.0


def remembered_share(seconds: FloatArray, correlation_seconds: float | FloatArray) -> FloatArray:
    """Share of a burst at arrival that is left on average over a time in seconds."""
    ratio = np.maximum(seconds / correlation_seconds, _LEAST_STAY)
    share: FloatArray = np.expm1(-ratio)
    share /= -ratio
    return share


def unchanged_share(seconds: FloatArray, correlation_seconds: float | FloatArray) -> FloatArray:
    """Probability that the rate keeps its value for times in seconds: e^(−t/2τ)."""
    share: FloatArray = np.exp(seconds * (-0.5 / correlation_seconds))
    return share


def bursts_of(
    demand: RequestDemand,
    rate_per_second: float,
    excess_dispersion: float,
    correlation_seconds: float,
    running_mean: float,
) -> Bursts:
    """Bursts of a replica's arrivals.

    excess_dispersion: index of dispersion of its arrivals over a residence, less 1; above 0.
    correlation_seconds: of its rate; math.nan where it is not known. running_mean: its running
    sequences, which are the arrivals of a residence R (Little's law).

    Running sequences relax at κ = a/(s·R): of a rate with memory τ they see the dispersion
    (I − 1)/(1 + κτ), I that over a long time, and their covariance with the rate is σ²/(κ + 1/τ).
    Both are exact for a linear system (an Ornstein–Uhlenbeck process).
    """
    residence = max(running_mean, _LEAST_STAY) / rate_per_second
    step = demand.step_fixed_seconds + demand.step_growth_seconds * running_mean
    stays = CORRELATION_PER_BURST
    if not math.isnan(correlation_seconds):
        stays = correlation_seconds / residence
    limit = excess_dispersion / measured_share(1.0 / stays)
    relaxing = 1.0 + demand.step_fixed_seconds / step * stays
    variance = 0.5 * limit / (max(running_mean, 1.0) * stays)
    return Bursts(
        variance_ratio=min(variance, _LARGEST_SWING**2),
        correlation_seconds=stays * residence,
        limit_excess=limit,
        relaxed_excess=limit / relaxing,
        followed_ratio=stays / relaxing,
    )


def correlation_seconds(
    short_excess: float, short_seconds: float, long_excess: float, long_seconds: float
) -> float | None:
    """Correlation time of a rate, from the excess dispersion of counts in two lengths of windows.

    None where the counts say nothing: no more dispersed than Poisson, or less in the long windows.
    """
    if not 0.0 < short_excess <= long_excess:
        return None
    low, high = _SHORTEST_CORRELATION * long_seconds, _LONGEST_CORRELATION * long_seconds
    wanted = short_excess / long_excess
    for _ in range(_SEARCH_STEPS):
        middle = math.sqrt(low * high)
        share = measured_share(short_seconds / middle) / measured_share(long_seconds / middle)
        low, high = (middle, high) if share > wanted else (low, middle)
    return math.sqrt(low * high)


def measured_share(ratio: float) -> float:
    """Excess dispersion over a time in units of the memory, as a share of that over a long one."""
    ratio = max(ratio, _LEAST_STAY)
    return 1.0 + math.expm1(-ratio) / ratio
