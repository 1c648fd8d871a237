"""Prompts that do not fit in one step: what they take themselves, and whom they let go along.

Source: renewal theory of ⌈I/room⌉ steps; docs/designs/0002-models.md, "What was added".
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import gammainc

from servingslo.models.holes import Meeting
from servingslo.models.occupancy import Occupancy
from servingslo.models.paces import Pace
from servingslo.models.pools import length_met
from servingslo.models.prompt_work import (
    Group,
    LongPrompts,
    PromptTable,
    PromptWork,
    StretchedPrompts,
)
from servingslo.models.rows import columns, exponential, polar, stacked
from servingslo.models.service_time import ComplexArray, RequestDemand

# Against divisions by zero where next to no prompts come.
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
            cycles_of_long(arrivals[row], long.groups, *seconds)
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


def cycles_of_long(
    arrival: Met,
    groups: Iterable[Group],
    per_token_seconds: float,
    lag_seconds: float,
) -> tuple[float, float, float, float]:
    """Those who go along, the mean length of what they meet, half its variance, and less a step.

    The variance as far as two cumulants make a law at the rates at which arrivals come.
    """
    pace, others = arrival.pace, arrival.law_of_running.pool_count - 1.0
    step = pace.mean_step + per_token_seconds * pace.room_tokens
    mass, first, second = 0.0, 0.0, 0.0
    for full_steps, left, share in groups:
        length = (full_steps + 1.0) * step - per_token_seconds * left
        weight = share * full_steps * step / length
        mass += weight
        first += weight * length
        second += weight * length * length
    mean = first / mass
    rate = pace.rate_per_second * (_LARGEST_EXCESS + others * arrival.meeting.even_ratio)
    rate /= 1.0 + lag_seconds * rate
    half_variance = min(0.5 * max(second / mass - mean * mean, 0.0), mean / rate)
    return pace.fitting_ratio * mass, mean, half_variance, -pace.mean_step


def _groups(rows: Sequence[int], longs: Sequence[LongPrompts]) -> tuple[list[int], list[int]]:
    """First group of each pace, and the pace of each group."""
    starts: list[int] = []
    by_group: list[int] = []
    for row, long in zip(rows, longs, strict=True):
        starts.append(len(by_group))
        by_group += [row] * len(long.groups)
    return starts, by_group


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
        [
            found
            for row, long in pairs
            for found in found_behind(demand, arrivals[row], long.groups)
        ],
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


class Found(NamedTuple):
    """What a long prompt takes with itself: prompts behind it, room in its last step, full steps.

    mean_count: those that arrive before its last step. left_tokens, full_seconds: see above.
    """

    mean_count: float
    left_tokens: float
    full_seconds: float


def found_behind(demand: RequestDemand, arrival: Met, groups: Iterable[Group]) -> list[Found]:
    """Prompts that arrive at the replica behind long ones before their last step, by group.

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
    rest = 0.5 * rate / pool * min(length_met(demand, pace), full_step)
    return [
        Found(during * full_steps + rest, left, full_steps * pace.mean_step)
        for full_steps, left, _ in groups
    ]


def shared_prefill(demand: RequestDemand, found: Sequence[Found], z: ComplexArray) -> ComplexArray:
    """Transforms of full steps, and the prefill of so many prompts (Poisson) in what is left then.

    Where there are any their sum, all together cut to the room that is left, is taken as a gamma
    law with its two moments: it fills the room, or is below it with the mean and the variance of
    that part.
    """
    sums = [sum_of_prompts(demand, one.mean_count) for one in found]
    below = gammainc(
        [(one.shape, one.shape + 1.0, one.shape + 2.0) for one in sums],
        [(one.left_tokens / law.scale,) for one, law in zip(found, sums, strict=True)],
    )
    rows = [
        filling_of(demand, one, law, *shares)
        for one, law, shares in zip(found, sums, below.tolist(), strict=True)
    ]
    table = np.array(rows).T[:, :, None]
    frequencies = z.imag
    lengths = np.empty((3, *z.shape))
    lengths[0], lengths[2] = table[0], table[2]
    np.multiply(frequencies * frequencies, table[6], out=lengths[1])
    np.exp(lengths[1], out=lengths[1])
    lengths[1] *= table[1]
    shared: ComplexArray = np.add.reduce(polar(lengths, table[3:6] * frequencies))
    return shared


class SumOfPrompts(NamedTuple):
    """Chance of any of a Poisson number of prompts; shape and scale of their tokens then."""

    some: float
    shape: float
    scale: float


def sum_of_prompts(demand: RequestDemand, count: float) -> SumOfPrompts:
    """The tokens of so many prompts on average, as a gamma law where there are any."""
    mean = demand.uncached_mean_tokens
    some = max(-math.expm1(-count), _TINY)
    first = count * mean / some
    square = count * demand.uncached_second_moment_tokens2 + (count * mean) ** 2
    variance = max(square, _TINY) / some - first * first
    variance = max(variance, _TINY * first * first + _TINY)
    return SumOfPrompts(some, first * first / variance, variance / max(first, _TINY))


def filling_of(
    demand: RequestDemand,
    found: Found,
    law: SumOfPrompts,
    share: float,
    first: float,
    second: float,
) -> tuple[float, float, float, float, float, float, float]:
    """Mass and time without prompts, with some that leave room, and with some that fill it.

    Masses first, then times in seconds; last what the square of a frequency is multiplied by in the
    transform of the second. share, first, second: P(sum < room) for laws with this shape, one
    more and two more.
    """
    per_token, shape, scale = demand.prefill_per_token_seconds, law.shape, law.scale
    below = max(share, _TINY)
    part = first * shape * scale / below
    spread = max(second * shape * (shape + 1.0) * scale**2 / below - part * part, 0.0)
    full = found.full_seconds
    return (
        1.0 - law.some,
        law.some * below,
        law.some * (1.0 - below),
        full,
        full + per_token * part,
        full + per_token * found.left_tokens,
        -0.5 * per_token**2 * spread,
    )
