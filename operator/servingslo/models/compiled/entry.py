"""What Python calls of the compiled laws: one call for one law of one load."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from servingslo.models.compiled import judging, points, running, tokens
from servingslo.models.compiled.first_token import ttft_law
from servingslo.models.compiled.full_batch import best_full_batch
from servingslo.models.compiled.inversion import law_quantile
from servingslo.models.compiled.lengths import gap_rows, prompt_rows
from servingslo.models.compiled.prompts import mean_steps, prompts_of
from servingslo.models.compiled.shared import DEMAND_COUNT, demand_of, share
from servingslo.models.compiled.waiting import LAW_POINTS
from servingslo.models.gap_loads import GapLoad, gap_load
from servingslo.models.output_laws import DEVIATE_COUNT

# Numbers of an engine: those of a demand and a fleet, and then these.
_BUDGET_TOKENS = DEMAND_COUNT + running.FLEET_COUNT
_LEAST_SECONDS, _MOST_SECONDS, _SINGLE_SHARE = range(_BUDGET_TOKENS + 1, _BUDGET_TOKENS + 4)


def _gap_load(numbers: Any, prompts: Any, law: Any, rate: float) -> GapLoad:
    running_law = running.law_of(law, law[running.LAW_COUNT :])
    room = numbers[_BUDGET_TOKENS] - running_law.mean
    return gap_load(running_law, rate, mean_steps(prompts_of(prompts), room))


def _running_law(numbers: Any, rate: float, replica_count: int, pooled: bool) -> Any:
    return running.running_law(numbers, rate, replica_count, pooled)


def _first_token(numbers: Any, prompts: Any, sines: Any, law: Any, rate: float) -> Any:
    table = np.empty((2, LAW_POINTS))
    count = ttft_law(
        demand_of(numbers),
        prompts_of(prompts),
        running.law_of(law, law[running.LAW_COUNT :]),
        rate,
        numbers[_BUDGET_TOKENS],
        sines,
        table,
    )
    return table[:, :count].copy()


def _gaps(numbers: Any, lengths: Any, prompts: Any, law: Any, rate: float) -> Any:
    """Three rows of moments; in a fourth the time of prefill and its steps."""
    demand = demand_of(numbers)
    load = _gap_load(numbers, prompts, law, rate)
    moments = np.empty((4, max(lengths.shape[1], 2)))
    others = np.empty((tokens.MET_ROWS, lengths.shape[1]))
    moments[3, 0], _ = tokens.moments_of_gaps(
        demand, lengths, load, numbers[_BUDGET_TOKENS], moments[:3], others
    )
    moments[3, 1] = load.prefill_steps
    return moments


def _per_token(numbers: Any, lengths: Any, prompts: Any, law: Any, rate: float) -> Any:
    demand = demand_of(numbers)
    load = _gap_load(numbers, prompts, law, rate)
    moments, weights = tokens.laws_met(demand, lengths, load, numbers[_BUDGET_TOKENS])
    laws, count = weights.shape
    law_points = np.empty((2, laws * count, DEVIATE_COUNT))
    for place in range(laws):
        rows = law_points[:, place * count : (place + 1) * count]
        points.spread(moments[place], weights[place], rows[0], rows[1])
    flat = law_points.reshape((2, laws * count * DEVIATE_COUNT))
    points.put_off(flat[0], flat[1], numbers[_MOST_SECONDS])
    return flat


def _end_to_end(numbers: Any, lengths: Any, prompts: Any, law: Any, rate: float, table: Any) -> Any:
    demand = demand_of(numbers)
    load = _gap_load(numbers, prompts, law, rate)
    count = lengths.shape[1]
    moments, others = np.empty((3, count)), np.empty((tokens.MET_ROWS, count))
    tokens.moments_of_gaps(demand, lengths, load, numbers[_BUDGET_TOKENS], moments, others)
    mean, variance, third = points.cumulants(table)
    points.add_first(moments, lengths[0], mean, variance, third)
    single = numbers[_SINGLE_SHARE]
    rows = count if single == 0.0 else count + 1
    law_points = np.empty((2, rows, DEVIATE_COUNT))
    weights = (1.0 - single) * lengths[tokens.WEIGHTS]
    points.spread(moments, weights, law_points[0, :count], law_points[1, :count])
    least = numbers[_LEAST_SECONDS]
    for row in range(count):
        for column in range(DEVIATE_COUNT):
            shortest = least * (lengths[tokens.GAPS, row] + 1.0)
            law_points[0, row, column] = max(law_points[0, row, column], shortest)
    if rows > count:
        alone = np.empty((3, 1))
        alone[tokens.MEAN, 0] = mean
        alone[tokens.DEVIATION, 0] = math.sqrt(variance)
        alone[tokens.SKEWNESS, 0] = third / max(variance, points.TINY_VARIANCE) ** 1.5
        points.spread(alone, np.full(1, single), law_points[0, count:], law_points[1, count:])
        for column in range(DEVIATE_COUNT):
            law_points[0, count, column] = max(law_points[0, count, column], least)
    return law_points.reshape((2, rows * DEVIATE_COUNT))


def _full_batch(numbers: Any, lengths: Any, tpot_seconds: float, most_sequences: int) -> int:
    bounds = numbers[_LEAST_SECONDS], numbers[_MOST_SECONDS]
    budget = numbers[_BUDGET_TOKENS]
    return best_full_batch(
        demand_of(numbers), lengths, budget, bounds, tpot_seconds, most_sequences
    )


def _quantile(law: Any, least_seconds: float, most_seconds: float, wanted: float) -> Any:
    return points.quantile(law[0], law[1], least_seconds, most_seconds, wanted)


def _share_within(law: Any, least_seconds: float, most_seconds: float, seconds: float) -> Any:
    return points.share_within(law[0], law[1], least_seconds, most_seconds, seconds)


def _judged(constants: Any, law: Any, rate: float, limits: Any) -> Any:
    """KV use and percentiles up to the first beyond its limit, see `judging.limit_numbers`."""
    numbers, lengths, prompts, sines = constants
    found = np.empty(len(limits))
    first, per_token = np.empty((2, 0)), np.empty((2, 0))
    for place in range(len(limits)):
        metric, wanted = int(limits[place, judging.METRIC]), limits[place, judging.SHARE]
        if metric in (judging.TTFT, judging.LATENCY) and first.shape[1] == 0:
            first = _first_token(numbers, prompts, sines, law, rate)
        if metric == judging.TTFT:
            found[place] = law_quantile(first, first.shape[1], wanted)
        elif metric == judging.TPOT:
            if per_token.shape[1] == 0:
                per_token = _per_token(numbers, lengths, prompts, law, rate)
            bounds = numbers[_LEAST_SECONDS], numbers[_MOST_SECONDS]
            found[place] = _quantile(per_token, bounds[0], bounds[1], wanted)
        elif metric == judging.LATENCY:
            whole = _end_to_end(numbers, lengths, prompts, law, rate, first)
            found[place] = _quantile(whole, -np.inf, np.inf, wanted)
        else:
            found[place] = judging.of_running(metric, running.law_of(law, law), limits[place])
        if found[place] > limits[place, judging.MOST]:
            return found[: place + 1].copy()
    return found


share(_gap_load, _first_token, _per_token, _end_to_end, _quantile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Compiled functions, see above."""

    running_law: Callable[..., Any]
    first_token: Callable[..., Any]
    gaps: Callable[..., Any]
    per_token: Callable[..., Any]
    end_to_end: Callable[..., Any]
    full_batch: Callable[..., int]
    judged: Callable[..., Any]
    gap_rows: Callable[..., Any]
    prompt_rows: Callable[..., Any]
    quantile: Callable[..., float]
    share_within: Callable[..., float]


