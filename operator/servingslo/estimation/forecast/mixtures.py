"""Quantiles of mixtures of normal laws."""

import math
from collections.abc import Sequence
from statistics import NormalDist

# An upper bound: halvings alone need 14 if the range is as wide as its upper end.
MOST_HALVINGS = 40
# Far finer than any quantile of demand is known.
QUANTILE_ERROR_RATIO = 1e-4
ROOT_TWO, ROOT_TWO_PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)
_NORMAL = NormalDist()
# Less likely components move no quantile that is used for planning.
NEGLIGIBLE_PROBABILITY = 1e-5


def mixture_quantile(components: Sequence[tuple[float, float, float]], probability: float) -> float:
    """Return the mixture's quantile, exact to 0.01 % of it.

    components: (weight, mean, standard deviation) of each, weights adding up to one. probability:
    within (0, 1).
    """
    components = [c for c in components if c[0] > NEGLIGIBLE_PROBABILITY]
    score = _NORMAL.inv_cdf(probability)
    # A mixture's quantile lies between those of its components.
    ends = [mean + score * deviation for _, mean, deviation in components]
    low, high = min(ends), max(ends)
    precise = QUANTILE_ERROR_RATIO * max(high, 0.0)
    value, step = 0.5 * (low + high), high - low
    for _ in range(MOST_HALVINGS):
        below, density = _distribution(components, value)
        if below < probability:
            low = value
        else:
            high = value
        newton = value - (below - probability) / density if density > 0.0 else math.inf
        # Newton's step while steps shrink, else half of the rest: Newton alone can oscillate
        # forever.
        fits = low < newton < high and abs(newton - value) < 0.5 * abs(step)
        following = newton if fits else 0.5 * (low + high)
        step, value = following - value, following
        if abs(step) <= 0.5 * precise:
            break
    return value


def _distribution(
    components: Sequence[tuple[float, float, float]], value: float
) -> tuple[float, float]:
    """Return distribution and density of the mixture at a value."""
    erfc, exp = math.erfc, math.exp
    below = density = 0.0
    for weight, mean, deviation in components:
        score = (value - mean) / deviation
        below += 0.5 * weight * erfc(-score / ROOT_TWO)
        density += weight * exp(-0.5 * score * score) / (deviation * ROOT_TWO_PI)
    return below, density
