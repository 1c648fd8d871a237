"""Time to first token of prompts that queue for room in the budget, in loops; see `room_queue`."""

import numpy as np

from servingslo.models.compiled.layout import BEHIND, OWN
from servingslo.models.compiled.prompts import Prompts, stretched
from servingslo.models.compiled.shared import share
from servingslo.models.compiled.special import gamma_shares
from servingslo.models.compiled.spectra import TERMS, exponential
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

# Logarithms: four of full rooms, four of what comes in one step, three of steps.
_ROWS = 11


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
    excess, slope = np.empty(2 * TERMS), np.empty(2 * TERMS)
    stretched(prompts, shape[0], partial.stretch, excess, slope)
    powers = np.empty((_ROWS, 2 * TERMS))
    _powers_of_steps(demand, pace, partial, shape[0], (excess, rows[BEHIND]), powers)
    for k in range(1, TERMS):
        queued = _queued(demand, (pace, partial), shape, (excess, rows, powers), k)
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
    demand: RequestDemand, pace: Pace, z: complex, excess: complex, behind: complex
) -> tuple[complex, complex]:
    """What comes behind a request until its step begins, with z; and what comes before it."""
    per_token = demand.prefill_per_token_seconds
    sharing = max(1.0 - pace.mean_step / (pace.room_tokens * per_token), 0.0)
    return behind * (sharing * pace.rate_per_second) + z, excess * pace.rate_per_second


def _powers_of_steps(
    demand: RequestDemand,
    pace: Pace,
    partial: PartialSteps,
    unit: float,
    transforms: tuple[FloatArray, FloatArray],
    powers: FloatArray,
) -> None:
    """E^x of full rooms, of what comes in one step, and of steps, at z and `_arguments`.

    transforms: of W, less 1, and of a prompt behind.
    """
    excess, behind = transforms
    per_token, spread = demand.prefill_per_token_seconds, 0.5 * partial.variance_tokens2
    work = per_token * partial.stretch
    for k in range(TERMS):
        z = complex(0.0, unit * k)
        later, arriving = _arguments(
            demand, pace, z, complex(excess[k], excess[TERMS + k]),
            complex(behind[k], behind[TERMS + k]),
        )  # fmt: skip
        at = (z * per_token, later * per_token, arriving * per_token, z * work)
        steps = (z * pace.mean_step, later * pace.mean_step, arriving * pace.mean_step)
        for i in range(4):
            room = at[i] * pace.room_tokens
            some = (at[i] * spread + partial.mean_tokens) * at[i]
            powers[i, k], powers[i, TERMS + k] = room.real, room.imag
            powers[4 + i, k], powers[4 + i, TERMS + k] = some.real, some.imag
        for i in range(3):
            powers[8 + i, k], powers[8 + i, TERMS + k] = steps[i].real, steps[i].imag
    for row in range(_ROWS):
        exponential(powers[row], powers[row])


def _inverse(x: complex) -> complex:
    square = 1.0 / (x.real * x.real + x.imag * x.imag)
    return complex(x.real * square, -x.imag * square)


def _queued(
    demand: RequestDemand,
    load: tuple[Pace, PartialSteps],
    shape: tuple[float, int],
    transforms: tuple[FloatArray, FloatArray, FloatArray],
    k: int,
) -> float:
    """Real part of the transform of the time to first token, see `room_queue`, at one frequency."""
    (pace, partial), (excess, rows, powers) = load, transforms
    per_token, room = demand.prefill_per_token_seconds, pace.room_tokens
    z = complex(0.0, shape[0] * k)
    work = complex(excess[k], excess[TERMS + k])
    later, arriving = _arguments(
        demand, pace, z, work, complex(rows[BEHIND, k], rows[BEHIND, TERMS + k])
    )
    contents = np.empty(4, dtype=np.complex128)
    at = (z * per_token, later * per_token, arriving * per_token, z * per_token * partial.stretch)
    even = complex(0.0, 0.0)
    for i in range(4):
        # The mean of e^(xQ) over an even room, (e^(Rx) − 1)/(Rx).
        even = (complex(powers[i, k], powers[i, TERMS + k]) - 1.0) * _inverse(at[i] * room)
        some = complex(powers[4 + i, k], powers[4 + i, TERMS + k])
        contents[i] = even * partial.rest + some * partial.some + partial.none
    step = complex(powers[8, k], powers[8, TERMS + k])
    begun, often = contents[0] * step, partial.per_second
    joint = contents[1] * complex(powers[9, k], powers[9, TERMS + k])
    came = contents[2] * complex(powers[10, k], powers[10, TERMS + k])
    rest_of_step = _inverse(z - arriving) * often
    all_found, in_partial = (begun - contents[3]) * rest_of_step, (begun - came) * rest_of_step
    in_joint = (joint - came) * _inverse(later - arriving) * often
    ends = (step - 1.0) * _inverse(z * pace.mean_step) * partial.ended_ratio
    ends += even * (1.0 - partial.ended_ratio)
    met = (all_found - in_partial) * (work + 1.0) * ends
    met += in_joint * complex(rows[OWN, k], rows[OWN, TERMS + k]) * step
    if shape[1] > 1:
        met += in_partial * complex(rows[OWN + 1, k], rows[OWN + 1, TERMS + k]) * step
    return float(met.real)


share(
    sum_in_step,
    content_of,
    partial_of,
    meet_queue,
    _partial_steps,
    _content,
    _arguments,
    _powers_of_steps,
    _inverse,
    _queued,
)
