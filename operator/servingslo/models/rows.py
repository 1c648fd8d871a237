"""Numbers of many loads side by side: arrays whose first axis is the load.

Percentile laws are made of a hundred operations on arrays of 20 to 360 numbers, most of whose time
is the call itself. Laws of many loads share the calls. What is one number for each load is computed
load by load, in plain floats; what is an array is computed for all loads at once. A load by itself
has no axis of loads: numpy takes twice as long to spread a column of one number as to take a float.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


def columns(rows: Sequence[Sequence[float]]) -> Any:
    """For each number of a row the column of it (loads × 1); for one row the numbers."""
    if len(rows) == 1:
        return rows[0]
    return np.array(rows, dtype=np.float64).T[:, :, None]


def stack(arrays: Sequence[Any]) -> Any:
    """The arrays as rows of one; for one array that array, not to be written to."""
    return arrays[0] if len(arrays) == 1 else np.array(arrays)
