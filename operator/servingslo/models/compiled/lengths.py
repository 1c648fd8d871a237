"""Lengths of a mix compacted to a few points, compiled; see `output_gaps` and `prompt_work`."""

from typing import Any

import numpy as np

from servingslo.models import output_laws, prompt_work
from servingslo.models.compiled.shared import share
from servingslo.models.output_laws import OutputGaps
from servingslo.models.prompt_work import PromptWork

# Rows of `gap_rows`, a column for each output length; the deviates' weights stand in the others.
_GAPS, _INVERSE, _INVERSE_SQUARE, _WEIGHTS, _WEIGHTED, _DEVIATES = range(6)
# Rows of `prompt_rows`.
_SECONDS, _OF_POINT, _TOKENS, _FROM, _BELOW = range(5)


def compacted(tokens: Any, weights: Any, point_count: int, keep_short: bool) -> Any:
    """`LengthDistribution.compacted`: a row of tokens, and one of weights."""
    count = len(tokens)
    law = np.empty((2, count))
    if count <= point_count:
        for place in range(count):
            law[0, place], law[1, place] = tokens[place], weights[place]
        return law
    moment = inverse = 0.0
    for place in range(count):
        moment += weights[place] * tokens[place] ** 2
        inverse += weights[place] / max(tokens[place], 1.0)
    masses, totals = np.zeros(point_count), np.zeros(point_count)
    probability = part = short = before = 0.0
    for place in range(count):
        probability += weights[place]
        part += weights[place] * tokens[place] ** 2
        measure = 0.5 * probability + 0.5 * part / moment
        if keep_short:
            short += weights[place] / max(tokens[place], 1.0)
            measure = (2.0 * measure + short / inverse) / 3.0
        middle = measure - 0.5 * (measure - before)
        before = measure
        group = min(int(middle * point_count), point_count - 1)
        masses[group] += weights[place]
        totals[group] += weights[place] * tokens[place]
    kept, mass = 0, masses.sum()
    for group in range(point_count):
        if masses[group] > 0.0:
            law[0, kept], law[1, kept] = totals[group] / masses[group], masses[group] / mass
            kept += 1
    return law[:, :kept]


def gap_rows(tokens: Any, weights: Any) -> tuple[Any, float]:
    """`output_laws.output_gaps` by row, and the share of requests with one token."""
    law = compacted(tokens, weights, output_laws.OUTPUT_POINTS, keep_short=True)
    several = 0
    single_share = share_of_several = 0.0
    for place in range(law.shape[1]):
        if law[0, place] > 1.0:
            several += 1
            share_of_several += law[1, place]
        else:
            single_share += law[1, place]
    rows = np.ones((_DEVIATES + output_laws.DEVIATE_COUNT, max(several, 1)))
    first = law.shape[1] - several
    for place in range(several):
        rows[_GAPS, place] = max(law[0, first + place] - 1.0, 1.0)
        rows[_WEIGHTS, place] = law[1, first + place] / share_of_several
    for place in range(rows.shape[1]):
        gaps, weight = rows[_GAPS, place], rows[_WEIGHTS, place]
        rows[_INVERSE, place], rows[_INVERSE_SQUARE, place] = 1.0 / gaps, 1.0 / (gaps * gaps)
        rows[_WEIGHTED, place] = weight * gaps
        for column in range(output_laws.DEVIATE_COUNT):
            share_of_point = output_laws.DEVIATE_WEIGHTS[place, column]
            rows[_DEVIATES + column, place] = weight * share_of_point
    return rows, single_share


def prompt_rows(
    tokens: Any, weights: Any, uncached_ratio: float, per_token: float
) -> tuple[Any, float, float]:
    """`prompt_work.prompt_work` by row, and the first two moments of the work.

    What stands behind the points of a row is nothing.
    """
    law = compacted(tokens, weights, prompt_work.PROMPT_POINTS, keep_short=False)
    points = law.shape[1]
    rows = np.zeros((_BELOW + 1, points + 1))
    mean = second_moment = 0.0
    for place in range(points):
        length, weight = law[0, place] * uncached_ratio, law[1, place]
        seconds = length * per_token
        rows[_TOKENS, place], rows[_OF_POINT, place] = length, weight
        rows[_SECONDS, place] = seconds
        mean += weight * seconds
        second_moment += weight * seconds * seconds
        rows[_BELOW, place + 1] = rows[_BELOW, place] + weight * length
    for place in range(points - 1, -1, -1):
        rows[_FROM, place] = rows[_FROM, place + 1] + rows[_OF_POINT, place]
    return rows, mean, second_moment


def gaps_of(rows: Any, single_share: float) -> OutputGaps:
    """What `gap_rows` returns, by name."""
    return OutputGaps(
        gaps=rows[_GAPS],
        powers=rows[:_WEIGHTS],
        weights=rows[_WEIGHTS],
        weighted=rows[_WEIGHTED],
        spread_weights=rows[_DEVIATES:].T,
        single_share=single_share,
    )


def work_of(rows: Any, mean_seconds: float, second_moment_seconds2: float) -> PromptWork:
    """What `prompt_rows` returns, by name."""
    points = rows.shape[1] - 1
    seconds = rows[_SECONDS, :points]
    return PromptWork(
        seconds=seconds,
        weights=rows[_OF_POINT, :points],
        tokens=rows[_TOKENS, :points],
        mean_seconds=mean_seconds,
        second_moment_seconds2=second_moment_seconds2,
        longest_seconds=float(seconds[-1]),
        weights_from=rows[_FROM],
        mean_tokens_below=rows[_BELOW],
    )


share(compacted)
