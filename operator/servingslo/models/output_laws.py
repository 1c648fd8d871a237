"""Laws over requests of the time per output token and the end-to-end latency."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from servingslo.models.service_time import FloatArray
from servingslo.models.workload import LengthDistribution

_OUTPUT_POINTS = 20
_DEVIATE_COUNT = 24
# Keeps the gamma law of no skewness from a division by zero; seven digits are left.
_SMALL_SIXTH = 1e-9
# A sixth of the skewness from which the lowest deviates fall below the least value of a gamma law.
_BOUNDED_SIXTH = 0.25
# Normal deviates of the quadrature over the spread of one request: trapezoid rule, tails to 1e-4.
# Every length has its own shift of them (golden ratio), so that the points of lengths with nearly
# the same law do not fall together.
_BASE: FloatArray = np.linspace(-3.0, 4.0, _DEVIATE_COUNT)
_SHIFTS: FloatArray = (np.arange(_OUTPUT_POINTS, dtype=np.float64) * 0.618034 % 1.0 - 0.5) * (
    7.0 / (_DEVIATE_COUNT - 1)
)
_LINE: FloatArray = np.stack((np.ones_like(_BASE), _BASE))
_DEVIATES: FloatArray = _BASE + _SHIFTS[:, None]
_DENSITIES: FloatArray = np.exp(-0.5 * _DEVIATES**2)
_DEVIATE_WEIGHTS: FloatArray = _DENSITIES / _DENSITIES.sum(axis=1, keepdims=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomLaw:
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

    inverse, inverse_square: 1/gaps and its square.
    weights sum to 1 over these; spread_weights are those of the quadrature over lengths and
    deviates. single_share is the share of requests with one token, which have no such time.
    """

    gaps: FloatArray
    inverse: FloatArray
    inverse_square: FloatArray
    weights: FloatArray
    spread_weights: FloatArray
    single_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GapMoments:
    """Mean, standard deviation and skewness of the time per output token, by output length.

    prefill_seconds, prefill_steps: mean time that a request runs until its first token, and steps.
    """

    mean: FloatArray
    deviation: FloatArray
    skewness: FloatArray
    prefill_seconds: float
    prefill_steps: float


def output_gaps(output: LengthDistribution) -> OutputGaps:
    """Gap counts of these outputs, compacted to a few points."""
    compact = output.compacted(_OUTPUT_POINTS, keep_short=True)
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
        inverse=1.0 / gaps,
        inverse_square=1.0 / gaps**2,
        weights=kept,
        spread_weights=kept[:, None] * _DEVIATE_WEIGHTS[: len(kept)],
        single_share=1.0 - share,
    )


def spread_points(moments: GapMoments) -> FloatArray:
    """Points of gamma laws with these moments at the quadrature's deviates, a row for each length.

    Wilson–Hilferty: a gamma variable is nearly the cube of a normal one.
    Source: E. B. Wilson and M. M. Hilferty, The distribution of chi-square, PNAS 17 (1931).
    """
    # μ + σ·((1 + k·u)³ − 1)/(3·k), k a sixth of the skewness and u = v + e the deviate less k, v
    # the same for all lengths: the cube of (1 + k·e)·r + k·r·v, r³ = σ/(3·k), plus a constant.
    sixth = moments.skewness * (1.0 / 6.0)
    sixth += _SMALL_SIXTH
    lines = np.empty((2, len(sixth)))
    constant, slope = lines
    np.subtract(_SHIFTS[: len(sixth)], sixth, out=constant)
    constant *= sixth
    constant += 1.0
    third = moments.deviation / sixth
    third *= 1.0 / 3.0
    root = np.cbrt(third)
    np.multiply(root, sixth, out=slope)
    constant *= root
    base = lines.T @ _LINE
    if np.maximum.reduce(sixth) > _BOUNDED_SIXTH:
        np.maximum(base, np.where(sixth > 0.0, 0.0, -np.inf)[:, None], out=base)
    points: FloatArray = base * base
    points *= base
    points += np.subtract(moments.mean, third, out=third)[:, None]
    return points


def atom_law(points: FloatArray, weights: FloatArray) -> AtomLaw:
    """The law of these weighted points (any shapes that match)."""
    flat = points.ravel()
    order = flat.argsort()
    mass = weights.ravel().take(order)
    middle = np.add.accumulate(mass)
    mass *= 0.5
    middle -= mass
    return AtomLaw(seconds=flat.take(order), probability=middle)


def time_per_output_token_law(
    output: OutputGaps,
    moments: GapMoments,
    states: Sequence[tuple[FloatArray, GapMoments]],
    least_seconds: float,
    most_seconds: float,
) -> AtomLaw:
    """Law of the time per output token over requests, in seconds.

    states: shares of the requests, by output length, that have moments of their own. least_seconds,
    most_seconds: an idle step and a step that is full of prefill; no average of steps lies outside.
    """
    points, weights = spread_points(moments), output.spread_weights
    if states:
        several = [points, *(spread_points(own) for _, own in states)]
        shares = [np.ones(len(output.gaps)), *(share for share, _ in states)]
        shares[0] -= np.add.reduce(shares[1:])
        points = np.concatenate(several)
        weights = np.concatenate([weights * share[:, None] for share in shares])
    law = atom_law(points, weights)
    if law.seconds[0] < least_seconds or law.seconds[-1] > most_seconds:
        np.maximum(law.seconds, least_seconds, out=law.seconds)
        np.minimum(law.seconds, most_seconds, out=law.seconds)
    return law


def end_to_end_law(
    output: OutputGaps,
    moments: GapMoments,
    first: tuple[float, float, float],
    least_seconds: float,
) -> AtomLaw:
    """Law of the end-to-end latency over requests, in seconds: first token plus O − 1 gaps.

    first: mean, variance and third central moment of the time to first token. Given the output
    length, the sum is a gamma law with the added cumulants. least_seconds: an idle step; no request
    takes fewer steps than it has tokens.
    """
    mean, variance, third = first
    decode = output.gaps * moments.deviation
    square = decode * decode
    deviation = np.sqrt(square + variance)
    cubed = moments.skewness * square * decode + third
    points = spread_points(
        GapMoments(
            mean=output.gaps * moments.mean + mean,
            deviation=deviation,
            skewness=cubed / (np.maximum(deviation, 1e-12) * (square + variance) + 1e-36),
            prefill_seconds=moments.prefill_seconds,
            prefill_steps=moments.prefill_steps,
        )
    )
    np.maximum(points, (least_seconds * (output.gaps + 1.0))[:, None], out=points)
    weights = output.spread_weights
    if output.single_share == 0.0:
        return atom_law(points, weights)
    alone = spread_points(
        GapMoments(
            mean=np.array([mean]),
            deviation=np.array([math.sqrt(variance)]),
            skewness=np.array([third / max(variance, 1e-24) ** 1.5]),
            prefill_seconds=moments.prefill_seconds,
            prefill_steps=moments.prefill_steps,
        )
    )
    np.maximum(alone, least_seconds, out=alone)
    several = 1.0 - output.single_share
    return atom_law(
        np.concatenate((points, alone)),
        np.concatenate((several * weights, output.single_share * _DEVIATE_WEIGHTS[:1])),
    )
