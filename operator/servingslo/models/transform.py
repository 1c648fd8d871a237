"""Percentiles from a characteristic function: cosine expansion on a bounded range.

Source: F. Fang and C. W. Oosterlee, A novel pricing method for European options based on
Fourier-cosine series expansions (2008).
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from servingslo.models.engine.service_time import ComplexArray, FloatArray

# Terms of the cosine series and points of the distribution function. 120 terms resolve 0.8 % of the
# range; the laws here are continuous, so that terms decay at least as 1/k². Measured: twice as many
# terms move TTFT p50, p95 and p99 by 1, 0.3 and 0.3 % at most in 95 of 100 loads, twice as many
# points by 0.2 %.
TERM_COUNT = 120
POINT_COUNT = 180
# Powers that are computed one by one; 120 are products of 12 and 10.
_FINE_COUNT = 12
# Ranges of seconds, one for each quarter of a doubling.
_RANGES_KEPT = 64


class TabulatedLaw(NamedTuple):
    """A distribution function on an even grid from 0 to range_seconds.

    probability: P(T ≤ t) at the grid points, nondecreasing from 0 to 1.
    """

    seconds: FloatArray
    probability: FloatArray

    def quantile(self, probability: float) -> float:
        """Time in seconds that this share of requests does not exceed; probability in (0, 1)."""
        return float(np.interp(probability, self.probability, self.seconds))

    def cumulants(self) -> tuple[float, float]:
        """Return mean and variance, in seconds and their square."""
        mass = np.diff(self.probability)
        middle = 0.5 * (self.seconds[1:] + self.seconds[:-1])
        mean = float(mass @ middle)
        return mean, float(mass @ (middle - mean) ** 2)


def frequencies(range_seconds: float) -> FloatArray:
    """Return angular frequencies of the cosine series on this range, per second."""
    index: FloatArray = np.arange(TERM_COUNT, dtype=np.float64)
    return index * (np.pi / range_seconds)


@cache
def _fine_and_coarse() -> FloatArray:
    """Return the indexes 0, 1, … below a part of the terms, and the multiples of that part."""
    fine = np.arange(_FINE_COUNT, dtype=np.float64)
    return np.concatenate((fine, np.arange(0.0, TERM_COUNT, _FINE_COUNT)))


def phases(seconds: FloatArray, range_seconds: float) -> ComplexArray:
    """Return e^(iωt) at `frequencies(range)`, as times × frequencies.

    Frequencies are evenly spaced: 120 powers are the products of 12 and 10 of them.
    """
    angles = np.multiply.outer(seconds, _fine_and_coarse() * (np.pi / range_seconds))
    powers = np.exp(1j * angles)
    fine, coarse = powers[:, :_FINE_COUNT], powers[:, _FINE_COUNT:]
    return (coarse[:, :, None] * fine[:, None, :]).reshape(len(seconds), TERM_COUNT)


@cache
def sine_table() -> FloatArray:
    """Return integrated cosines, shape (terms, points), for a range of length 1.

    Lanczos factors damp the ringing at kinks of the density.
    """
    index = np.arange(1, TERM_COUNT)
    points = np.linspace(0.0, 1.0, POINT_COUNT)
    table = np.empty((POINT_COUNT, TERM_COUNT))
    table[:, 0] = points
    table[:, 1:] = np.sin(np.outer(points, np.pi * index)) * (2.0 / (np.pi * index))
    table[:, 1:] *= np.sinc(index / TERM_COUNT)
    return np.ascontiguousarray(table.T)


@lru_cache(maxsize=_RANGES_KEPT)
def _grid(range_seconds: float) -> FloatArray:
    return np.linspace(0.0, 1.0, POINT_COUNT) * range_seconds


def invert(characteristics: FloatArray, ranges_seconds: Sequence[float]) -> list[TabulatedLaw]:
    """Return distribution functions of times in [0, range] from characteristic functions, by row.

    characteristics: real part of E[exp(iωT)] at `frequencies(range)`. Mass beyond the range is
    reflected into it, so choose the range to hold all but the last 0.01 %.
    Source: F. Fang and C. W. Oosterlee, A novel pricing method based on Fourier-cosine series
    expansions, SIAM J. Sci. Comput. 31 (2008), equation 2.8.
    """
    probability = characteristics @ sine_table()
    np.maximum.accumulate(probability, axis=1, out=probability)
    probability /= probability[:, -1:]
    return [
        TabulatedLaw(_grid(range_seconds), shares)
        for range_seconds, shares in zip(ranges_seconds, probability, strict=True)
    ]
