"""Prompts that do not fit in one step: what they take themselves, and whom they let go along."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import gammainc

from servingslo.models.occupancy import Occupancy
from servingslo.models.paces import Pace
from servingslo.models.pools import Meeting, length_met
from servingslo.models.prompt_work import LongPrompts, PromptTable, PromptWork, StretchedPrompts
from servingslo.models.rows import exponential
from servingslo.models.service_time import ComplexArray, FloatArray, RequestDemand

_TINY = 1e-12


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
    the last step of a long prompt; None where all prompts fit.
    """

    behind: ComplexArray
    own: Sequence[ComplexArray]
    joins: "Joins | None"


class Joins:
    """Long prompts alone in their cycle, in whose last step others find room.

    An arrival during the full steps of such a prompt waits for their end, not for that of its last
    step: it takes one step less if it fits there. All arrays are groups × frequencies, paces one
    after the other.
    """

    __slots__ = ("_counts", "_lengths", "_masses", "_rows", "_saving", "_shape", "_z")

    def __init__(
        self,
        arrivals: Sequence[Met],
        rows: Sequence[int],
        longs: Sequence[LongPrompts],
        tables: Sequence[PromptTable],
        per_token_seconds: float,
    ) -> None:
        self._rows, self._counts = rows, [len(long.masses) for long in longs]
        lengths, masses = [], []
        for row, long in zip(rows, longs, strict=True):
            pace = arrivals[row].pace
            full = long.full_steps * (pace.mean_step + per_token_seconds * pace.room_tokens)
            last = pace.mean_step + per_token_seconds * (pace.room_tokens - long.left)
            lengths.append(full + last)
            masses.append(pace.fitting_ratio * long.masses * full / (full + last))
        self._lengths, self._masses = np.concatenate(lengths), np.concatenate(masses)
        z = np.array([tables[row].z for row in rows])
        steps = np.array([arrivals[row].pace.mean_step for row in rows])
        self._z = np.repeat(z, self._counts, axis=0)
        self._saving = exponential(z * -steps[:, None]) - 1.0
        self._shape = (len(arrivals), z.shape[1])

    def saved(self, arriving: ComplexArray, classes: int) -> ComplexArray:
        """What they save, by row of exponents.

        arriving: what arrives during the step in progress, by row, of which as many as there are
        classes belong to the step itself.
        """
        by_pace = arriving.reshape(len(arriving), *self._shape)
        met = np.repeat(by_pace[:, self._rows], self._counts, axis=1)
        met[:classes] += self._z
        met *= self._lengths[:, None]
        met = exponential(met)
        met *= self._masses[:, None]
        starts = [sum(self._counts[:at]) for at in range(len(self._counts))]
        saved = np.zeros(by_pace.shape, dtype=np.complex128)
        saved[:, self._rows] = np.add.reduceat(met, starts, axis=1) * self._saving
        return saved.reshape(arriving.shape)


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
    per_token = demand.prefill_per_token_seconds
    rows = [
        row for row, arrival in enumerate(arrivals) if prompts.tokens[-1] > arrival.pace.room_tokens
    ]
    longs = [
        prompts.long_prompts(arrivals[row].level, arrivals[row].pace.room_tokens) for row in rows
    ]
    counts = [len(long.masses) for long in longs]
    z = np.repeat(np.array([tables[row].z for row in rows]), counts, axis=0)
    others = np.concatenate(
        [_others(demand, arrivals[row], long) for row, long in zip(rows, longs, strict=True)]
    )
    left = np.concatenate([long.left for long in longs])
    full = np.concatenate(
        [
            long.full_steps * arrivals[row].pace.mean_step
            for row, long in zip(rows, longs, strict=True)
        ]
    )
    longer = shared_prefill(demand, others, left, np.multiply(z, per_token))
    longer *= exponential(z * full[:, None])
    longer *= np.concatenate([long.own for long in longs])
    starts = [sum(counts[:at]) for at in range(len(counts))]
    own = np.zeros((2, len(arrivals), z.shape[1]), dtype=np.complex128)
    behind = np.zeros_like(own)
    own[0] = [table.mgf for table in tables]
    behind[:] = [work.excess for work in works]
    own[0, rows] = [long.fitting for long in longs]
    own[1, rows] = np.add.reduceat(longer, starts)
    behind[0, rows] = [
        long.sharing * (1.0 - arrivals[row].pace.budget_ratio)
        for row, long in zip(rows, longs, strict=True)
    ]
    behind[1, rows] = 0.0
    joins = Joins(arrivals, rows, longs, tables, per_token)
    if len(arrivals) == 1:
        return Chunked(behind[:, 0], [own[0, 0], own[1, 0]], joins)
    return Chunked(behind, [own[0], own[1]], joins)


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
    demand: RequestDemand, counts: FloatArray, left: FloatArray, z_per_token: ComplexArray
) -> ComplexArray:
    """Transforms of the prefill of so many prompts (Poisson), all together cut to what is left.

    Where there are any their sum is taken as a gamma law with its two moments: it fills the room,
    or is below it with the mean and the variance of that part.
    """
    mean, square = demand.uncached_mean_tokens, demand.uncached_second_moment_tokens2
    none = np.exp(-counts)
    some = np.maximum(1.0 - none, _TINY)
    first = counts * mean / some
    variance = np.maximum(counts * square + (counts * mean) ** 2, _TINY) / some - first**2
    variance = np.maximum(variance, _TINY * first**2 + _TINY)
    shape, scale = first**2 / variance, variance / np.maximum(first, _TINY)
    below = np.maximum(gammainc(shape, left / scale), _TINY)
    part = gammainc(shape + 1.0, left / scale) * shape * scale / below
    part_square = gammainc(shape + 2.0, left / scale) * shape * (shape + 1.0) * scale**2 / below
    spread = np.maximum(part_square - part**2, 0.0)
    shared = z_per_token * (0.5 * spread)[:, None]
    shared += part[:, None]
    shared *= z_per_token
    shared = exponential(shared)
    shared *= (some * below)[:, None]
    shared += exponential(z_per_token * left[:, None]) * (some * (1.0 - below))[:, None]
    shared += none[:, None]
    return shared
