"""Prefill work of prompts: transforms of its law, and the steps of a token budget that it takes.

Law: characteristic function of an empirical law; renewal theory of ⌈I/room⌉ steps.
Source: W. Feller, An Introduction to Probability Theory and Its Applications II (1971), chapters XI
and XV.
Assumes: a long prompt has each step before its last alone; meanwhile arrivals share its last.
Fails: prompts of several steps: first tokens up to a third late.
Shown by: `make validate`, "long prompts, outputs of a few tokens" and "token budget".
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from servingslo.models.engine.service_time import (
    ComplexArray,
    FloatArray,
    PrefillTime,
    RequestDemand,
)
from servingslo.models.numerics import TINY_TOKENS
from servingslo.models.transform import TERM_COUNT, frequencies, phases
from servingslo.models.workload import LengthDistribution

# Ranges of the inversion are powers of this ratio, so that tables are shared by many loads.
RANGE_RATIO = 2.0**0.25
# Points for the lengths of prompts. Measured: with 72, TTFT p50, p95 and p99 move by 1.7, 0.9 and 5
# % at most in 95 of 100 loads; p99 most if only the longest prompts cause it.
PROMPT_POINTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTable:
    """Transforms of the prefill work w of one prompt at the frequencies of one range.

    z: iω. mgf: the mean of exp(z·w) over prompts. excess: that less 1. slope: with w as a factor.
    """

    z: ComplexArray
    mgf: ComplexArray
    excess: ComplexArray
    slope: ComplexArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWork:
    """Prefill work of prompts: seconds at each point of a compact distribution, with tables.

    tables: by level of the range, filled on demand; they depend only on the lengths and c, never on
    the load.
    """

    seconds: FloatArray
    weights: FloatArray
    tokens: FloatArray
    mean_seconds: float
    second_moment_seconds2: float
    longest_seconds: float
    tables: dict[int, PromptTable] = field(default_factory=dict, compare=False)

    @property
    def lag_seconds(self) -> float:
        """E[S²]/(2·E[S]) of the prefill work S of a prompt; 0 without work."""
        if self.mean_seconds <= 0.0:
            return 0.0
        return 0.5 * self.second_moment_seconds2 / self.mean_seconds

    def table(self, level: int) -> PromptTable:
        """Return transforms for the range RANGE_RATIO**level seconds."""
        if level not in self.tables:
            self.tables[level] = self.stretch(level, 1.0)
        return self.tables[level]

    def stretch(self, level: int, stretch: float) -> PromptTable:
        """Transforms, as in `table(level)`, of prompts whose work is multiplied by this factor."""
        z: ComplexArray = np.zeros(TERM_COUNT, dtype=np.complex128)
        z.imag = frequencies(RANGE_RATIO**level)
        seconds = self.seconds * stretch
        by_point = phases(seconds, RANGE_RATIO**level)
        mgf, slope = np.stack((self.weights, self.weights * seconds)) @ by_point
        return PromptTable(z=z, mgf=mgf, excess=mgf - 1.0, slope=slope)


class OwnPrefill(NamedTuple):
    """The conditions of a prompt that takes several steps.

    step_seconds: without prefill. room_tokens: for prefill in a step. arriving: prompts that are
    sent to its replica during a step that is full of prefill.
    """

    step_seconds: float
    room_tokens: float
    arriving: float


def own_prefill(
    demand: RequestDemand, prompts: PromptWork, level: int, met: OwnPrefill
) -> ComplexArray:
    """Transform of a request's own prefill, with the steps before its first token's step.

    A prompt longer than the room has f = ⌈I/room⌉ − 1 full steps before its last. Arrivals during
    these are prefilled with the rest of it, up to the room: on average, as an exponential amount of
    tokens.
    """
    room = met.room_tokens
    if prompts.tokens[-1] <= room:
        return prompts.table(level).mgf
    full_steps = np.maximum(np.ceil(prompts.tokens / room) - 1.0, 0.0)
    left = (full_steps + 1.0) * room - prompts.tokens
    tokens = np.maximum(full_steps * met.arriving * demand.uncached_mean_tokens, TINY_TOKENS)
    others = demand.prefill_per_token_seconds * tokens * -np.expm1(-left / tokens)
    by_point = phases(prompts.seconds + full_steps * met.step_seconds + others, RANGE_RATIO**level)
    own: ComplexArray = prompts.weights @ by_point
    return own


def paired_steps(prompts: PromptWork, room_tokens: float) -> float:
    """Mean of ⌈(I + J)/room⌉ − ⌈I/room⌉ over two prompts: steps that one adds behind another."""
    if 2.0 * prompts.tokens[-1] <= room_tokens:
        return 0.0
    own = prompts.tokens / room_tokens
    steps = np.ceil(own[:, None] + own) - np.ceil(own)[:, None]
    return float(prompts.weights @ steps @ prompts.weights)


def mean_steps(prompts: PromptWork, room_tokens: float) -> float:
    """Return the mean of ⌈I/room⌉, at least 1: steps that a prompt takes."""
    if prompts.tokens[-1] <= room_tokens:
        return 1.0
    return float(prompts.weights @ np.maximum(np.ceil(prompts.tokens / room_tokens), 1.0))


def prompt_work(
    prompt: LengthDistribution, cached_ratio: float, prefill_time: float | PrefillTime
) -> PromptWork:
    """Return the prefill work of these prompts, compacted to a few points.

    prefill_time: seconds of a token, or those of a law that bends.
    """
    compact = prompt.compact(PROMPT_POINTS)
    tokens = np.array(compact.tokens) * (1.0 - cached_ratio)
    if isinstance(prefill_time, PrefillTime):
        seconds = prefill_time.seconds(tokens)
    else:
        seconds = tokens * prefill_time
    weights = np.array(compact.weights)
    return PromptWork(
        seconds=seconds,
        weights=weights,
        tokens=tokens,
        mean_seconds=float(weights @ seconds),
        second_moment_seconds2=float(weights @ seconds**2),
        longest_seconds=float(seconds[-1]),
    )
