"""Bursts: an arrival rate that moves, and how far a replica follows it.

The rate alternates between two values, λ(1 ± swing), with a correlation time τ. Two quantities are
unknown, the swing and τ. An index of dispersion, measured over a residence, fixes the swing once τ
is known. If τ is unknown, bursts are assumed to last as long as a residence (τ half of it), which
is rough if they do not.
Source: counts of a modulated Poisson process, Var N(t) = λt + 2σ²τ(t − τ(1 − e^(−t/τ))); Cox and
Lewis, The Statistical Analysis of Series of Events (1966), chapter 7.
Assumes: one memory; running sequences follow the rate as an Ornstein–Uhlenbeck process.
Fails: bursts that nearly fill the engine, and those of which only the index is known.
Shown by: `make validate`, the three groups of bursts.
"""

import math
from typing import NamedTuple

import numpy as np

from servingslo.models.engine.service_time import FloatArray, RequestDemand
from servingslo.models.numerics import SMALL_RATIO

# Correlation time of a rate that stays at each of two values for a mean time of 1: the memory ends
# at both ends of a burst. Bursts of unknown length are assumed to last as long as a residence.
CORRELATION_PER_BURST = 0.5
# The two rates keep this distance from no arrivals, and from a step that never ends. With 0.95
# percentiles move by 2 % at most, and only in strong bursts.
_LARGEST_SWING = 0.9
_LARGEST_PREFILL_RATIO = 0.9
# Smaller swings move no percentile by more than 1 %, and are mostly noise of the measurement.
_LEAST_SWING = 0.1
# Rounds of a fixed point: twice as many move no percentile by more than 0.06 %.
_MEMORY_ITERATIONS = 4
# Halvings of the range of logarithms below: to 1e-12 of it.
_SEARCH_STEPS = 40
# Range of correlation times that is searched, in units of the longer window.
_SHORTEST_CORRELATION = 1e-3
_LONGEST_CORRELATION = 1e2


class Bursts(NamedTuple):
    """How the arrival rate of a replica moves; `STEADY` if it does not.

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
    """Return the part of a relative change of the rate that steps experience.

    Prefill lets further prompts in, so steps of length s follow the rate with the memory s/(1 −
    p)². This removes the part of a change that a burst is too short for. The prompts of a step
    arrived before it began, on average half a step ago for a request that meets it. Half of a mean
    step is in that memory. But steps are met in proportion to their length, so a mean step met is
    longer by the variance of steps over their mean.
    batch_work_seconds: λ·c²·E[I²], which over 1 − p² is that extra length. 0: for times that do not
    depend on meeting one step.
    """
    lasting = 0.0
    for _ in range(_MEMORY_ITERATIONS):
        ratio = prefill_ratio * (1.0 + lasting)
        memory = step_seconds / (1.0 - ratio) ** 2
        memory += 0.5 * batch_work_seconds * (1.0 + lasting) / (1.0 - ratio * ratio)
        lasting = change / (1.0 + memory / bursts.correlation_seconds)
    return lasting


def swing_of(bursts: Bursts, prefill_ratio: float) -> float:
    """Return the swing of the two rates λ(1 ± swing), bounded so that prefill ends.

    0 if it is too small to matter.
    """
    most = _LARGEST_PREFILL_RATIO / prefill_ratio - 1.0 if prefill_ratio > 0.0 else math.inf
    swing = min(math.sqrt(bursts.variance_ratio), most)
    return swing if swing >= _LEAST_SWING else 0.0


def remembered_share(seconds: FloatArray, correlation_seconds: float | FloatArray) -> FloatArray:
    """Return the mean share left over a time, in seconds, of a burst at arrival."""
    ratio = np.maximum(seconds / correlation_seconds, SMALL_RATIO)
    share: FloatArray = np.expm1(-ratio)
    share /= -ratio
    return share


def unchanged_share(seconds: FloatArray, correlation_seconds: float | FloatArray) -> FloatArray:
    """Return the probability that the rate keeps its value for times in seconds: e^(−t/2τ)."""
    share: FloatArray = np.exp(seconds * (-0.5 / correlation_seconds))
    return share


def bursts_of(
    demand: RequestDemand,
    rate_per_second: float,
    excess_dispersion: float,
    correlation_seconds: float,
    running_mean: float,
) -> Bursts:
    """Return the bursts of a replica's arrivals.

    excess_dispersion: index of dispersion of its arrivals over a residence, less 1; above 0.
    correlation_seconds: of its rate; math.nan if unknown. running_mean: its running sequences,
    which are the arrivals of a residence R (Little's law).

    Running sequences relax at κ = a/(s·R). For a rate with memory τ their dispersion is (I − 1)/(1
    + κτ), I that over a long time, and their covariance with the rate is σ²/(κ + 1/τ). Both are
    exact for a linear system (an Ornstein–Uhlenbeck process).
    """
    residence = max(running_mean, SMALL_RATIO) / rate_per_second
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
    """Return the correlation time of a rate, from excess dispersion in windows of two lengths.

    None if the counts show none: not more dispersed than Poisson, or less in the long windows.
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
    """Excess dispersion over a time in units of the memory, as a share of the long-time limit."""
    ratio = max(ratio, SMALL_RATIO)
    return 1.0 + math.expm1(-ratio) / ratio
