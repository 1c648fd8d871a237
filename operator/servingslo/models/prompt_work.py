"""Prefill work of prompts, with the transforms that do not depend on the load."""

from dataclasses import dataclass, field

import numpy as np

from servingslo.models.service_time import ComplexArray, FloatArray
from servingslo.models.transform import TERM_COUNT, frequencies
from servingslo.models.workload import LengthDistribution

# Ranges of the inversion are powers of this ratio, so that tables are shared by many loads.
RANGE_RATIO = 2.0**0.25
_PROMPT_POINTS = 24
# Rooms closer than this many tokens share a table entry.
_ROOM_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTable:
    """Transforms of the prefill work of one prompt at the frequencies of one range.

    z: iω. mgf, slope: the mean of exp(z·c·I) over prompts, and with c·I as a factor. below: the
    mean over the first points only, by their number.
    """

    z: ComplexArray
    mgf: ComplexArray
    slope: ComplexArray
    below: ComplexArray


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

    @property
    def lag_seconds(self) -> float:
        """E[S²]/(2·E[S]) of the prefill work S of a prompt; 0 without work."""
        if self.mean_seconds <= 0.0:
            return 0.0
        return 0.5 * self.second_moment_seconds2 / self.mean_seconds

    def paired_steps(self, room_tokens: float) -> float:
        """Mean of ⌈(I + J)/room⌉ − ⌈I/room⌉ over two prompts; room to the nearest few tokens."""
        key = int(room_tokens / _ROOM_TOKENS)
        found = self.pairs.get(key)
        if found is None:
            own = self.tokens / (_ROOM_TOKENS * (key + 0.5))
            steps = np.ceil(own[:, None] + own) - np.ceil(own)[:, None]
            found = float(self.weights @ steps @ self.weights)
            self.pairs[key] = found
        return found

    def table(self, level: int) -> PromptTable:
        """Transforms for the range RANGE_RATIO**level seconds."""
        found = self.tables.get(level)
        if found is None:
            z: ComplexArray = np.zeros(TERM_COUNT, dtype=np.complex128)
            z.imag = frequencies(RANGE_RATIO**level)
            by_point: ComplexArray = np.exp(np.outer(self.seconds, z))
            weighted = self.weights * self.seconds
            below: ComplexArray = np.zeros((len(self.seconds) + 1, TERM_COUNT), dtype=np.complex128)
            np.cumsum(self.weights[:, None] * by_point, axis=0, out=below[1:])
            found = PromptTable(
                z=z,
                mgf=self.weights @ by_point,
                slope=weighted @ by_point,
                below=below,
            )
            self.tables[level] = found
        return found


def prompt_work(
    prompt: LengthDistribution, cached_ratio: float, prefill_per_token_seconds: float
) -> PromptWork:
    """Prefill work of these prompts, compacted to a few points."""
    compact = prompt.compacted(_PROMPT_POINTS)
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
