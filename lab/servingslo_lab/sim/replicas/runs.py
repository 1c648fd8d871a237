"""Runs: steps in which only the context changes, so that their ends have a closed form."""

import math

from servingslo_lab.sim.replicas.layout import (
    BASE_SECONDS,
    CONTEXT,
    DECODING_COUNT,
    ITL,
    LAW_CONTEXT,
    RUN_START,
    SLOWNESS,
    STEPS_DONE,
    STEPS_MAX,
    EngineRow,
)  # fmt: skip


def observe(row: EngineRow, histogram: int, value: float, weight: int) -> None:
    """Count `weight` observations of `value` in a histogram."""
    low = row.offsets[histogram]
    high = row.offsets[histogram + 1]
    while low < high:
        middle = (low + high) // 2
        if row.edges[middle] < value:
            low = middle + 1
        else:
            high = middle
    row.counts[low + histogram] += weight
    row.sums[histogram] += value * weight


def step_end(row: EngineRow, steps: int) -> float:
    """End time of this many steps of the current run, in seconds."""
    ints, floats = row.ints, row.floats
    attended = float(ints[CONTEXT]) * steps + ints[DECODING_COUNT] * (steps * (steps + 1.0)) / 2.0
    context_seconds = floats[SLOWNESS] * floats[LAW_CONTEXT] * attended
    return floats[RUN_START] + steps * floats[BASE_SECONDS] + context_seconds


def steps_until(row: EngineRow, until: float) -> int:
    """Steps of the current run that end by `until`; fewer than the run has."""
    ints, floats = row.ints, row.floats
    slope = floats[SLOWNESS] * floats[LAW_CONTEXT]
    linear = floats[BASE_SECONDS] + slope * (ints[CONTEXT] + ints[DECODING_COUNT] / 2.0)
    left = until - floats[RUN_START]
    root = math.sqrt(linear * linear + 2.0 * slope * ints[DECODING_COUNT] * left)
    steps = int(2.0 * left / (linear + root))
    steps = max(ints[STEPS_DONE], min(steps, ints[STEPS_MAX] - 1))
    while steps > ints[STEPS_DONE] and step_end(row, steps) > until:
        steps -= 1
    while steps < ints[STEPS_MAX] - 1 and step_end(row, steps + 1) <= until:
        steps += 1
    return steps


def observe_gaps(row: EngineRow, first: int, last: int) -> None:
    """Count the inter-token times of steps first + 1 to last of the current run."""
    ints, floats, edges = row.ints, row.floats, row.edges
    sequences = ints[DECODING_COUNT]
    slope = floats[SLOWNESS] * floats[LAW_CONTEXT]
    fixed = floats[BASE_SECONDS] + slope * ints[CONTEXT]
    slope *= sequences
    row.sums[ITL] += sequences * (step_end(row, last) - step_end(row, first))
    place, end = row.offsets[ITL], row.offsets[ITL + 1]
    shortest = fixed + slope * (first + 1)
    while place < end and edges[place] < shortest:
        place += 1
    while first < last:
        upto = last
        if place < end and edges[place] < fixed + slope * last:
            upto = max(first, min(last, int((edges[place] - fixed) / slope)))
        row.counts[place + ITL] += sequences * (upto - first)
        first = upto
        place += 1
