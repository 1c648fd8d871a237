"""Prefill that the gaps of one request meet: mean, variance and third cumulant of what it adds.

Source: cumulants of a compound Poisson law, W. Feller, An Introduction to Probability Theory and
Its Applications II (1971), chapter VI; of a branching process with immigration, T. E. Harris, The
Theory of Branching Processes (1963); counts of a renewal process, D. R. Cox, Renewal Theory (1962),
chapter 4; docs/designs/0002-models.md, "What was added".
"""

from typing import Generic, NamedTuple, TypeVar

import numpy as np

from servingslo.models.service_time import FloatArray

Number = TypeVar("Number", float, FloatArray)


class Met(NamedTuple, Generic[Number]):
    """What the moments of gaps are made of: a number for each load, or an array of loads × gaps.

    Steps: mean_step, seconds with prefill; ratio, p, with log_ratio; per_slack, linear, quadratic:
    1/(1 − p), 2p/(1 + p) and p²(1 − p)/(1 + p).
    Prompts: second, third: λc²E[I²] and λc³E[I³]; tokens,
    square: moments of prompts; per_square, per_cube: λc² and λc³.
    The step of the first token: prefill_excess, own_excess, seconds of the own prefill, and of its
    last step, above a mean step; own_variance, own_third: cumulants of that step.
    Pools: shared, own: 1/c and 1 − 1/c; log_fading: −λD̄; echo: (1 − 1/c)·q; echoed: what it adds
    to the sum of squares in the end; departures, forgotten: dispersion of departures in the end,
    and what it has more at first, gaps; log_forget: how fast a gap takes that off; sizes, counts:
    variance of the prompts of a step, of their lengths and of their number; cubed, cubed_once,
    cubed_twice: third cumulant of them, by powers of that dispersion.
    all_gaps: what all gaps take alike. forget:
    gaps until half of the running sequences are others, inverse. variance, skewness: of the part of
    the step that follows n. lump_skewness: what it adds in proportion to the variance of lumps.
    limit_excess, correlation_seconds: of the bursts. slower, over_stay: seconds of a gap, at a
    burst that lasts, and in proportion to the dispersion over the stay, per gap; 0 without bursts.
    """

    mean_step: Number
    ratio: Number
    log_ratio: Number
    per_slack: Number
    linear: Number
    quadratic: Number
    second: Number
    third: Number
    tokens: Number
    square: Number
    per_square: Number
    per_cube: Number
    prefill_excess: Number
    own_excess: Number
    own_variance: Number
    own_third: Number
    shared: Number
    own: Number
    log_fading: Number
    echo: Number
    echoed: Number
    departures: Number
    forgotten: Number
    log_forget: Number
    sizes: Number
    counts: Number
    cubed: Number
    cubed_once: Number
    cubed_twice: Number
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
    """Prefill met in the gaps, per gap: seconds that follow from the own prefill, and cumulants."""

    first: FloatArray
    variance: FloatArray
    third: FloatArray


class _Prompts(NamedTuple):
    """Variance and third cumulant of the prompts of a second, with what bursts add."""

    second: FloatArray
    third: FloatArray


class _Response(NamedTuple):
    """What prefill does to the gaps left, by their number k, where each replica is on its own.

    reach: G, gaps that a prompt delays. squares: sum of G² over these gaps. later: sum of
    p^(k − j)·G², of the prompts that a longer first step lets in.
    """

    reach: FloatArray
    squares: FloatArray
    later: FloatArray


def prefill_in_gaps(
    powers: tuple[FloatArray, FloatArray, FloatArray],
    met: Met[FloatArray],
    excess: FloatArray | None,
    most_replicas: int,
) -> Lumps:
    """Mean, variance and third cumulant, per gap, of the prefill met in these gaps.

    Steps form an autoregression D′ = s + c·Σ I over the arrivals during D. A prompt that arrives
    in gap j delays the rest by c·I·G, G = (1 − p^k)/(1 − p) with k the gaps left, because its step
    lets further prompts in. The first gap holds what arrived during the request's own prefill,
    longer than a step by its own prompt: short outputs therefore see slower tokens. What is left of
    it after j gaps, p^j, brings as many more prompts. Cumulants of such a sum are those of a
    branching process with immigration; with M = λc²E[I²] and X = Σ p^(k−j)·G_j², its variance is
    M·(D̄·ΣG² + X·(T − D̄)) + (pG)²·Var D₀, exact in steps without n. The third cumulant is exact but
    for Σ G_j³ and Σ G_j·X_j, taken as G·Σ G_j² and G·Σ X_j.

    excess: what bursts add to the dispersion of counts over the stay. most_replicas: of a pool of
    these loads, see `_in_pool`.
    """
    gaps, inverse, inverse_square = powers
    power = np.exp(gaps * met.log_ratio)
    reach = (1.0 - power) * met.per_slack
    squares = reach * met.quadratic
    squares += met.linear
    squares *= reach
    power *= gaps
    later = (1.0 + met.ratio - reach * (met.ratio / met.per_slack)) * reach
    later -= power
    later -= power
    slower = met.per_slack * met.per_slack
    response = _Response(reach, (gaps - squares) * slower, later * slower)
    prompts = _Prompts(met.second, met.third)
    if excess is not None:
        together = excess * met.tokens
        added = together * met.tokens
        # 3·e·E[I²] + 1.5·I·e², e the tokens that bursts bring together.
        more = together * (3.0 * met.square + 1.5 * added) * met.per_cube
        prompts = _Prompts(added * met.per_square + met.second, more + met.third)
    if most_replicas == 1:
        lumps = _alone(met, response, prompts)
    else:
        lumps = _in_pool(gaps, inverse, met, response, prompts)
    return Lumps(
        lumps.first * inverse,
        lumps.variance * inverse_square,
        lumps.third * (inverse_square * inverse),
    )


