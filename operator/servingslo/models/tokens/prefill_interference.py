"""Prefill interference: the prompts of others that are prefilled between the tokens of a request.

Law: cumulants of a compound Poisson sum whose terms act like a branching process with immigration.
Source: W. Feller, An Introduction to Probability Theory and Its Applications II (1971), chapter VI;
T. E. Harris, The Theory of Branching Processes (1963), chapter I.
Assumes: Poisson arrivals. In a pool, 1/c of a prompt is common to all replicas and feeds itself;
the rest of it delays only the prompt's own replica.
Fails: short outputs in pools, whose replicas receive no further prompts while one is prefilled:
TPOT p99 up to a fifth late, the mean up to 15 %.
Shown by: `make validate`, "one replica, Poisson": TPOT p95 within 5 %; "short outputs".
"""

from typing import Any, NamedTuple

from servingslo.models.engine.service_time import FloatArray, RequestDemand
from servingslo.models.numerics import LARGEST_LOAD, TINY_RATIO


class Cumulants(NamedTuple):
    """Mean and variance of seconds: numbers, or arrays by output length."""

    mean: Any
    variance: Any


class FirstStep(NamedTuple):
    """The step that makes a request's first token.

    ratio: load of prefill. others: prefill of others in it. full_seconds: a step without room.
    """

    ratio: float
    others: Cumulants
    full_seconds: float


class Interference(NamedTuple):
    """The parameters of the prefill that gaps meet.

    ratio: p, load of prefill. mean_step: seconds of a step, prefill included. second: λ·E[W²] of
    the prefill W of a prompt. bursts: the addition of bursts to it, by output length. own_excess:
    seconds of the own prefill above a mean step; own: variance of the step of the first token.
    pool_count: replicas that share arrivals.
    """

    ratio: float
    mean_step: float
    second: float
    bursts: FloatArray
    own_excess: float
    own: float
    pool_count: int


def first_step_of(
    demand: RequestDemand, rate_per_second: float, step: float, pool_count: int, room_tokens: float
) -> FirstStep:
    """Return the step of a request's first token, at a rate of one replica.

    Steps are D′ = s + c·Σ I over the arrivals during D. An arrival finds a step in proportion to
    its length, E[D²]/E[D]. The next step makes its first token. It includes all arrivals of the
    step that was found, which is taken to have this length. Steps of a pool feed themselves only
    through their common part, 1/c of their variance.
    step: seconds without prefill. room_tokens: for prefill in a step.
    """
    ratio = rate_per_second * demand.prefill_mean_seconds
    ratio = min(max(ratio, TINY_RATIO), LARGEST_LOAD)
    full = step + demand.prefill_per_token_seconds * max(room_tokens, 0.0)
    second = rate_per_second * prefill_square_seconds2(demand)
    longer = second / (pool_count * (1.0 - ratio**2)) + second * (1.0 - 1.0 / pool_count)
    seen = max(min(step / (1.0 - ratio) + longer, full), step)
    return FirstStep(ratio, Cumulants(ratio * seen, second * seen), full)


def prefill_square_seconds2(demand: RequestDemand) -> float:
    """Return E[W²] of the prefill W = c·I of a prompt."""
    return demand.prefill_per_token_seconds**2 * demand.uncached_second_moment_tokens2


def prefill_in_gaps(gaps: FloatArray, load: Interference) -> Cumulants:
    """Return cumulants of the prefill that k gaps meet, per gap; the mean only from own prefill.

    A prompt that arrives in gap j delays the rest by c·I·G, G = (1 − p^k)/(1 − p) with k the gaps
    left, because its step lets further prompts in. The first gap holds the arrivals during the
    request's own prefill, which is longer than a step by its own prompt. So short outputs see
    slower tokens. The rest of it after j gaps, p^j, brings as many more prompts. With M = λ·E[W²]
    and X = Σ p^(k−j)·G_j² the variance is M·(D̄·ΣG² + X·(T − D̄)) + (pG)²·Var D₀. It is exact in
    steps without n, except for the spread of the step that an arrival meets, which is left out of
    Var D₀.
    """
    ratio, slack = load.ratio, 1.0 - load.ratio
    power = ratio**gaps
    reach = (1.0 - power) / slack
    squares = reach * (2.0 * ratio + ratio**2 * slack * reach) / (1.0 + ratio)
    squares = (gaps - squares) / slack**2
    later = (1.0 + ratio - reach * ratio * slack) * reach - 2.0 * gaps * power
    later /= slack**2
    second, echo = load.second + load.bursts, reach * ratio
    variance = squares * load.mean_step * second + later * load.own_excess * load.second
    variance += echo**2 * load.own
    shared = 1.0 / load.pool_count
    plain = (1.0 - shared) * gaps * load.mean_step
    return Cumulants(
        shared * echo * load.own_excess / gaps, (shared * variance + plain * second) / gaps**2
    )