def compile_entries(cache_directory: str | None) -> Entries:
    """All of them, from this directory where machine code of these sources is kept in it."""
    cached = cache_directory is not None
    if cached:
        numba.config.CACHE_DIR = cache_directory
    number, table = numba.float64, numba.float64[:, ::1]
    row = numba.float64[::1]

    def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
        # Products may be added without being rounded first; nothing else is reordered.
        options = {"cache": cached, "error_model": "numpy", "fastmath": {"contract"}}
        return numba.njit(arguments, **options)(function)

    return Entries(
        running_law=compiled(_running_law, row, number, numba.int64, numba.boolean),
        first_token=compiled(_first_token, row, table, table, row, number),
        gaps=compiled(_gaps, row, table, table, row, number),
        per_token=compiled(_per_token, row, table, table, row, number),
        end_to_end=compiled(_end_to_end, row, table, table, row, number, table),
        full_batch=compiled(_full_batch, row, table, number, numba.int64),
        judged=compiled(
            _judged,
            numba.types.Tuple((row, table, table, table)),
            row,
            number,
            table,
        ),
        gap_rows=compiled(gap_rows, row, row),
        prompt_rows=compiled(prompt_rows, row, row, number, number),
        quantile=compiled(_quantile, table, number, number, number),
        share_within=compiled(_share_within, table, number, number, number),
    )