def _alone(met: Met[FloatArray], response: _Response, prompts: _Prompts) -> Lumps:
    """Prefill that all gaps meet together on a replica by itself."""
    reach, later = response.reach, response.later
    even = response.squares * met.mean_step
    first = later * met.prefill_excess
    # Longer steps let in more: of the prompts of a gap, as far as there are gaps left.
    third = 1.0 - later / response.squares
    third *= even + first
    third *= 3.0 * prompts.second * prompts.second * met.per_slack
    third += even * prompts.third
    third += first * met.third
    third *= reach
    echo = reach * met.ratio
    known = echo * met.own_variance
    third += later * known * (3.0 * met.second)
    third += echo * echo * echo * met.own_third
    even *= prompts.second
    first *= met.second
    even += first
    even += echo * known
    return Lumps(echo * met.prefill_excess, even, third)


def _in_pool(
    gaps: FloatArray,
    inverse: FloatArray,
    met: Met[FloatArray],
    response: _Response,
    prompts: _Prompts,
) -> Lumps:
    """Prefill that all gaps meet together on a replica of a pool.

    A prompt is 1/c of what all replicas have in common and 1 − 1/c of what is a replica's own, and
    both act apart. A pool as a whole is sent requests whatever its steps do: in common prompts let
    further ones in with p, as on a replica by itself. A replica is sent what comes evenly in the
    next step, the echo q, and then less until it is at the level of the others again, which takes
    until it has lost a sequence: G = 1 + q·e^(−λD̄(k − 1)). Nothing is left of that in the end.

    Its own number of prompts is that of departures, C + (1 − C)·(1 − e^(−y))/y as disperse as
    Poisson, C that of outputs, y = 6k/((1 + C)·O): as in a renewal process with gamma lives for few
    gaps and for many. The third cumulant is of the square of that, as in one.
    """
    reach, squares, later = response.reach, response.squares, response.later
    own_echo, own_squares, dispersion = _own(gaps, inverse, met)
    reach_square = reach * reach
    # A prompt on the same replica delays by this much.
    both = reach * met.shared
    both += own_echo
    both += met.own
    both_square = both * both
    shared_first = later / reach_square
    shared_first *= met.shared
    per_ratio = 1.0 / met.ratio
    first = shared_first * met.prefill_excess
    first += own_echo * (per_ratio * met.own_excess)
    # A step that is full of prefill is no longer by the own.
    first = np.maximum(first, 0.0)
    own_squares *= dispersion * met.counts + met.sizes
    variance = squares * (met.mean_step * (prompts.second - met.own * met.second))
    variance += own_squares
    second = both_square * met.second
    variance += second * first
    third = (dispersion * met.cubed_twice + met.cubed_once) * dispersion
    third += met.cubed + met.mean_step * (prompts.third - met.third)
    even = squares / reach_square
    even *= met.shared
    even += gaps * met.own
    third *= even
    first *= met.third
    third += first
    both *= both_square
    third *= both
    # Longer steps let in more, on all replicas, of what they have in common.
    chained = 1.0 - later / squares
    chained *= squares * met.mean_step + later * met.prefill_excess
    chained /= reach
    reach_square *= met.shared
    reach_square += met.own
    chained *= reach_square
    chained *= 3.0 * met.shared * met.per_slack * prompts.second * prompts.second
    third += chained
    shared_echo = reach * (met.shared * met.ratio)
    echo = shared_echo + own_echo
    known = echo * met.own_variance
    variance += echo * known
    shared_first += own_echo * per_ratio
    shared_first *= second
    shared_first *= known
    third += 3.0 * shared_first
    third += echo * echo * echo * met.own_third
    shared_echo *= met.prefill_excess
    own_echo *= met.own_excess
    shared_echo += own_echo
    return Lumps(shared_echo, variance, third)


def _own(
    gaps: FloatArray, inverse: FloatArray, met: Met[FloatArray]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """What is a replica's own: its echo, the sum of G² over the gaps, dispersion of prompts."""
    fading = np.exp((gaps - 1.0) * met.log_fading)
    squares = (1.0 - fading) * met.echoed
    squares += gaps
    dispersion = (1.0 - np.exp(gaps * met.log_forget)) * inverse
    dispersion *= met.forgotten
    dispersion += met.departures
    fading *= met.echo
    return fading, squares, dispersion
