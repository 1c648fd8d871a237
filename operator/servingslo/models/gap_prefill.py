"""Prefill that the gaps of one request meet: variance and third cumulant of what it adds.

Source: cumulants of a compound Poisson law, W. Feller, An Introduction to Probability Theory and
Its Applications II (1971), chapter VI; docs/designs/0002-models.md, "What was added".
"""

from typing import Generic, NamedTuple, TypeVar

import numpy as np

from servingslo.models.service_time import FloatArray, RequestDemand

Number = TypeVar("Number", float, FloatArray)


class Met(NamedTuple, Generic[Number]):
    """What the moments of gaps are made of: a number for each load, or an array of loads × gaps.

    mean_step: seconds of a step with prefill. log_ratio: of p/c of `prefill_in_gaps`, r; slack,
    rest: 1 − r and −1/(1 − r²); early, per_lump: 1 + 2r/(1 − r) − r²/(1 − r²), and steps by
    (1 − r)². own_step: of a request's own prefill, without what arrives in it; own_ratio: r.
    own_variance: of the prompts that arrive in it. second, third: λ·c² and λ·c³; square, cube:
    moments of prompts without bursts. first_gaps, all_gaps: what a gap takes longer in proportion
    to reach, and alike. forget: gaps until half of the running sequences are others, inverse.
    variance, skewness: of the part of the step that follows n. lump_skewness: what it adds in
    proportion to the variance of lumps. limit_excess, correlation_seconds: of the bursts. slower,
    over_stay: seconds of a gap, at a burst that lasts, and in proportion to the dispersion over the
    stay, per gap; 0 without bursts.
    """

    mean_step: Number
    log_ratio: Number
    ratio: Number
    slack: Number
    rest: Number
    early: Number
    per_lump: Number
    own_step: Number
    own_variance: Number
    second: Number
    third: Number
    square: Number
    cube: Number
    first_gaps: Number
    all_gaps: Number
    forget: Number
    variance: Number
    skewness: Number
    lump_skewness: Number
    limit_excess: Number
    correlation_seconds: Number
    slower: Number
    over_stay: Number


class Lumps(NamedTuple):
    """Prefill met in the gaps, per gap: gaps that a prompt in the first delays, and cumulants."""

    reach: FloatArray
    variance: FloatArray
    third: FloatArray


def prefill_in_gaps(
    demand: RequestDemand,
    powers: tuple[FloatArray, FloatArray, FloatArray],
    met: Met[FloatArray],
    excess: FloatArray | None,
) -> Lumps:
    """Variance and third cumulant, per gap, of the prefill met in these gaps.

    Steps form an autoregression D′ = s + c·Σ I over the arrivals during D. A prompt that arrives
    in gap j delays the rest by c·I·G, G = (1 − p^k)/(1 − p) with k the gaps left, because its step
    lets further prompts in. The first gap holds what arrived during the request's own prefill step,
    which is longer than others by its own prompt: short outputs therefore see slower tokens.

    A pool sends arrivals to where sequences have left, and a long step lets none leave, so that
    only 1/c of the arrivals that come meanwhile meet it (p/c in place of p in G); and arrivals of a
    replica follow departures, half as disperse as Poisson in a large pool: (1 + 1/c)/2.
    excess: what bursts add to the dispersion of counts over the stay.
    """
    gaps, inverse, inverse_square = powers
    square, cube = met.square, met.cube
    if excess is not None:
        together = excess * demand.uncached_mean_tokens
        added = together * demand.uncached_mean_tokens
        # 3·e·E[I²] + 1.5·I·e², e the tokens that bursts bring together.
        cube = cube + together * (3.0 * square + 1.5 * added)
        square = square + added
    second = met.second * square
    # Seconds of a step that an arrival meets, and that it makes longer.
    seen = met.mean_step - second * met.rest
    seen *= met.ratio
    own_step = met.own_step + seen
    seen *= second
    seen += met.own_variance * met.ratio
    seen *= met.ratio
    power = np.exp(gaps * met.log_ratio)
    # From here on per gap.
    reach = 1.0 - power
    reach *= inverse
    reach /= met.slack
    # Sum of G² over the later gaps, in closed form.
    lumps = power * met.rest
    lumps += 2.0 / met.slack
    lumps *= power
    lumps += gaps
    lumps -= met.early
    lumps *= inverse_square
    lumps *= met.per_lump
    reach_square = reach * reach
    lumps += reach_square * own_step
    reach_square *= seen
    reach_square += second * lumps
    # G ≤ reach in every gap, and equal to it in most, so that Σ G³ is nearly reach·Σ G².
    lumps *= reach
    second *= second
    second *= 3.0 / met.slack
    second += met.third * cube
    lumps *= second
    return Lumps(reach=reach, variance=reach_square, third=lumps)
