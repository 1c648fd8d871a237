"""Numbers of many loads side by side: arrays whose first axis is the load.

Percentile laws are made of a hundred operations on arrays of 20 to 360 numbers, most of whose time
is the call itself. Laws of many loads share the calls. What is one number for each load is computed
load by load, in plain floats; what is an array is computed for all loads at once. A load by itself
has no axis of loads: numpy takes twice as long to spread a column of one number as to take a float.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from servingslo.models.service_time import ComplexArray, FloatArray


def columns(rows: Sequence[Sequence[float]]) -> Any:
    """For each number of a row the column of it (loads × 1); for one row the numbers."""
    if len(rows) == 1:
        return rows[0]
    return np.array(rows, dtype=np.float64).T[:, :, None]


def spread_columns(rows: Sequence[Sequence[float]], points: FloatArray) -> Any:
    """First the points (numbers × points), then each number of a row, all as loads × points.

    Arrays of one shape take half of the time of columns that numpy has to spread in each operation.
    For one row the points and the numbers.
    """
    if len(rows) == 1:
        return [*points, *rows[0]]
    given = len(points)
    numbers = np.array(rows, dtype=np.float64)
    table = np.empty((given + numbers.shape[1], len(rows), points.shape[1]))
    table[:given] = points[:, None]
    table[given:] = numbers.T[:, :, None]
    return table


def stacked(arrays: Sequence[Any]) -> Any:
    """The arrays as rows of one; for one array that array, not to be written to."""
    return arrays[0] if len(arrays) == 1 else np.array(arrays)


def exponential(exponents: ComplexArray) -> ComplexArray:
    """e^z for transforms that are turned into shares of requests; see `polar`."""
    return polar(np.exp(exponents.real), exponents.imag)


def polar(length: FloatArray, angle: FloatArray) -> ComplexArray:
    """The complex numbers of these lengths and angles, to 1e-6 of the length; exact at 0.

    Sine and cosine of single precision are computed by the vector units of a processor, those of
    double precision are not: a third of the time, or less.
    """
    single = angle.astype(np.float32)
    result = np.empty(single.shape, dtype=np.complex128)
    np.multiply(length, np.cos(single), out=result.real)
    np.sin(single, out=single)
    np.multiply(length, single, out=result.imag)
    return result
