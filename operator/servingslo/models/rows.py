"""Evaluate many loads at once: arrays whose first axis is the load.

Percentile laws consist of a hundred operations on arrays of 20 to 360 numbers, and most of the time
is the overhead of each call. So many loads share the calls. Single numbers of a load are computed
load by load, in plain floats; arrays are computed for all loads at once. A single load has no axis
of loads: numpy takes twice as long to broadcast a column of one number as a float.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


def columns(rows: Sequence[Sequence[float]]) -> Any:
    """Return each number of a row as its column (loads × 1); for one row, its numbers."""
    if len(rows) == 1:
        return rows[0]
    return np.array(rows, dtype=np.float64).T[:, :, None]


def stack(arrays: Sequence[Any]) -> Any:
    """Return the arrays stacked as rows; for one array that array, which must not be written to."""
    return arrays[0] if len(arrays) == 1 else np.array(arrays)
