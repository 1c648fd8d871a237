"""Bursts: what an index of dispersion at the scale of a residence says about other scales.

The rate is taken to alternate between two values, as a modulated Poisson process whose bursts last
as long as a request stays (mean n/λ, correlation time half of it). The index of dispersion that is
measured fixes how far the two values lie apart. Bursts much shorter than a residence are rougher
than this, and nothing that is measured at the scale of a residence can tell.
Source: counts of a modulated Poisson process, Var N(t) = λt + 2σ²τ(t − τ(1 − e^(−t/τ))); Cox and
Lewis, The Statistical Analysis of Series of Events (1966).
"""

import math

import numpy as np

from servingslo.models.service_time import FloatArray

# Residence over the correlation time of the rate.
CORRELATIONS_PER_STAY = 2.0
# The two rates stay this far from no arrivals at all, and from a step that never ends.
_LARGEST_SWING = 0.9
_LARGEST_PREFILL_RATIO = 0.9
# Swings below this move no percentile by more than 1 %, and are mostly noise of the measurement.
_LEAST_SWING = 0.1


def burst_variance_ratio(excess_dispersion: float, running_mean: float) -> float:
    """Squared coefficient of variation of the arrival rate of a replica, 0 without bursts.

    excess_dispersion: index of dispersion of its arrivals over a residence, less 1.
    running_mean: its running sequences, which are the arrivals of a residence (Little's law).
    """
    if excess_dispersion <= 0.0:
        return 0.0
    full = 1.0 - -math.expm1(-CORRELATIONS_PER_STAY) / CORRELATIONS_PER_STAY
    variance = excess_dispersion / (max(running_mean, 1.0) * full)
    return min(variance, _LARGEST_SWING**2)


def burst_swing(variance_ratio: float, prefill_ratio: float) -> float:
    """Relative swing of the two rates λ(1 ± swing), bounded where prefill would never end.

    0 where it is too small to matter.
    """
    most = _LARGEST_PREFILL_RATIO / prefill_ratio - 1.0 if prefill_ratio > 0.0 else math.inf
    swing = min(math.sqrt(variance_ratio), most)
    return swing if swing >= _LEAST_SWING else 0.0


def scaled_excess(excess_dispersion: float, stays: FloatArray) -> FloatArray:
    """Excess dispersion of counts over stays that are given in residences."""
    ratio = np.maximum(CORRELATIONS_PER_STAY * stays, 1e-6)
    full = 1.0 - -math.expm1(-CORRELATIONS_PER_STAY) / CORRELATIONS_PER_STAY
    scaled: FloatArray = (excess_dispersion / full) * (1.0 + np.expm1(-ratio) / ratio)
    return scaled


def remembered_share(stays: FloatArray) -> FloatArray:
    """Share of a burst at arrival that is left on average over a stay, given in residences."""
    ratio = np.maximum(CORRELATIONS_PER_STAY * stays, 1e-6)
    share: FloatArray = -np.expm1(-ratio) / ratio
    return share
