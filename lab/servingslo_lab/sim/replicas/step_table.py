"""Step times from a table of measured kernels, interpolated, in place of a service law."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from servingslo_lab.sim.replicas.layout import (
    BASE_SECONDS,
    CONTEXT,
    DECODING_COUNT,
    LAW_CONTEXT,
    SLOWNESS,
    TABLE,
    EngineRow,
)  # fmt: skip

StepRow = tuple[float, float, float, float]


class StepTable(NamedTuple):
    """A table as numbers in a row: sizes, then the three axes, then seconds by all of them.

    Axes: sequences that decode, context tokens of each, prefill tokens of the step.
    """

    numbers: tuple[float, ...]


def step_table(rows: Sequence[StepRow]) -> StepTable:
    """Return the table of these rows: sequences, context tokens, prefill tokens, seconds.

    Cells without a row, of contexts that did not fit, continue the line of the context. Steps that
    only prefill cost as those of one sequence.
    """
    axes = [sorted({row[axis] for row in rows}) for axis in range(3)]
    places = [{value: place for place, value in enumerate(axis)} for axis in axes]
    cells = np.full([len(axis) for axis in axes], np.nan)
    for *point, seconds in rows:
        cells[tuple(at[value] for at, value in zip(places, point, strict=True))] = seconds
    tokens = np.array(axes[1])
    for place in range(2, len(tokens)):
        far, step = cells[:, place], tokens[place - 1] - tokens[place - 2]
        line = (cells[:, place - 1] - cells[:, place - 2]) / step
        continued = cells[:, place - 1] + line * (tokens[place] - tokens[place - 1])
        cells[:, place] = np.where(np.isnan(far), continued, far)
    sizes = [float(len(axis)) for axis in axes]
    return StepTable((*sizes, *axes[0], *axes[1], *axes[2], *cells.ravel().tolist()))


def cell_of(row: EngineRow, axis: int, count: int, value: float) -> int:
    """Return the place of the cell of an axis that holds a value, or is next to it."""
    place = 0
    while place < count - 2 and row.floats[axis + place + 1] <= value:
        place += 1
    return place


def start_from_table(row: EngineRow, prefill: int) -> None:
    """Set the base and the slope over the context of the run that starts, from the table."""
    ints, floats = row.ints, row.floats
    table = ints[TABLE]
    first, second, third = int(floats[table]), int(floats[table + 1]), int(floats[table + 2])
    sequences = max(ints[DECODING_COUNT], 1)
    context = ints[CONTEXT] / sequences
    axis_n = table + 3
    axis_k = axis_n + first
    axis_p = axis_k + second
    cells = axis_p + third
    i = cell_of(row, axis_n, first, sequences)
    j = cell_of(row, axis_k, second, context)
    k = cell_of(row, axis_p, third, prefill)
    share_n = (sequences - floats[axis_n + i]) / (floats[axis_n + i + 1] - floats[axis_n + i])
    share_p = (prefill - floats[axis_p + k]) / (floats[axis_p + k + 1] - floats[axis_p + k])
    near = far = 0.0
    for a in range(2):
        for b in range(2):
            weight = share_n if a == 1 else 1.0 - share_n
            weight *= share_p if b == 1 else 1.0 - share_p
            at = cells + ((i + a) * second + j) * third + k + b
            near += weight * floats[at]
            far += weight * floats[at + third]
    slope = (far - near) / (floats[axis_k + j + 1] - floats[axis_k + j])
    seconds = near + slope * (context - floats[axis_k + j])
    slope = max(slope, 0.0) / sequences
    floats[LAW_CONTEXT] = slope
    floats[BASE_SECONDS] = floats[SLOWNESS] * (seconds - slope * ints[CONTEXT])
