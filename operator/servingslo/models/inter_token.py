"""Time per output token of one request: the average of its steps."""

import math
from dataclasses import dataclass

import numpy as np

from servingslo.models.occupancy import Occupancy
from servingslo.models.service_time import FloatArray, RequestDemand
from servingslo.models.workload import LengthDistribution

_OUTPUT_POINTS = 32
# Normal deviates of the quadrature over the spread of one request: trapezoid rule, tails to 1e-4.
_DEVIATES = np.linspace(-3.0, 4.0, 24)
_DEVIATE_WEIGHTS = np.exp(-0.5 * _DEVIATES**2) / np.exp(-0.5 * _DEVIATES**2).sum()


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

    weights sum to 1 over these; single_share is the share of requests with one token, which have
    no time per output token.
    """

    gaps: FloatArray
    weights: FloatArray
    single_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GapMoments:
    """Mean, standard deviation and skewness of the time per output token, by output length."""

    mean: FloatArray
    deviation: FloatArray
    skewness: FloatArray


def output_gaps(output: LengthDistribution) -> OutputGaps:
    """Gap counts of these outputs, compacted to a few points."""
    compact = output.compacted(_OUTPUT_POINTS)
    tokens = np.array(compact.tokens)
    weights = np.array(compact.weights)
    several = tokens > 1.0
    share = float(weights[several].sum())
    if share == 0.0:
        return OutputGaps(gaps=np.array([1.0]), weights=np.array([1.0]), single_share=1.0)
    return OutputGaps(
        gaps=tokens[several] - 1.0, weights=weights[several] / share, single_share=1.0 - share
    )


def gap_moments(
    demand: RequestDemand,
    output: OutputGaps,
    law_of_running: Occupancy,
    rate_per_second: float,
) -> GapMoments:
    """Moments of the time per output token given the output length, in seconds.

    The gaps of a request of O tokens take (O − 1)·s plus the prefill that arrives meanwhile: a busy
    period of an M/G/1 queue begun by (O − 1)·s, which gives three cumulants. s follows the running
    sequences, averaged over the residence: fluctuations of n forget at rate
    κ = (1 − ρ)²/(O·a), so their variance shrinks by 2(x − 1 + e^−x)/x² with x = κ·residence.
    The request itself is one of n, and who stays long also sees more of the crowd: the others grow
    from the law at arrival to the law seen from inside, n-weighted minus one.
    """
    prefill_ratio = rate_per_second * demand.prefill_mean_seconds
    slack = 1.0 - prefill_ratio
    work = rate_per_second * demand.marginal_seconds
    relax = max(1.0 - work, 0.05) ** 2 / demand.fixed_seconds
    stay = relax * output.gaps * demand.step_fixed_seconds / max(1.0 - work, 0.05)
    decay = np.exp(-stay)
    start_share = -np.expm1(-stay) / stay
    averaging = 2.0 * (stay - 1.0 + decay) / stay**2
    mean_n = law_of_running.mean
    inside = max(law_of_running.variance / max(mean_n, 1e-9) - 1.0, 0.0)
    others = mean_n + inside * (1.0 - start_share)
    growth = demand.step_growth_seconds
    step = demand.step_fixed_seconds + growth * (others + 1.0)
    per_token = demand.prefill_per_token_seconds
    second = rate_per_second * per_token**2 * demand.uncached_second_moment_tokens2
    third = rate_per_second * per_token**3 * demand.uncached_third_moment_tokens3
    lump_variance = step * second / slack**3 / output.gaps
    lump_third = step * (third / slack**4 + 3.0 * second**2 / slack**5) / output.gaps**2
    n_variance = (growth / slack) ** 2 * law_of_running.variance * averaging
    n_skew = 2.0 / math.sqrt(max(mean_n, 1.0))
    variance = lump_variance + n_variance
    deviation = np.sqrt(variance)
    skewness = (lump_third + n_skew * n_variance**1.5) / np.maximum(variance * deviation, 1e-30)
    return GapMoments(mean=step / slack, deviation=deviation, skewness=skewness)


def spread_points(moments: GapMoments) -> FloatArray:
    """Points of gamma laws with these moments at the quadrature's deviates, shape (lengths, 24).

    Wilson–Hilferty: a gamma variable is nearly the cube of a normal one.
    Source: E. B. Wilson and M. M. Hilferty, The distribution of chi-square, PNAS 17 (1931).
    """
    skew = np.maximum(moments.skewness, 1e-3)[:, None]
    root = 1.0 + skew / 6.0 * (_DEVIATES - skew / 6.0)
    standard: FloatArray = (2.0 / skew) * (np.maximum(root, 0.0) ** 3 - 1.0)
    points: FloatArray = moments.mean[:, None] + moments.deviation[:, None] * standard
    return points


def atom_law(points: FloatArray, weights: FloatArray) -> AtomLaw:
    """The law of these weighted points (any shapes that match)."""
    flat = points.ravel()
    order = flat.argsort()
    mass = weights.ravel()[order]
    cumulated = mass.cumsum()
    return AtomLaw(seconds=flat[order], probability=cumulated - 0.5 * mass)


def time_per_output_token_law(
    output: OutputGaps, moments: GapMoments, least_seconds: float, most_seconds: float
) -> AtomLaw:
    """Law of the time per output token over requests, in seconds.

    least_seconds, most_seconds: an idle step and a step that is full of prefill; no average of
    steps lies outside.
    """
    points = np.clip(spread_points(moments), least_seconds, most_seconds)
    return atom_law(points, output.weights[:, None] * _DEVIATE_WEIGHTS)


def deviate_weights() -> FloatArray:
    """Weights of the quadrature over the spread of one request; they sum to 1."""
    return _DEVIATE_WEIGHTS


def end_to_end_law(
    output: OutputGaps, moments: GapMoments, first: tuple[float, float, float]
) -> AtomLaw:
    """Law of the end-to-end latency over requests, in seconds: first token plus O − 1 gaps.

    first: mean, variance and third central moment of the time to first token. Given the output
    length, the sum is a gamma law with the added cumulants.
    """
    mean, variance, third = first
    deviation = np.sqrt((output.gaps * moments.deviation) ** 2 + variance)
    cubed = moments.skewness * (output.gaps * moments.deviation) ** 3 + third
    points = spread_points(
        GapMoments(
            mean=output.gaps * moments.mean + mean,
            deviation=deviation,
            skewness=cubed / np.maximum(deviation, 1e-12) ** 3,
        )
    )
    weights = output.weights[:, None] * _DEVIATE_WEIGHTS
    if output.single_share == 0.0:
        return atom_law(points, weights)
    alone = spread_points(
        GapMoments(
            mean=np.array([mean]),
            deviation=np.array([math.sqrt(variance)]),
            skewness=np.array([third / max(variance, 1e-24) ** 1.5]),
        )
    )
    several = 1.0 - output.single_share
    return atom_law(
        np.concatenate((points, alone)),
        np.concatenate((several * weights, output.single_share * _DEVIATE_WEIGHTS[None, :])),
    )
