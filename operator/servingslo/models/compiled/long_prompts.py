"""Prompts that do not fit in one step, in loops; see `long_prompts`."""

import numpy as np

from servingslo.models.arrivals import Arrival
from servingslo.models.compiled.layout import BEHIND, EXCESS, OWN, SLOPE, Joins
from servingslo.models.compiled.prompts import Prompts, add_prompts, split_at_room
from servingslo.models.compiled.shared import share
from servingslo.models.compiled.special import gamma_shares
from servingslo.models.compiled.spectra import TERMS, copy_less, cosine_and_sine, length_of
from servingslo.models.long_prompts import (
    cycles_of_long,
    filling_of,
    found_behind,
    sum_of_prompts,
)
from servingslo.models.service_time import FloatArray, RequestDemand

Filling = tuple[float, float, float, float, float, float, float]


def long_classes(
    demand: RequestDemand, prompts: Prompts, arrival: Arrival, unit: float, rows: FloatArray
) -> Joins:
    """Write the transforms of two classes of own prompts and of those of others, see `layout`.

    Returns who goes along with the long ones. unit: the first frequency above 0.
    """
    pace, per_token = arrival.pace, demand.prefill_per_token_seconds
    split = split_at_room(prompts, pace.room_tokens)
    own, sharing, group = rows[OWN], rows[BEHIND], np.empty(2 * TERMS)
    add_prompts(prompts, (0, split.whole), unit, own, rows[SLOPE])
    copy_less(own, 1.0, sharing)
    # Beside a prompt that fits, others are cut to the room that such prompts leave on average.
    cut, angle = prompts.weights_from[split.whole], unit * per_token * split.beside_tokens
    left = 1.0 - pace.budget_ratio
    for k in range(TERMS):
        cosine, sine = cosine_and_sine(angle * k)
        sharing[k] = (sharing[k] + cut * cosine) * left
        sharing[TERMS + k] = (sharing[TERMS + k] + cut * sine) * left
    add_prompts(prompts, (split.whole, split.start), unit, own, rows[SLOPE])
    copy_less(own, 1.0, rows[EXCESS])
    first = split.start
    found = found_behind(demand, arrival, split.groups)
    for place in range(len(found)):
        group[:] = 0.0
        add_prompts(prompts, (first, split.ends[place]), unit, group, rows[SLOPE])
        first = split.ends[place]
        for k in range(2 * TERMS):
            rows[EXCESS, k] += group[k]
        law = sum_of_prompts(demand, found[place].mean_count)
        below, once, twice = gamma_shares(law.shape, found[place].left_tokens / law.scale)
        filling = filling_of(demand, found[place], law, below, once, twice)
        _add_shared(filling, unit, group, rows[OWN + 1])
    return cycles_of_long(arrival, split.groups, per_token, prompts.lag_seconds)


def _add_shared(filling: Filling, unit: float, group: FloatArray, out: FloatArray) -> None:
    """Add long prompts with their steps, and the prefill of others in the last of these."""
    none, some, full, none_seconds, some_seconds, full_seconds, spread = filling
    square = spread * unit * unit
    for k in range(TERMS):
        cosine, sine = cosine_and_sine(unit * none_seconds * k)
        real, imaginary = none * cosine, none * sine
        length = some * length_of(square * (float(k) * float(k)))
        cosine, sine = cosine_and_sine(unit * some_seconds * k)
        real += length * cosine
        imaginary += length * sine
        cosine, sine = cosine_and_sine(unit * full_seconds * k)
        real += full * cosine
        imaginary += full * sine
        out[k] += real * group[k] - imaginary * group[TERMS + k]
        out[TERMS + k] += real * group[TERMS + k] + imaginary * group[k]


share(
    found_behind,
    sum_of_prompts,
    filling_of,
    cycles_of_long,
    long_classes,
    _add_shared,
)
