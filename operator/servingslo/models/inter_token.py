"""Time per output token of one request: the average of its steps."""

import math
from dataclasses import dataclass

import numpy as np

from servingslo.models.bursts import burst_variance_ratio, remembered_share, scaled_excess
from servingslo.models.occupancy import Occupancy, cluster_third_moment
from servingslo.models.service_time import FloatArray, RequestDemand
from servingslo.models.workload import LengthDistribution

_OUTPUT_POINTS = 20
_LEAST_RATIO = 1e-9
_LEAST_CUBE = 1e-30
# Keeps the gamma law of no skewness from a division by zero; seven digits are left.
_SMALL_SIXTH = 1e-9
# A sixth of the skewness from which the lowest deviates fall below the least value of a gamma law.
_BOUNDED_SIXTH = 0.25
# Normal deviates of the quadrature over the spread of one request: trapezoid rule, tails to 1e-4.
# Every length has its own shift of them (golden ratio), so that the points of lengths with nearly
# the same law do not fall together.
_BASE: FloatArray = np.linspace(-3.0, 4.0, 18)
_SHIFTS: FloatArray = (np.arange(_OUTPUT_POINTS, dtype=np.float64) * 0.618034 % 1.0 - 0.5) * (
    7.0 / 17.0
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
    """Mean, standard deviation and skewness of the time per output token, by output length."""

    mean: FloatArray
    deviation: FloatArray
    skewness: FloatArray


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


def gap_moments(
    demand: RequestDemand,
    output: OutputGaps,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
) -> GapMoments:
    """Moments of the time per output token given the output length, in seconds.

    Three parts. (1) The step s = a + β·n with the request itself among the n: mean conditional
    sojourns of processor sharing are linear in the length, so its mean is the same for all lengths.
    (2) Prefill that arrives during the gaps, see `_prefill_in_gaps`. (3) Fluctuations of n averaged
    over the stay: in the clock that stops during prefill they forget at rate κ = (1 − βn/s)/(O·s),
    so that their variance shrinks by h(x) = 2(x − 1 + e^−x)/x², x = κ·(O − 1)·s; and arrivals raise
    prefill and n together, which adds the covariance β·s·C·h/(1 − p), where C = λ·E[N·W] is that
    of the counts N and the work W of the clusters that arrive together during prefill.
    """
    prefill_ratio = rate_per_second * demand.prefill_mean_seconds
    slack = 1.0 - prefill_ratio
    growth = demand.step_growth_seconds
    # The request is one more in the pool, which spreads evenly.
    pool = law_of_running.pool_count
    step = demand.step_fixed_seconds + growth * (law_of_running.mean + 1.0 / pool)
    lump_mean, lump_variance, lump_third = _prefill_in_gaps(
        demand, output, rate_per_second, step, budget_tokens, law_of_running
    )
    # In a pool a replica gets its share of each cluster, and n is the average of all.
    forget = demand.step_fixed_seconds / (step * demand.output_mean_tokens)
    averaging = np.expm1(output.gaps * -forget)
    averaging *= output.inverse_square
    averaging *= 2.0 / forget**2
    averaging += output.inverse * (2.0 / forget)
    second = demand.prefill_per_token_seconds**2 * demand.uncached_second_moment_tokens2
    cluster = rate_per_second * (
        demand.prefill_mean_seconds / slack**2 + rate_per_second * second / slack**3
    )
    # A burst reaches all replicas at once. Evener than Poisson counts as Poisson, on the safe side.
    excess = max(law_of_running.excess_dispersion, 0.0)
    cluster += pool * excess * rate_per_second * demand.prefill_mean_seconds / slack**2
    own_variance = (growth / slack) ** 2 * law_of_running.variance
    full_variance = own_variance + growth * step * cluster / (slack * pool)
    mean = lump_mean
    mean += step / slack
    if law_of_running.excess_dispersion > 0.0:
        mean += _burst_seconds(demand, output, law_of_running, rate_per_second, step)
    jumps = cluster_third_moment(demand, rate_per_second) - rate_per_second / slack
    # With all slots taken clusters wait instead of running.
    jumps *= 1.0 - law_of_running.wait_probability
    n_third = law_of_running.third_moment + jumps * step / (3.0 * forget * pool**2)
    n_skew = n_third / max(law_of_running.variance, 1e-12) ** 1.5
    third = np.sqrt(averaging)
    third *= n_skew * full_variance**1.5
    third += lump_variance * (3.0 * own_variance * slack / step)
    third *= averaging
    third += lump_third
    averaging *= full_variance
    variance = lump_variance
    variance += averaging
    deviation = np.sqrt(variance)
    variance *= deviation
    third /= np.maximum(variance, _LEAST_CUBE, out=variance)
    return GapMoments(mean=mean, deviation=deviation, skewness=third)


def _prefill_in_gaps(
    demand: RequestDemand,
    output: OutputGaps,
    rate_per_second: float,
    step: float,
    budget_tokens: float,
    law_of_running: Occupancy,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Excess mean, variance and third cumulant, per gap, of the prefill met in these gaps.

    Steps form an autoregression D′ = s + c·Σ I over the arrivals during D. A prompt that arrives
    in gap j delays the rest by c·I·G, G = (1 − p^k)/(1 − p) with k the gaps left, because its step
    lets further prompts in. The first gap holds what arrived during the request's own prefill step,
    which is longer than others by its own prompt: short outputs therefore see slower tokens.

    A pool sends arrivals to where sequences have left, and a long step lets none leave, so that
    only 1/c of the arrivals that come meanwhile meet it (p/c in place of p in G); and arrivals of a
    replica follow departures, half as disperse as Poisson in a large pool: (1 + 1/c)/2. Bursts add
    what they disperse counts over the stay.
    """
    pool_count = law_of_running.pool_count
    per_token = demand.prefill_per_token_seconds
    ratio = rate_per_second * demand.prefill_mean_seconds
    mean_step = step / (1.0 - ratio)
    ratio = max(ratio / pool_count, _LEAST_RATIO)
    slack, rest = 1.0 - ratio, 1.0 - ratio**2
    square: float | FloatArray = demand.uncached_second_moment_tokens2
    prompt_variance = square - demand.uncached_mean_tokens**2
    dispersion = 0.5 * (1.0 + 1.0 / pool_count)
    square -= (1.0 - dispersion) * demand.uncached_mean_tokens**2
    cube: float | FloatArray = demand.uncached_third_moment_tokens3
    bursts = law_of_running.excess_dispersion
    if bursts > 0.0:
        mean_tokens = demand.uncached_mean_tokens
        excess = scaled_excess(bursts, output.gaps / demand.output_mean_tokens)
        cube += (
            3.0 * excess * square * mean_tokens + 1.5 * (excess * mean_tokens) ** 2 * mean_tokens
        )
        square += excess * mean_tokens**2
    second = rate_per_second * per_token**2 * square
    third = rate_per_second * per_token**3 * cube
    seen_step = mean_step + second / rest
    own_step = step + ratio * seen_step
    own_step += per_token * min(demand.uncached_mean_tokens, budget_tokens)
    own_variance = ratio**2 * (per_token**2 * prompt_variance + second * seen_step)
    power = np.exp(output.gaps * math.log(ratio))
    # From here on per gap.
    reach = 1.0 - power
    reach *= output.inverse
    reach *= 1.0 / slack
    # Sum of G² over the later gaps, in closed form.
    lumps = power * (-1.0 / rest)
    lumps += 2.0 / slack
    lumps *= power
    lumps += output.gaps
    lumps -= 1.0 + 2.0 * ratio / slack - ratio**2 / rest
    lumps *= output.inverse_square
    lumps *= mean_step / slack**2
    reach_square = reach * reach
    lumps += reach_square * own_step
    reach_square *= own_variance
    reach_square += second * lumps
    # G ≤ reach in every gap, and equal to it in most, so that Σ G³ is nearly reach·Σ G².
    lumps *= reach
    lumps *= third + 3.0 * second**2 / slack
    reach *= (own_step - mean_step) * ratio
    return reach, reach_square, lumps


def _burst_seconds(
    demand: RequestDemand,
    output: OutputGaps,
    law_of_running: Occupancy,
    rate_per_second: float,
    step: float,
) -> FloatArray:
    """How much slower tokens are for requests, which come in bursts, than over time, in seconds.

    An arrival finds the rate cv² above its mean, and n by cv²·n/3: n follows the rate with the
    memory of a residence, twice the correlation time of the rate. And steps grow faster than in
    proportion to the rate, 1/(1 − λcI), which the variance of the rate over the stay adds to.
    """
    variance = burst_variance_ratio(law_of_running.excess_dispersion, law_of_running.mean)
    slack = 1.0 - rate_per_second * demand.prefill_mean_seconds
    ratio = (1.0 - slack) / slack
    prefill = step * ratio / slack
    stays = output.gaps / demand.output_mean_tokens
    over_stay = scaled_excess(law_of_running.excess_dispersion, stays) / (
        max(law_of_running.mean, 1.0) * stays
    )
    decode = demand.step_growth_seconds * law_of_running.mean / (3.0 * slack)
    slower: FloatArray = variance * (prefill + decode) * remembered_share(stays)
    slower += step / slack * ratio**2 * over_stay
    return slower


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
    output: OutputGaps, moments: GapMoments, least_seconds: float, most_seconds: float
) -> AtomLaw:
    """Law of the time per output token over requests, in seconds.

    least_seconds, most_seconds: an idle step and a step that is full of prefill; no average of
    steps lies outside.
    """
    law = atom_law(spread_points(moments), output.spread_weights)
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
        )
    )
    np.maximum(alone, least_seconds, out=alone)
    several = 1.0 - output.single_share
    return atom_law(
        np.concatenate((points, alone)),
        np.concatenate((several * weights, output.single_share * _DEVIATE_WEIGHTS[:1])),
    )
