"""Prefill work of prompts, with the transforms that do not depend on the load.

Source: characteristic functions of an empirical law; docs/designs/0002-models.md, "What was added".
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from servingslo.models.service_time import ComplexArray, FloatArray
from servingslo.models.transform import TERM_COUNT, frequencies, phases
from servingslo.models.workload import LengthDistribution

# Ranges of the inversion are powers of this ratio, so that tables are shared by many loads.
RANGE_RATIO = 2.0**0.25
# Points for the lengths of prompts. Measured: with 72, TTFT p50, p95 and p99 move by 1.7, 0.9 and 5
# % at most in 95 of 100 loads, p99 most, where the longest prompts alone make it.
PROMPT_POINTS = 24
# Rooms closer than this many tokens share a table entry.
ROOM_TOKENS = 8
# Tables of long prompts that are kept, 8 KiB and 2 for each step: loads near each other share them.
_MOST_LONG_TABLES = 96
# Tables of stretched prompts, 4 KiB each, a fiftieth of a doubling (1.4 %) apart.
_MOST_STRETCHED_TABLES = 64
STRETCH_PARTS = 50
STRETCH_PART = 2.0 ** (1.0 / STRETCH_PARTS) - 1.0
# Against divisions by zero where nothing is computed.
TINY_TOKENS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTable:
    """Transforms of the prefill work of one prompt at the frequencies of one range.

    z: iω. mgf, excess, slope: the mean of exp(z·c·I) over prompts,
    less 1, and with c·I as a factor. below: the mean over the first points only, by their number.
    """

    z: ComplexArray
    mgf: ComplexArray
    excess: ComplexArray
    slope: ComplexArray
    below: ComplexArray


# Steps before the last, tokens of room in the last step, and the mass of prompts with these.
Group = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrompts:
    """Prompts longer than the room in a step, by the number of steps that they fill.

    groups: steps before the last, tokens of room in the last step, and the mass of these prompts.
    own: that times the transform of their work. fitting: the same of the prompts that fit in
    one step, all of them. sharing: transform, less 1, of a prompt that is cut to the room beside
    one that fits.
    """

    groups: tuple[Group, ...]
    own: ComplexArray
    fitting: ComplexArray
    sharing: ComplexArray


class StretchedPrompts(NamedTuple):
    """Transforms of the work of prompts that take longer by the same factor.

    excess: the mean of exp(z·w) over prompts, less 1; slope: with w as a factor.
    """

    excess: ComplexArray
    slope: ComplexArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWork:
    """Prefill work of prompts: seconds at each point of a compact distribution, with tables.

    weights_from: mass from this point on; mean_tokens_below: Σ w·I over the first points; both by
    the number of points before, one longer than the points.
    The tables depend on the lengths and on c only, never on the load, and are filled on demand.
    """

    seconds: FloatArray
    weights: FloatArray
    tokens: FloatArray
    mean_seconds: float
    second_moment_seconds2: float
    longest_seconds: float
    weights_from: FloatArray
    mean_tokens_below: FloatArray
    tables: dict[int, PromptTable] = field(default_factory=dict, compare=False)
    pairs: dict[int, float] = field(default_factory=dict, compare=False)
    steps: dict[int, float] = field(default_factory=dict, compare=False)
    stretched_tables: dict[tuple[int, int], ComplexArray] = field(
        default_factory=dict, compare=False
    )
    long_tables: dict[tuple[int, float], LongPrompts] = field(default_factory=dict, compare=False)

    @property
    def lag_seconds(self) -> float:
        """E[S²]/(2·E[S]) of the prefill work S of a prompt; 0 without work."""
        if self.mean_seconds <= 0.0:
            return 0.0
        return 0.5 * self.second_moment_seconds2 / self.mean_seconds

    def table(self, level: int) -> PromptTable:
        """Transforms for the range RANGE_RATIO**level seconds."""
        found = self.tables.get(level)
        if found is None:
            z: ComplexArray = np.zeros(TERM_COUNT, dtype=np.complex128)
            z.imag = frequencies(RANGE_RATIO**level)
            by_point = phases(self.seconds, RANGE_RATIO**level)
            weighted = self.weights * self.seconds
            below: ComplexArray = np.zeros((len(self.seconds) + 1, TERM_COUNT), dtype=np.complex128)
            np.cumsum(self.weights[:, None] * by_point, axis=0, out=below[1:])
            mgf = self.weights @ by_point
            found = PromptTable(
                z=z,
                mgf=mgf,
                excess=mgf - 1.0,
                slope=weighted @ by_point,
                below=below,
            )
            self.tables[level] = found
        return found

    def stretched(self, level: int, stretch: float) -> StretchedPrompts:
        """Transforms, as in `table(level)`, of prompts that take so many times their work.

        stretch: 1 or more. Between tables a part of a doubling apart, so that the mean is exact to
        five digits: what is left of a cycle near saturation is a small difference.
        """
        parts = math.log2(stretch) * STRETCH_PARTS
        key = int(parts)
        low, high = self._stretched(level, key), self._stretched(level, key + 1)
        share = (stretch * 2.0 ** (-key / STRETCH_PARTS) - 1.0) / STRETCH_PART
        between = high - low
        between *= share
        between += low
        return StretchedPrompts(between[0], between[1])

    def _stretched(self, level: int, parts: int) -> ComplexArray:
        """Excess and slope of prompts that take 2^(parts/STRETCH_PARTS) times their work."""
        key = level, parts
        found = self.stretched_tables.get(key)
        if found is None:
            if len(self.stretched_tables) >= _MOST_STRETCHED_TABLES:
                self.stretched_tables.pop(next(iter(self.stretched_tables)))
            seconds = self.seconds * 2.0 ** (parts / STRETCH_PARTS)
            by_point = phases(seconds, RANGE_RATIO**level)
            found = np.stack((self.weights, self.weights * seconds)) @ by_point
            found[0] -= 1.0
            self.stretched_tables[key] = found
        return found

    def long_prompts(self, level: int, room_tokens: float) -> LongPrompts:
        """The prompts longer than this room; at least the longest must be."""
        key = level, room_tokens
        found = self.long_tables.get(key)
        if found is None:
            if len(self.long_tables) >= _MOST_LONG_TABLES:
                self.long_tables.pop(next(iter(self.long_tables)))
            found = self.long_tables[key] = _long_prompts(self, self.table(level), room_tokens)
        return found


def paired_steps(prompts: PromptWork, room_tokens: float) -> float:
    """Mean of ⌈(I + J)/room⌉ − ⌈I/room⌉ over two prompts; room to the nearest few tokens."""
    key = int(room_tokens / ROOM_TOKENS)
    found = prompts.pairs.get(key)
    if found is None:
        own = prompts.tokens / (ROOM_TOKENS * (key + 0.5))
        steps = np.ceil(own[:, None] + own) - np.ceil(own)[:, None]
        found = float(prompts.weights @ steps @ prompts.weights)
        prompts.pairs[key] = found
    return found


def mean_steps(prompts: PromptWork, room_tokens: float) -> float:
    """Mean of ⌈I/room⌉, at least 1: steps that a prompt takes; room to the nearest few."""
    if prompts.tokens[-1] <= room_tokens:
        return 1.0
    key = int(room_tokens / ROOM_TOKENS)
    found = prompts.steps.get(key)
    if found is None:
        room = ROOM_TOKENS * (key + 0.5)
        found = float(prompts.weights @ np.maximum(np.ceil(prompts.tokens / room), 1.0))
        prompts.steps[key] = found
    return found


def fitting_ratio(prompts: PromptWork, room_tokens: float) -> float:
    """Prompts that need no step more when they come behind another one, 0 to 1."""
    if 2.0 * prompts.tokens[-1] <= room_tokens:
        return 1.0
    saved = mean_steps(prompts, room_tokens) - paired_steps(prompts, room_tokens)
    return min(max(saved, 0.0), 1.0)


def _long_prompts(prompts: PromptWork, table: PromptTable, room: float) -> LongPrompts:
    start = int(prompts.tokens.searchsorted(room, side="right"))
    before = np.ceil(prompts.tokens[start:] / room) - 1.0
    # Prompts with as many full steps are taken together, with the room that they leave on average.
    change = (before[1:] != before[:-1]).nonzero()[0] + 1
    first = np.concatenate(((0,), change))
    before = before[first]
    first += start
    end = np.concatenate((first[1:], (len(prompts.tokens),)))
    weight = prompts.weights_from[first] - prompts.weights_from[end]
    tokens = (prompts.mean_tokens_below[end] - prompts.mean_tokens_below[first]) / weight
    # Beside a prompt that fits, others are cut to the room that such prompts leave on average.
    fitting = max(1.0 - float(prompts.weights_from[start]), TINY_TOKENS)
    beside = max(room - float(prompts.mean_tokens_below[start]) / fitting, 0.0)
    whole = int(prompts.tokens.searchsorted(beside, side="right"))
    per_token = prompts.longest_seconds / prompts.tokens[-1]
    sharing: ComplexArray = np.exp(per_token * beside * table.z)
    sharing *= prompts.weights_from[whole]
    sharing += table.below[whole]
    sharing -= 1.0
    # A prompt that fills its steps leaves nothing, and no rounding below that.
    left = np.maximum((before + 1.0) * room - tokens, 0.0)
    return LongPrompts(
        groups=tuple(zip(before.tolist(), left.tolist(), weight.tolist(), strict=True)),
        own=table.below[end] - table.below[first],
        fitting=table.below[start],
        sharing=sharing,
    )


def prompt_work(
    prompt: LengthDistribution, cached_ratio: float, prefill_per_token_seconds: float
) -> PromptWork:
    """Prefill work of these prompts, compacted to a few points."""
    compact = prompt.compacted(PROMPT_POINTS)
    tokens = np.array(compact.tokens) * (1.0 - cached_ratio)
    seconds = tokens * prefill_per_token_seconds
    weights = np.array(compact.weights)
    return PromptWork(
        seconds=seconds,
        weights=weights,
        tokens=tokens,
        mean_seconds=float(weights @ seconds),
        second_moment_seconds2=float(weights @ seconds**2),
        longest_seconds=float(seconds[-1]),
        weights_from=np.concatenate((np.cumsum(weights[::-1])[::-1], (0.0,))),
        mean_tokens_below=np.concatenate(((0.0,), np.cumsum(weights * tokens))),
    )
