"""Prompts that do not fit in one step: what they take themselves, and whom they let go along."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import gammainc

from servingslo.models.occupancy import Occupancy
from servingslo.models.paces import Pace
from servingslo.models.pools import Meeting, length_met
from servingslo.models.prompt_work import LongPrompts, PromptTable, PromptWork, StretchedPrompts
from servingslo.models.rows import columns, exponential, polar, stacked
from servingslo.models.service_time import ComplexArray, FloatArray, RequestDemand

_TINY = 1e-12
# Arrivals that hold each other up, λ·(M − 1) and those that fill holes, as multiples of λ.
_LARGEST_EXCESS = 3.0


class Met(Protocol):
    """What arrivals at one pace meet, see `first_token`."""

    @property
    def law_of_running(self) -> Occupancy:
        """Of the replica."""

    @property
    def pace(self) -> Pace:
        """Rate and steps."""

    @property
    def level(self) -> int:
        """Of the range of the law."""

    @property
    def meeting(self) -> Meeting:
        """How arrivals meet steps."""


class Chunked(NamedTuple):
    """Own prompts by class, those that fit in a step and those that do not, as transforms by pace.

    behind: prompt that arrives later in the step in progress, less 1, as it delays each class. own:
    mass of the class times the transform of its own prefill. joins: what those save who go along in
    the last step of a long prompt; None where all prompts fit, and there is one class.
    """

    behind: ComplexArray
    own: ComplexArray
    joins: "Joins | None"


class Joins:
    """Long prompts alone in their cycle, in whose last step others find room.

    An arrival during the full steps of such a prompt waits for their end, not for that of its last
    step: it takes one step less if it fits there. Of the lengths of these cycles two cumulants are
    taken, within 0.5 % of all percentiles. seconds: of prefill of a token, and E[S²]/(2·E[S]).
    """

    __slots__ = ("_half_variance", "_length", "_mass", "_rows", "_saving", "_shape", "_z")

    def __init__(
        self,
        arrivals: Sequence[Met],
        rows: Sequence[int],
        longs: Sequence[LongPrompts],
        tables: Sequence[PromptTable],
        seconds: tuple[float, float],
    ) -> None:
        self._rows = rows
        met = [
            _cycles_of_long(arrivals[row], long, *seconds)
            for row, long in zip(rows, longs, strict=True)
        ]
        self._mass, self._length, self._half_variance, less_step = columns(met)
        self._z = stacked([tables[row].z for row in rows])
        self._saving = exponential(self._z * less_step)
        self._saving -= 1.0
        self._shape = (len(arrivals), self._z.shape[-1])

    def saved(self, arriving: ComplexArray, classes: int) -> ComplexArray:
        """What they save, by row of exponents.

        arriving: what arrives during the step in progress, by row, of which as many as there are
        classes belong to the step itself.
        """
        every = len(self._rows) == self._shape[0]
        met = arriving.copy() if every else arriving[:, self._rows]
        if not every and self._z.ndim == 1:
            met = met[:, 0]
        met[:classes] += self._z
        logs = met * self._half_variance
        logs += self._length
        logs *= met
        lengths = np.exp(logs.real)
        lengths *= self._mass
        joined = polar(lengths, logs.imag)
        joined *= self._saving
        if every:
            return joined
        saved = np.zeros_like(arriving)
        saved[:, self._rows] = joined.reshape(len(arriving), len(self._rows), -1)
        return saved


def _cycles_of_long(
    arrival: Met, long: LongPrompts, per_token_seconds: float, lag_seconds: float
) -> tuple[float, float, float, float]:
    """Those who go along, the mean length of what they meet, half its variance, and less a step.

    The variance as far as two cumulants make a law at the rates at which arrivals come.
    """
    pace, others = arrival.pace, arrival.law_of_running.pool_count - 1.0
    step = pace.mean_step + per_token_seconds * pace.room_tokens
    full = long.full_steps * step
    length = full - per_token_seconds * long.left
    length += step
    full *= long.masses
    full /= length
    mass = float(np.add.reduce(full))
    mean = float(full @ length) / mass
    length -= mean
    length *= length
    rate = pace.rate_per_second * (_LARGEST_EXCESS + others * arrival.meeting.even_ratio)
    rate /= 1.0 + lag_seconds * rate
    half_variance = min(0.5 * float(full @ length) / mass, mean / rate)
    return pace.fitting_ratio * mass, mean, half_variance, -pace.mean_step


def _groups(rows: Sequence[int], longs: Sequence[LongPrompts]) -> tuple[list[int], list[int]]:
    """First group of each pace, and the pace of each group."""
    starts: list[int] = []
    by_group: list[int] = []
    for row, long in zip(rows, longs, strict=True):
        starts.append(len(by_group))
        by_group += [row] * len(long.masses)
    return starts, by_group


def _joined(arrays: Sequence[FloatArray]) -> FloatArray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def chunked_prompts(
    demand: RequestDemand,
    prompts: PromptWork,
    arrivals: Sequence[Met],
    tables: Sequence[PromptTable],
    works: Sequence[PromptTable | StretchedPrompts],
) -> Chunked:
    """Own prompts in two classes, at the paces of which some have prompts longer than the room.

    Behind a prompt that fits, one that comes later in the same step is cut to the room beside it,
    as far as the budget is not full anyway. A longer prompt has each step before its last to
    itself: it takes s and c for each token of room, and what comes until then shares its last step,
    see `shared_prefill`.
    """
    rows = [
        row for row, arrival in enumerate(arrivals) if prompts.tokens[-1] > arrival.pace.room_tokens
    ]
    longs = [
        prompts.long_prompts(arrivals[row].level, arrivals[row].pace.room_tokens) for row in rows
    ]
    starts, by_group = _groups(rows, longs)
    pairs = list(zip(rows, longs, strict=True))
    longer = shared_prefill(
        demand,
        _joined([_others(demand, arrivals[row], long) for row, long in pairs]),
        _joined([long.left for long in longs]),
        _joined([long.full_steps * arrivals[row].pace.mean_step for row, long in pairs]),
        np.array([tables[row].z for row in by_group]),
    )
    longer *= np.concatenate([long.own for long in longs]) if len(longs) > 1 else longs[0].own
    own = np.zeros((2, len(arrivals), longer.shape[1]), dtype=np.complex128)
    behind = np.zeros_like(own)
    if len(rows) < len(arrivals):
        own[0] = [table.mgf for table in tables]
        behind[:] = [work.excess for work in works]
        behind[1, rows] = 0.0
    own[1, rows] = np.add.reduceat(longer, starts)
    for row, long in pairs:
        own[0, row] = long.fitting
        np.multiply(long.sharing, 1.0 - arrivals[row].pace.budget_ratio, out=behind[0, row])
    seconds = demand.prefill_per_token_seconds, prompts.lag_seconds
    joins = Joins(arrivals, rows, longs, tables, seconds)
    if len(arrivals) == 1:
        return Chunked(behind[:, 0], own[:, 0], joins)
    return Chunked(behind, own, joins)


def _others(demand: RequestDemand, arrival: Met, long: LongPrompts) -> FloatArray:
    """Prompts that arrive at the replica behind a long one before its last step, on average.

    Those of the rest of the step in progress, half of one that is met, and those of its full steps.
    A pool of c sends arrivals where sequences leave, which is n/O of them at the end of a step
    however long it was, and 1/c of the rest.
    """
    pace, running = arrival.pace, arrival.law_of_running
    rate, pool = pace.rate_per_second, running.pool_count
    full_step = pace.mean_step + demand.prefill_per_token_seconds * pace.room_tokens
    arriving = rate * full_step
    leaving = running.mean / demand.output_mean_tokens
    during = arriving / pool + (1.0 - 1.0 / pool) * min(leaving, arriving)
    return during * long.full_steps + 0.5 * rate / pool * min(length_met(demand, pace), full_step)


def shared_prefill(
    demand: RequestDemand,
    counts: FloatArray,
    left: FloatArray,
    full_seconds: FloatArray,
    z: ComplexArray,
) -> ComplexArray:
    """Transforms of full steps, and the prefill of so many prompts (Poisson) in what is left then.

    Where there are any their sum, all together cut to the room that is left, is taken as a gamma
    law with its two moments: it fills the room, or is below it with the mean and the variance of
    that part.
    """
    mean, square = demand.uncached_mean_tokens, demand.uncached_second_moment_tokens2
    none = np.exp(-counts)
    some = np.maximum(1.0 - none, _TINY)
    first = counts * (mean / some)
    first_square = first * first
    variance = counts * square + (counts * mean) ** 2
    variance = np.maximum(variance, _TINY) / some - first_square
    np.maximum(variance, _TINY * first_square + _TINY, out=variance)
    scale = variance / np.maximum(first, _TINY)
    shape = first_square / variance
    room = left / scale
    below = np.maximum(gammainc(shape, room), _TINY)
    part = gammainc(shape + 1.0, room)
    part *= shape
    part_square = gammainc(shape + 2.0, room)
    part_square *= shape * (shape + 1.0)
    scale /= below
    part *= scale
    scale *= scale
    part_square *= scale * below
    spread = np.maximum(part_square - part * part, 0.0)
    # No prompts, some that leave room, and some that fill it.
    per_token = demand.prefill_per_token_seconds
    times = np.empty((3, len(counts)))
    times[0], times[1], times[2] = 0.0, part, left
    times *= per_token
    times += full_seconds
    frequencies = z.imag
    lengths = np.empty((3, *z.shape))
    lengths[0] = none[:, None]
    lengths[2] = (some * (1.0 - below))[:, None]
    np.multiply(
        frequencies * frequencies, (spread * (-0.5 * per_token**2))[:, None], out=lengths[1]
    )
    np.exp(lengths[1], out=lengths[1])
    lengths[1] *= (some * below)[:, None]
    shared: ComplexArray = np.add.reduce(polar(lengths, times[:, :, None] * frequencies))
    return shared
