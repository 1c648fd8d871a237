"""Prompts that arrive while others are prefilled, and those that arrive while these are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from servingslo.models.rows import columns
from servingslo.models.service_time import ComplexArray

# Later generations that move no percentile by more than 0.1 %.
_NEGLIGIBLE_GENERATION = 4e-3
# Near saturation of the budget each has four fifths of the one before.
_GENERATIONS = 6
_LEAST_BRANCHING = 0.05


class Branching(NamedTuple):
    """Arrivals that let further ones in.

    rate_per_second: of arrivals. ratio: ρ, of these during the prefill that one causes.
    lag_seconds: L, E[S²]/(2·E[S]) of that prefill. more_per_second: arrivals on top, with theirs.
    """

    rate_per_second: float
    ratio: float
    lag_seconds: float
    more_per_second: float


def grow(lumps: ComplexArray, branchings: Sequence[Branching]) -> None:
    """Turn prefill of one prompt, less 1, into that of arrivals and all their generations.

    With v = λ·(M − 1) the transform of one generation is replaced by ρ·v/(1 − L·v), L =
    E[S²]/(2·E[S]), which has the same first two moments and stays bounded. Such maps compose: the
    k-th generation is ρ^k·v/(1 − L_k·v), L_k = L·(1 + ρ + … + ρ^(k−1)). What follows the last is
    taken as its mean.
    """
    rows = [_generations(*branching) for branching in branchings]
    table = columns(rows)
    total = table[0]
    for at in range(1, 2 * _GENERATIONS, 2):
        if not any(row[at] for row in rows):
            break
        current = lumps * -table[at + 1]
        current += 1.0
        np.divide(table[at], current, out=current)
        current += total
        total = current
    lumps *= total


def _generations(rate: float, ratio: float, lag: float, more: float) -> list[float]:
    """The arrivals themselves, then ρ^k and L_k of each generation, all times the arrivals.

    Where generations are few, only their mean: all with the arrivals themselves.
    """
    scaled = rate + more
    row = [0.0] * (1 + 2 * _GENERATIONS)
    if ratio < _LEAST_BRANCHING:
        row[0] = scaled / (1.0 - ratio)
        return row
    row[0] = scaled
    share, reach = ratio, lag
    for generation in range(1, _GENERATIONS + 1):
        last = generation == _GENERATIONS or share * ratio < _NEGLIGIBLE_GENERATION
        row[2 * generation - 1] = scaled * (share / (1.0 - ratio) if last else share)
        row[2 * generation] = reach * rate
        if last:
            break
        reach += lag * share
        share *= ratio
    return row
