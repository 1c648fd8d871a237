"""Laws over requests of the time per output token and the end-to-end latency.

Law: gamma given the output length, by its first three moments; mixed over output lengths.
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

from servingslo.models.rows import stacked
from servingslo.models.service_time import FloatArray
from servingslo.models.workload import LengthDistribution

# Points for the lengths of outputs, and for the spread of one length. Measured: with three times as
# many of either, TPOT p50, p95 and p99 move by 0.3, 0.7 and 1.1 % at most in 95 of 100 loads with
# the Azure lengths, and by 0.9, 3.3 and 4.3 % with exponential outputs of 30 tokens among them; and
# the time goes with both.
OUTPUT_POINTS = 20
DEVIATE_COUNT = 24
# Keeps the gamma law of no skewness from a division by zero; seven digits are left.
SMALL_SIXTH = 1e-9
# Against divisions by zero: far below any step.
TINY_SECONDS = 1e-12
# Normal deviates of the quadrature over the spread of one request: trapezoid rule, tails to 1e-4.
# Every length has its own shift of them (golden ratio), so that the points of lengths with nearly
# the same law do not fall together.
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

    def share_within(self, seconds: float) -> float:
        """P(T ≤ t) for t in seconds."""
        return float(np.interp(seconds, self.seconds, self.probability, left=0.0, right=1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGaps:
    """Gaps between tokens of requests: O − 1 for outputs of at least two tokens.

    weighted: weights times gaps.
    weights sum to 1 over these; spread_weights are those of the quadrature over lengths and
    deviates. single_share is the share of requests with one token, which have no such time.
    """

    gaps: FloatArray
    weights: FloatArray
    weighted: FloatArray
    spread_weights: FloatArray
    single_share: float


class Moments(NamedTuple):
    """Mean, deviation and skewness of a time per output token: numbers, or by output length."""

    mean: Any
    deviation: Any
    skewness: Any


class Bare(NamedTuple):
    """Requests that meet no prefill while they decode: share of them, by output length.

    seconds, deviation_seconds: mean and deviation of their time per output token. mean, deviation,
    skewness: of that of the others.
    """

    share: FloatArray
    seconds: float
    deviation_seconds: float
    mean: FloatArray
    deviation: FloatArray
    skewness: FloatArray


class GapMoments(NamedTuple):
    """Mean, standard deviation and skewness of the time per output token, by output length.

    prefill_seconds, prefill_steps: mean time that a request runs until its first token, and steps.
    bare: those among them that meet no prefill, where they have points of their own.
    """

    mean: FloatArray
    deviation: FloatArray
    skewness: FloatArray
    prefill_seconds: float
    prefill_steps: float
    bare: Bare | None = None


def output_gaps(output: LengthDistribution) -> OutputGaps:
    """Gap counts of these outputs, compacted to a few points."""
    compact = output.compacted(OUTPUT_POINTS, keep_short=True)
    tokens = np.array(compact.tokens)
    weights = np.array(compact.weights)
    several = tokens > 1.0
    share = float(weights[several].sum())
    if share == 0.0:
        gaps, kept = np.array([1.0]), np.array([1.0])
    else:
        # A point between one and two tokens, of a histogram, stands for requests with one gap.
        gaps, kept = np.maximum(tokens[several] - 1.0, 1.0), weights[several] / share
    return OutputGaps(
        gaps=gaps,
        weights=kept,
        weighted=kept * gaps,
        spread_weights=kept[:, None] * DEVIATE_WEIGHTS[: len(kept)],
        # None is 0: rounding would be requests of one token, and a row of points for them.
        single_share=float(weights[~several].sum()),
    )


def spread_points(mean: FloatArray, deviation: FloatArray, skewness: FloatArray) -> FloatArray:
    """Points of gamma laws with these moments at the quadrature's deviates.

    Moments by row and output length; points by row, length and deviate.
    Wilson–Hilferty: a gamma variable is nearly the cube of a normal one.
    Source: E. B. Wilson and M. M. Hilferty, The distribution of chi-square, PNAS 17 (1931).
    """
    # μ + σ·((1 + k·u)³ − 1)/(3·k), k a sixth of the skewness and u the deviate less k.
    sixth = (skewness * (1.0 / 6.0) + SMALL_SIXTH)[..., None]
    root = 1.0 + sixth * (_DEVIATES[: sixth.shape[-2]] - sixth)
    # Without skewness to the left no point lies below the least value of a gamma law.
    np.maximum(root, np.where(sixth > 0.0, 0.0, -np.inf), out=root)
    scale = deviation[..., None] / (3.0 * sixth)
    points: FloatArray = mean[..., None] + scale * (root * root * root - 1.0)
    return points


def atom_laws(
    points: FloatArray, weights: FloatArray, bounds: tuple[float, float] = (-math.inf, math.inf)
) -> list[AtomLaw]:
    """The laws of these weighted points, a law for each row; weights may be the same for all.

    bounds: that no point lies outside.
    """
    order = points.argsort(axis=1)
    seconds = np.clip(np.take_along_axis(points, order, axis=1), *bounds)
    mass = np.take_along_axis(np.broadcast_to(weights, points.shape), order, axis=1)
    middle = np.cumsum(mass, axis=1) - 0.5 * mass
    return list(map(AtomLaw, seconds, middle))


def weighted_points(
    output: OutputGaps, moments: tuple[FloatArray, FloatArray, FloatArray], most_seconds: float
) -> tuple[FloatArray, FloatArray]:
    """Points of the laws with these moments by output length, a law for each row; and weights.

    most_seconds: a step that is full of prefill, which no average of steps is above.
    """
    points = spread_points(*moments)
    points = points.reshape(-1, points.shape[-2] * points.shape[-1])
    weights = output.spread_weights.ravel()
    _put_off(points, weights, most_seconds)
    return points, weights


def shares_within(
    points: FloatArray, weights: FloatArray, bounds: tuple[float, float], seconds: float
) -> list[float]:
    """`AtomLaw.share_within` of `atom_laws`, by row, without the laws: nothing is sorted for it."""
    np.minimum(np.maximum(points, bounds[0], out=points), bounds[1], out=points)
    inside = points <= seconds
    rows = np.arange(len(points))
    lower = np.where(inside, points, -np.inf).argmax(axis=1)
    upper = np.where(inside, np.inf, points).argmin(axis=1)
    mass = inside @ weights
    low, high = points[rows, lower], points[rows, upper]
    step = (seconds - low) / np.maximum(high - low, TINY_SECONDS)
    shares = mass - 0.5 * weights[lower] + step * 0.5 * (weights[lower] + weights[upper])
    shares[inside.all(axis=1)] = 1.0
    shares[~inside.any(axis=1)] = 0.0
    return [float(share) for share in shares]


def time_per_output_token_laws(
    output: OutputGaps,
    moments: Sequence[GapMoments],
    states: Sequence[Sequence[tuple[FloatArray, GapMoments]]],
    bounds_seconds: tuple[float, float],
) -> list[AtomLaw]:
    """Laws of the time per output token over requests, in seconds, by load.

    states: shares of the requests, by output length, that have moments of their own, by load.
    bounds_seconds: an idle step and a step that is full of prefill; no average of steps lies
    outside, and what a full step has no room for others meet.
    """
    weights = output.spread_weights
    if not any(states) and all(law.bare is None for law in moments):
        return atom_laws(
            *weighted_points(output, _stacked(moments), bounds_seconds[1]), bounds_seconds
        )
    parts = [_parts(law, own) for law, own in zip(moments, states, strict=True)]
    laws: list[AtomLaw | None] = [None] * len(moments)
    # Loads with as many parts have as many points.
    for count in sorted({len(own) for own in parts}):
        rows = [row for row, own in enumerate(parts) if len(own) == count]
        every = [law for row in rows for _, law in parts[row]]
        shares = np.array([[share for share, _ in parts[row]] for row in rows])
        points = spread_points(*_stacked(every)).reshape(len(rows), -1)
        mass = (shares[..., None] * weights).reshape(len(rows), -1)
        _put_off(points, mass, bounds_seconds[1])
        for row, law in zip(rows, atom_laws(points, mass, bounds_seconds), strict=True):
            laws[row] = law
    return [law for law in laws if law is not None]


def _parts(
    moments: GapMoments, states: Sequence[tuple[FloatArray, GapMoments]]
) -> list[tuple[FloatArray, Moments]]:
    """Shares of the requests of a load, by output length, and the moments of each part."""
    parts: list[tuple[FloatArray, Moments]] = []
    ones = np.ones(len(moments.mean))
    usual = ones - sum((own for own, _ in states), start=0.0 * ones)
    for share, law in ((usual, moments), *states):
        bare = law.bare
        if bare is not None:
            met = Moments(bare.mean, bare.deviation, bare.skewness)
            mean, deviation = bare.seconds, bare.deviation_seconds
            none = Moments(
                *np.multiply.outer((mean, deviation, gamma_skewness(mean, deviation)), ones)
            )
            parts += [(share * (1.0 - bare.share), met), (share * bare.share, none)]
        else:
            parts.append((share, Moments(law.mean, law.deviation, law.skewness)))
    return parts


def gamma_skewness(mean: float, deviation: float) -> float:
    """Skewness of a gamma law with this mean and deviation."""
    return 2.0 * deviation / mean


def _put_off(points: FloatArray, mass: FloatArray, most_seconds: float) -> None:
    """Moves points of these laws, a law for each row, below a full step, so that means stay.

    Prefill that a step has no room for is done in later steps, which other requests meet: no time
    is lost, which is what a cut would mean. What lies below the full step goes up by one share of
    its distance to it, so that the order stays.
    """
    # Few loads come near it, and those alone pay.
    over = np.flatnonzero(np.maximum.reduce(points, axis=1) > most_seconds)
    if not len(over):
        return
    room = most_seconds - points[over]
    parts = mass if mass.ndim == 1 else mass[over]
    below = np.maximum(room, 0.0)
    excess = np.add.reduce((below - room) * parts, axis=1)
    kept = 1.0 - excess / np.maximum(np.add.reduce(below * parts, axis=1), TINY_SECONDS)
    points[over] = most_seconds - below * np.maximum(kept, 0.0)[:, None]


def _stacked(
    moments: Sequence[GapMoments] | Sequence[Moments],
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean, deviation and skewness, a row for each of these moments."""
    return (
        stacked([law.mean for law in moments]),
        stacked([law.deviation for law in moments]),
        stacked([law.skewness for law in moments]),
    )


