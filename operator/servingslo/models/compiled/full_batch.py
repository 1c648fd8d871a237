"""The full batch that serves most tokens in time, compiled; see `full_batch`."""

import math
from typing import Any

import numpy as np

from servingslo.models import full_batch
from servingslo.models.compiled import points, tokens
from servingslo.models.compiled.shared import share
from servingslo.models.full_batch import LEAST_SECONDS, TRIALS
from servingslo.models.output_laws import DEVIATE_COUNT
from servingslo.models.service_time import RequestDemand


def best_full_batch(
    demand: RequestDemand,
    lengths: Any,
    budget_tokens: float,
    bounds: tuple[float, float],
    tpot_seconds: float,
    most_sequences: int,
) -> int:
    """`full_batch.best_full_batch`."""
    count = lengths.shape[1]
    moments = np.empty((3, count))
    law = np.empty((2, count, DEVIATE_COUNT))
    flat = law.reshape((2, count * DEVIATE_COUNT))
    first, last = 1, max(most_sequences, 1)
    while True:
        best, best_index, served = first, 0, -1.0
        for index in range(TRIALS):
            trial = full_batch.trial_of(first, last, index)
            if index > 0 and trial == full_batch.trial_of(first, last, index - 1):
                continue
            gap = full_batch.mean_gap_seconds(demand, budget_tokens, trial)
            _moments(demand, lengths, trial, gap, moments)
            points.spread(moments, lengths[tokens.WEIGHTS], law[0], law[1])
            points.put_off(flat[0], flat[1], bounds[1])
            within = points.share_within(flat[0], flat[1], bounds[0], bounds[1], tpot_seconds)
            in_time = trial / gap * within
            if in_time > served:
                best, best_index, served = trial, index, in_time
        if last - first < TRIALS:
            return best
        span = first, last
        first = full_batch.trial_of(*span, max(best_index - 1, 0))
        last = full_batch.trial_of(*span, min(best_index + 1, TRIALS - 1))


def _moments(demand: RequestDemand, lengths: Any, trial: int, gap: float, moments: Any) -> None:
    """Moments of the time per output token while as many sequences run."""
    started = full_batch.started_per_step(demand, trial)
    per_token = demand.prefill_per_token_seconds
    second = started * per_token**2 * demand.uncached_second_moment_tokens2
    third = started * per_token**3 * demand.uncached_third_moment_tokens3
    for row in range(lengths.shape[1]):
        gaps = lengths[tokens.GAPS, row]
        deviation = max(math.sqrt(second / gaps), LEAST_SECONDS)
        moments[tokens.MEAN, row] = gap
        moments[tokens.DEVIATION, row] = deviation
        moments[tokens.SKEWNESS, row] = third / (gaps * gaps) / deviation**3


share(
    full_batch.mean_gap_seconds,
    full_batch.started_per_step,
    full_batch.trial_of,
    best_full_batch,
    _moments,
)
