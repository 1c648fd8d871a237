"""Laws over requests of the time per output token and the end-to-end latency.

Law: gamma by mean and variance for each output length, starting at an idle step; mixed over output
lengths.
Source: E. B. Wilson and M. M. Hilferty, The distribution of chi-square, PNAS 17 (1931).
Assumes: first token and gaps independent given the length; prompts and outputs independent.
Fails: outputs of two or three tokens, whose gaps are a few steps and no gamma law.
Shown by: `make validate`, "one replica, Poisson": latency p95 within 5 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from servingslo.models.engine.service_time import FloatArray
from servingslo.models.numerics import TINY_NUMBER, TINY_SECONDS
from servingslo.models.workload import LengthDistribution

# Points for the lengths of outputs, and for the spread of one length. Measured: with three times as
# many of either, TPOT p50, p95 and p99 move by 0.3, 0.7 and 1.1 % at most in 95 of 100 loads with
# the Azure lengths, and by 0.9, 3.3 and 4.3 % with exponential outputs of 30 tokens among them.
# Time grows with both.
OUTPUT_POINTS = 20
DEVIATE_COUNT = 24
# Normal deviates of the quadrature over the spread of one request: trapezoid rule, tails to 1e-4.
# Every length has its own shift of them (golden ratio), so that the points of lengths with nearly
# the same law do not coincide.
BASE: FloatArray = np.linspace(-3.0, 4.0, DEVIATE_COUNT)
SHIFTS: FloatArray = (np.arange(OUTPUT_POINTS, dtype=np.float64) * 0.618034 % 1.0 - 0.5) * (
    7.0 / (DEVIATE_COUNT - 1)
)
_DEVIATES: FloatArray = BASE + SHIFTS[:, None]
_DENSITIES: FloatArray = np.exp(-0.5 * _DEVIATES**2)
DEVIATE_WEIGHTS: FloatArray = _DENSITIES / _DENSITIES.sum(axis=1, keepdims=True)


class AtomLaw(NamedTuple):
    """A law given by weighted points, sorted; percentiles interpolate between midpoints."""

    seconds: FloatArray
    probability: FloatArray

    def quantile(self, probability: float) -> float:
        """Time in seconds that this share of requests does not exceed; probability in (0, 1)."""
        return float(np.interp(probability, self.probability, self.seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGaps:
    """Gaps between tokens of requests: O − 1 for outputs of at least two tokens.

    weighted: weights, which sum to 1 over these, times gaps. spread_weights: of the quadrature over
    lengths and deviates. single_share: share of requests with one token, which have no such time.
    """

    gaps: FloatArray
    weighted: FloatArray
    spread_weights: FloatArray
    single_share: float


class Moments(NamedTuple):
    """Mean and deviation of a time per output token: numbers, or by output length."""

    mean: Any
    deviation: Any


class GapMoments(NamedTuple):
    """Moments of the time per output token, by output length.

    every: of all requests. parts: shares of the requests, by output length, with moments of their
    own. prefill_seconds: mean time that a request runs until its first token.
    """

    every: Moments
    parts: tuple[tuple[FloatArray, Moments], ...]
    prefill_seconds: float


def output_gaps(output: LengthDistribution) -> OutputGaps:
    """Return gap counts of these outputs, compacted to a few points."""
    compact = output.compact(OUTPUT_POINTS, keep_short=True)
    tokens = np.array(compact.tokens)
    weights = np.array(compact.weights)
    several = tokens > 1.0
    share = float(weights[several].sum())
    if share == 0.0:
        gaps, kept = np.array([1.0]), np.array([1.0])
    else:
        # A histogram's point between one and two tokens represents requests with one gap.
        gaps, kept = np.maximum(tokens[several] - 1.0, 1.0), weights[several] / share
    return OutputGaps(
        gaps=gaps,
        weighted=kept * gaps,
        spread_weights=kept[:, None] * DEVIATE_WEIGHTS[: len(kept)],
        # Exactly 0 without such requests: rounding would add a row of points for requests of one
        # token.
        single_share=float(weights[~several].sum()),
    )


def spread_points(law: Moments, least_seconds: Any) -> FloatArray:
    """Return points of gamma laws above the least value, at the quadrature's deviates.

    Moments by output length, in the last axis; points by length and deviate. Wilson–Hilferty: a
    gamma variable is nearly the cube of a normal one.
    """
    above = np.maximum(law.mean - least_seconds, TINY_SECONDS)
    # A ninth of the inverse shape is the square of this.
    scale = (law.deviation / (3.0 * above))[..., None]
    root = np.maximum(1.0 + scale * (_DEVIATES[: scale.shape[-2]] - scale), 0.0)
    points: FloatArray = (law.mean - above)[..., None] + above[..., None] * root**3
    return points


def atom_law(points: FloatArray, weights: FloatArray, bounds: tuple[float, float]) -> AtomLaw:
    """Return the law of these weighted points; bounds: no point lies outside."""
    order = points.argsort()
    mass = weights[order]
    return AtomLaw(np.clip(points[order], *bounds), np.cumsum(mass) - 0.5 * mass)


def time_per_output_token_law(
    output: OutputGaps,
    parts: Sequence[tuple[FloatArray, Moments]],
    bounds_seconds: tuple[float, float],
) -> AtomLaw:
    """Return the law of the time per output token over requests, in seconds.

    parts: as in `GapMoments`. bounds_seconds: an idle step, and a step that is full of prefill. No
    average of steps lies outside. Prefill that does not fit in a full step is met by other
    requests.
    """
    points = np.concatenate([spread_points(law, bounds_seconds[0]).ravel() for _, law in parts])
    weights = [(share[:, None] * output.spread_weights).ravel() for share, _ in parts]
    mass = np.concatenate(weights)
    _put_off(points, mass, bounds_seconds[1])
    return atom_law(points, mass, bounds_seconds)


def _put_off(points: FloatArray, mass: FloatArray, most_seconds: float) -> None:
    """Move points below a full step, and keep the mean.

    Prefill that does not fit in a step is done in later steps, which other requests meet. No time
    is lost, so points cannot simply be cut. Points below the full step move up by the same share of
    their distance to it, so that the order stays.
    """
    if points.max() <= most_seconds:
        return
    room = most_seconds - points
    below = np.maximum(room, 0.0)
    kept = 1.0 - (below - room) @ mass / max(float(below @ mass), TINY_NUMBER)
    points[:] = most_seconds - below * max(float(kept), 0.0)


def end_to_end_law(
    output: OutputGaps,
    gap: Moments,
    first: tuple[float, float],
    least_seconds: float,
) -> AtomLaw:
    """Law of the end-to-end latency over requests, in seconds: first token plus O − 1 gaps.

    gap: moments of a gap, by output length. first: mean and variance of the time to first token.
    Given the output length, the sum is a gamma law with the added cumulants.
    least_seconds: an idle step; no request takes fewer steps than it has tokens.
    """
    mean, variance = first
    deviation = np.sqrt((output.gaps * gap.deviation) ** 2 + variance)
    total = Moments(output.gaps * gap.mean + mean, deviation)
    points = spread_points(total, least_seconds * (output.gaps + 1.0)).ravel()
    weights = output.spread_weights.ravel()
    if output.single_share > 0.0:
        alone = Moments(np.array([mean]), np.array([math.sqrt(variance)]))
        points = np.concatenate((points, spread_points(alone, least_seconds).ravel()))
        several = (1.0 - output.single_share) * weights
        weights = np.concatenate((several, output.single_share * DEVIATE_WEIGHTS[0]))
    return atom_law(points, weights, (0.0, math.inf))