def end_to_end_laws(
    output: OutputGaps,
    moments: Sequence[GapMoments],
    first: Sequence[tuple[float, float, float]],
    least_seconds: float,
) -> list[AtomLaw]:
    """Laws of the end-to-end latency over requests, in seconds: first token plus O − 1 gaps.

    first: mean, variance and third central moment of the time to first token, by load. Given the
    output length, the sum is a gamma law with the added cumulants. least_seconds: an idle step; no
    request takes fewer steps than it has tokens.
    """
    mean, variance, third = np.array(first).T[:, :, None]
    gap_mean, gap_deviation, gap_skewness = (np.atleast_2d(law) for law in _stacked(moments))
    decode = output.gaps * gap_deviation
    square = decode * decode
    cubed = gap_skewness * square * decode + third
    square += variance
    deviation = np.sqrt(square)
    points = spread_points(
        output.gaps * gap_mean + mean,
        deviation,
        cubed / (np.maximum(deviation, 1e-12) * square + 1e-36),
    )
    np.maximum(points, (least_seconds * (output.gaps + 1.0))[:, None], out=points)
    if output.single_share == 0.0:
        return atom_laws(points.reshape(len(points), -1), output.spread_weights.ravel())
    alone = spread_points(mean, np.sqrt(variance), third / np.maximum(variance, 1e-24) ** 1.5)
    np.maximum(alone, least_seconds, out=alone)
    several = 1.0 - output.single_share
    weights = (several * output.spread_weights, output.single_share * DEVIATE_WEIGHTS[:1])
    every = np.concatenate((points, alone), axis=1)
    return atom_laws(every.reshape(len(points), -1), np.concatenate(weights).ravel())
