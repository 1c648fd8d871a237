"""Numbers that laws of batches share: weighted times, Poisson numbers, stationary shares.

Source: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16 (1954): the
Poisson numbers of an embedded chain and its balance equations.
"""

import math

import numpy as np
from scipy.special import gammaln

from servingslo.models.engine.service_time import FloatArray


class Times:
    """Weighted times of requests: waits in seconds, and the sizes of their batches."""

    def __init__(self) -> None:
        self._parts: list[tuple[FloatArray, FloatArray, FloatArray]] = []

    def add(self, wait: FloatArray, batch: FloatArray, weight: FloatArray) -> None:
        """Add times with these weights; the arrays are broadcast to one shape."""
        wait, batch, weight = np.broadcast_arrays(wait, batch, weight)
        kept = weight > 0.0
        self._parts.append((wait[kept], batch[kept], weight[kept]))

    def join(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return all waits, batches and weights."""
        wait, batch, weight = (np.concatenate(one) for one in zip(*self._parts, strict=True))
        return wait, batch, weight


def middles(count: int) -> FloatArray:
    """Return the middles of so many equal parts of 0 to 1."""
    points: FloatArray = (np.arange(count) + 0.5) / count
    return points


def poisson(mean: FloatArray, count: int) -> FloatArray:
    """Return P(0), ..., P(count − 1) for each mean, in a last dimension."""
    number = np.arange(count)
    positive = np.maximum(mean, 1e-300)[..., None]
    shares: FloatArray = np.exp(number * np.log(positive) - positive - gammaln(number + 1.0))
    return shares


def poisson_points(mean: FloatArray, points: int, most: int) -> FloatArray:
    """Return equally likely numbers for each mean, in a last dimension."""
    flat = mean.ravel()
    largest = min(most, int(flat.max() + 5.0 * math.sqrt(flat.max()) + 5.0))
    below = np.cumsum(poisson(flat, largest + 1), axis=-1)
    numbers = np.stack([(below < share).sum(axis=-1) for share in middles(points)], axis=-1)
    shaped: FloatArray = numbers.reshape(*mean.shape, points).astype(float)
    return shaped


def stationary(chain: FloatArray) -> FloatArray:
    """Return the stationary law of the chain; rows that are never reached have no share."""
    system = chain.T - np.eye(len(chain))
    # One equation is redundant; it is replaced by the condition that the law sums to 1.
    system[-1] = 1.0
    target = np.zeros(len(chain))
    target[-1] = 1.0
    solution: FloatArray = np.maximum(np.linalg.solve(system, target), 0.0)
    share: FloatArray = solution / solution.sum()
    return share
