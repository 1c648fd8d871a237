"""Prefill interference: the prompts of others that are prefilled between the tokens of a request.

Law: cumulants of a compound Poisson sum whose terms act like a branching process with immigration.
Source: W. Feller, An Introduction to Probability Theory and Its Applications II (1971), chapter VI;
T. E. Harris, The Theory of Branching Processes (1963), chapter I.
Assumes: Poisson arrivals. In a pool, a prompt is 1/c of what all replicas have in common, which
feeds itself, and delays only the replica that has it by the rest.
Fails: short outputs in pools, whose replicas are not sent further prompts while one is prefilled:
TPOT p99 up to a quarter late, the mean up to 11 %.
Shown by: `make validate`, "one replica, Poisson": TPOT p95 within 5 %; "short outputs".
"""

from typing import Any, NamedTuple

from servingslo.models.service_time import FloatArray, RequestDemand

# Loads of prefill are taken as in this range, so that nothing is divided by zero, and steps that
# make the next one longer come to an end.
_LEAST_RATIO = 1e-9
_LARGEST_RATIO = 0.98


class Cumulants(NamedTuple):
    """Mean, variance and third cumulant of seconds: numbers, or arrays by output length."""

    mean: Any
    variance: Any
    third: Any


class FirstStep(NamedTuple):
    """The step that makes a request's first token.

    ratio: load of prefill. others: what others prefill in it. full_seconds: a step without room.
    """

    ratio: float
    others: Cumulants
    full_seconds: float


class Interference(NamedTuple):
    """What the prefill that gaps meet is made of.

    ratio: p, load of prefill. mean_step: seconds of a step, prefill included. second, third:
    λ·E[W²] and λ·E[W³] of the prefill W of a prompt. bursts: what bursts add to these, by output
    length. own_excess: seconds of the own prefill above a mean step; own: variance and third
    cumulant of the step of the first token. pool_count: replicas that share arrivals.
    """

    ratio: float
    mean_step: float
    second: float
    third: float
    bursts: tuple[FloatArray | float, FloatArray | float]
    own_excess: float
    own: tuple[float, float]
    pool_count: int


def first_step_of(
    demand: RequestDemand, rate_per_second: float, step: float, pool_count: int, room_tokens: float
) -> FirstStep:
    """The step of a request's first token, at a rate of one replica.

    Steps are D′ = s + c·Σ I over the arrivals during D. An arrival finds a step in proportion to
    its length; the next one makes its first token, with all that came in the one it found. Steps of
    a pool feed themselves in what they have in common alone, 1/c of their variance.
    step: seconds without prefill. room_tokens: for prefill in a step.
    """
    ratio = rate_per_second * demand.prefill_mean_seconds
    ratio = min(max(ratio, _LEAST_RATIO), _LARGEST_RATIO)
    full = step + demand.prefill_per_token_seconds * max(room_tokens, 0.0)
    second, third = prefill_work_rates(demand, rate_per_second)
    mean = step / (1.0 - ratio)
    variance = 1.0 / (pool_count * (1.0 - ratio**2)) + 1.0 - 1.0 / pool_count
    variance *= second * mean
    skew = (3.0 * ratio * second * variance + third * mean) / (1.0 - ratio**3)
    longer = variance / mean
    seen = max(min(mean + longer, full), step)
    seen_variance = max(skew / mean + variance - longer**2, 0.0)
    seen_variance = min(seen_variance, (full - seen) * (seen - step))
    others = Cumulants(
        ratio * seen,
        second * seen + ratio**2 * seen_variance,
        third * seen + 3.0 * ratio * second * seen_variance,
    )
    return FirstStep(ratio, others, full)


def prefill_work_rates(demand: RequestDemand, rate_per_second: float) -> tuple[float, float]:
    """λ·E[W²] and λ·E[W³] of the prefill W = c·I of a prompt."""
    per_token = demand.prefill_per_token_seconds
    return (
        rate_per_second * per_token**2 * demand.uncached_second_moment_tokens2,
        rate_per_second * per_token**3 * demand.uncached_third_moment_tokens3,
    )


def prefill_in_gaps(gaps: FloatArray, load: Interference) -> Cumulants:
    """Cumulants of the prefill that k gaps meet, per gap; the mean as far as it is of the own.

    A prompt that arrives in gap j delays the rest by c·I·G, G = (1 − p^k)/(1 − p) with k the gaps
    left, because its step lets further prompts in. The first gap holds what arrived during the
    request's own prefill, longer than a step by its own prompt: short outputs therefore see slower
    tokens. What is left of it after j gaps, p^j, brings as many more prompts. With M = λ·E[W²] and
    X = Σ p^(k−j)·G_j² the variance is M·(D̄·ΣG² + X·(T − D̄)) + (pG)²·Var D₀, exact in steps without
    n. The third cumulant is exact but for Σ G_j³ and Σ G_j·X_j, taken as G·Σ G_j² and G·Σ X_j.
    """
    ratio, slack = load.ratio, 1.0 - load.ratio
    power = ratio**gaps
    reach = (1.0 - power) / slack
    squares = reach * (2.0 * ratio + ratio**2 * slack * reach) / (1.0 + ratio)
    squares = (gaps - squares) / slack**2
    later = (1.0 + ratio - reach * ratio * slack) * reach - 2.0 * gaps * power
    later /= slack**2
    second, third = load.second + load.bursts[0], load.third + load.bursts[1]
    even, first, echo = squares * load.mean_step, later * load.own_excess, reach * ratio
    known = echo * load.own[0]
    variance = even * second + first * load.second + echo * known
    # Longer steps let in more: of the prompts of a gap, as far as there are gaps left.
    cubed = (1.0 - later / squares) * (even + first) * (3.0 * second**2 / slack)
    cubed = (cubed + even * third + first * load.third) * reach
    cubed += later * known * 3.0 * load.second + echo**3 * load.own[1]
    shared = 1.0 / load.pool_count
    plain = (1.0 - shared) * gaps * load.mean_step
    return Cumulants(
        shared * echo * load.own_excess / gaps,
        (shared * variance + plain * second) / gaps**2,
        (shared * cubed + plain * third) / gaps**3,
    )
