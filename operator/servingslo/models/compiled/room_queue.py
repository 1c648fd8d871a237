"""Time to first token of prompts that queue for room in the budget, in loops; see `room_queue`."""

import numpy as np

from servingslo.models.compiled.layout import BEHIND, OWN
from servingslo.models.compiled.prompts import Prompts, stretched
from servingslo.models.compiled.shared import share
from servingslo.models.compiled.special import gamma_shares
from servingslo.models.compiled.spectra import TERMS, copy_less, exponential
from servingslo.models.paces import Pace
from servingslo.models.room_queue import (
    FEW_FULL,
    Content,
    PartialSteps,
    content_of,
    partial_of,
    sum_in_step,
)
from servingslo.models.service_time import FloatArray, RequestDemand

# Rows: W less 1; what transforms are taken at, see `_arguments`; what partial steps hold at these;
# steps at the first three; and one to spare.
_EXCESS, _AT, _CONTENT, _STEP, _SPARE, _ROWS = 0, 1, 5, 9, 12, 13


def meet_queue(
    demand: RequestDemand,
    prompts: Prompts,
    pace: Pace,
    shape: tuple[float, int],
    rows: FloatArray,
    transform: FloatArray,
) -> None:
    """Take the law of a queue for room as far as arrivals come in full steps, in place.

    shape: the first frequency above 0, and the number of classes of own prompts.
    """
    partial = _partial_steps(demand, pace)
    full = 1.0 - partial.time_ratio
    if full <= FEW_FULL:
        return
    work = np.empty((_ROWS, 2 * TERMS))
    stretched(prompts, shape[0], partial.stretch, work[_EXCESS], work[_SPARE])
    _arguments(demand, pace, (partial.stretch, shape[0]), rows[BEHIND], work)
    for place in range(4):
        _content_at(demand, pace, partial, work[_AT + place], work[_SPARE], work[_CONTENT + place])
    # Of the last, what is even over the room is needed as well.
    copy_less(work[_SPARE], 0.0, work[_AT + 3])
    for place in range(3):
        _powers(work[_AT + place], pace.mean_step, work[_STEP + place])
    for k in range(1, TERMS):
        queued = _queued(pace, partial, shape, (work, rows), k)
        transform[k] += full * (queued - transform[k])


def _partial_steps(demand: RequestDemand, pace: Pace) -> PartialSteps:
    """As `room_queue.partial_steps`."""
    per_token = demand.prefill_per_token_seconds
    first = _content(demand, pace, pace.mean_step)
    last = _content(demand, pace, pace.mean_step + 0.5 * per_token * pace.room_tokens)
    middle = _content(demand, pace, pace.mean_step + per_token * first.mean)
    return partial_of(demand, pace, first, middle, last)


def _content(demand: RequestDemand, pace: Pace, seconds: float) -> Content:
    law = sum_in_step(demand, pace.rate_per_second * seconds)
    below, once, twice = gamma_shares(law.shape, pace.room_tokens / law.scale)
    return content_of(law, below, once, twice)


def _arguments(
    demand: RequestDemand,
    pace: Pace,
    numbers: tuple[float, float],
    behind: FloatArray,
    work: FloatArray,
) -> None:
    """Write what transforms are taken at: z, z with what comes behind a request, what comes, and W.

    numbers: W in units of c·I, and the first frequency above 0. behind: a prompt that does.
    """
    stretch, unit = numbers
    share_behind = max(
        1.0 - pace.mean_step / (pace.room_tokens * demand.prefill_per_token_seconds), 0.0
    )
    share_behind *= pace.rate_per_second
    excess = work[_EXCESS]
    z, later, arriving, alone = work[_AT], work[_AT + 1], work[_AT + 2], work[_AT + 3]
    for k in range(TERMS):
        z[k], z[TERMS + k] = 0.0, unit * k
        alone[k], alone[TERMS + k] = 0.0, unit * k * stretch
    for k in range(TERMS):
        later[k], later[TERMS + k] = (
            behind[k] * share_behind,
            behind[TERMS + k] * share_behind + unit * k,
        )
    for k in range(2 * TERMS):
        arriving[k] = excess[k] * pace.rate_per_second


def _powers(at: FloatArray, factor: float, out: FloatArray) -> None:
    for k in range(2 * TERMS):
        out[k] = at[k] * factor
    exponential(out, out)


def _content_at(
    demand: RequestDemand,
    pace: Pace,
    partial: PartialSteps,
    at: FloatArray,
    even: FloatArray,
    out: FloatArray,
) -> None:
    """Transform of the seconds of what partial steps hold, and of those even over the room."""
    per_token, room = demand.prefill_per_token_seconds, pace.room_tokens
    mean, spread = partial.mean_tokens, 0.5 * partial.variance_tokens2
    for k in range(TERMS):
        x, y = at[k] * per_token, at[TERMS + k] * per_token
        real, imaginary = x * spread + mean, y * spread
        out[k] = real * x - imaginary * y
        out[TERMS + k] = real * y + imaginary * x
    exponential(out, out)
    _powers(at, per_token * room, even)
    for k in range(TERMS):
        # The mean of e^(xQ) over an even room, (e^(Rx) − 1)/(Rx).
        x, y = at[k] * per_token * room, at[TERMS + k] * per_token * room
        real, imaginary = even[k] - 1.0, even[TERMS + k]
        inverse = 1.0 / (x * x + y * y)
        even[k] = (real * x + imaginary * y) * inverse
        even[TERMS + k] = (imaginary * x - real * y) * inverse
    for k in range(TERMS):
        out[k] = out[k] * partial.some + even[k] * partial.rest + partial.none
        out[TERMS + k] = out[TERMS + k] * partial.some + even[TERMS + k] * partial.rest


def _inverse(x: complex) -> complex:
    square = 1.0 / (x.real * x.real + x.imag * x.imag)
    return complex(x.real * square, -x.imag * square)


def _at(row: FloatArray, k: int) -> complex:
    return complex(row[k], row[TERMS + k])


def _queued(
    pace: Pace,
    partial: PartialSteps,
    shape: tuple[float, int],
    transforms: tuple[FloatArray, FloatArray],
    k: int,
) -> float:
    """Real part of the transform of the time to first token, see `room_queue`, at one frequency."""
    work, rows = transforms
    z, later, arriving = _at(work[_AT], k), _at(work[_AT + 1], k), _at(work[_AT + 2], k)
    step, often = _at(work[_STEP], k), partial.per_second
    begun = _at(work[_CONTENT], k) * step
    joint = _at(work[_CONTENT + 1], k) * _at(work[_STEP + 1], k)
    came = _at(work[_CONTENT + 2], k) * _at(work[_STEP + 2], k)
    rest_of_step = _inverse(z - arriving) * often
    in_partial = (begun - came) * rest_of_step
    in_full = (begun - _at(work[_CONTENT + 3], k)) * rest_of_step - in_partial
    in_joint = (joint - came) * _inverse(later - arriving) * often
    ends = (step - 1.0) * _inverse(z * pace.mean_step) * partial.ended_ratio
    ends += _at(work[_AT + 3], k) * (1.0 - partial.ended_ratio)
    met = in_full * (_at(work[_EXCESS], k) + 1.0) * ends
    met += in_joint * _at(rows[OWN], k) * step
    if shape[1] > 1:
        met += in_partial * _at(rows[OWN + 1], k) * step
    return float(met.real)


share(
    sum_in_step,
    content_of,
    partial_of,
    meet_queue,
    _partial_steps,
    _content,
    _arguments,
    _powers,
    _content_at,
    _inverse,
    _at,
    _queued,
)
