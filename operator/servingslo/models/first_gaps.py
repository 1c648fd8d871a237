"""The step of a request's first token, and how the prefill in it goes on in the next ones.

Source: cumulants of a branching process with immigration, T. E. Harris, The Theory of Branching
Processes (1963); docs/designs/0002-models.md, "What was added".
"""

from typing import NamedTuple

from servingslo.models.pools import even_arrivals
from servingslo.models.service_time import RequestDemand

# Loads of prefill are taken as in this range, so that nothing is divided by zero, and steps that
# make the next one longer come to an end.
_LEAST_RATIO = 1e-9
_LARGEST_RATIO = 0.98


class OwnStep(NamedTuple):
    """The step that makes a request's first token, and what is prefilled in it.

    ratio: p, load of prefill. echo: share of p that the prefill of a replica brings to it in the
    next step and to no other. others_seconds, others_variance, others_third: cumulants of what
    others prefill in this step. full_seconds: a step without room.
    """

    ratio: float
    echo: float
    others_seconds: float
    others_variance: float
    others_third: float
    full_seconds: float


def own_step_of(
    demand: RequestDemand, rate_per_second: float, step: float, pool_count: int, room_tokens: float
) -> OwnStep:
    """The step of a request's first token, at a rate of one replica.

    Steps are D′ = s + c·Σ I over the arrivals during D. An arrival finds a step in proportion to
    its length; the next one makes its first token, with all that came in the one it found.

    Of the arrivals of a pool the share e comes evenly, see `even_arrivals`, the rest to where
    sequences left. Of those that leave in a step, λD̄, the pool takes up 1/c in its level; the
    others are replaced within a long step, where 1 − e come as a rule. A prompt lets in e′ =
    e + (e − 1/c)·D̄/D in place of e, D the length that prompts of this mix make, c·E[I²]/E[I].
    Steps of a replica vary by what all share, which feeds itself with p, and by what is its own,
    which does so with the echo. Others in a step are a mean step of arrivals, and what lengths of
    steps add to the dispersion of their number; those that follow departures are binomial, 1 − 1/O.
    step: seconds without prefill. room_tokens: for prefill in a step.
    """
    prompt = demand.prefill_mean_seconds
    ratio = min(max(rate_per_second * prompt, _LEAST_RATIO), _LARGEST_RATIO)
    full = step + demand.prefill_per_token_seconds * max(room_tokens, 0.0)
    if prompt <= 0.0:
        return OwnStep(ratio, 0.0, 0.0, 0.0, 0.0, full)
    per_token = demand.prefill_per_token_seconds
    square = per_token**2 * demand.uncached_second_moment_tokens2
    second = rate_per_second * square
    third = rate_per_second * per_token**3 * demand.uncached_third_moment_tokens3
    mean = step / (1.0 - ratio)
    even, echo, others = 1.0, 0.0, 1.0 - 1.0 / pool_count
    if pool_count > 1:
        even = even_arrivals(demand, rate_per_second, mean, pool_count)
        even = min(even + (even - 1.0 / pool_count) * mean * prompt / square, 1.0)
        echo = (even - 1.0 / pool_count) / others * ratio
    # Cumulants of a step, and of one that is met.
    variance = 1.0 / (pool_count * (1.0 - ratio**2)) + others * (1.0 + echo**2)
    variance *= second * mean
    next_ratio = even * ratio
    skew = (3.0 * next_ratio * second * variance + third * mean) / (1.0 - next_ratio**3)
    longer = variance / mean
    met_variance = max(skew / mean + variance - longer**2, 0.0)
    met = max(min(mean + longer, full), step)
    met_variance = min(met_variance, (full - met) * (met - step))
    lumps = mean + even**2 * (met - mean)
    fewer = (1.0 - even) * prompt / demand.output_mean_tokens
    return OwnStep(
        ratio,
        echo,
        max(ratio * lumps - fewer, 0.0),
        second * lumps + next_ratio**2 * met_variance,
        third * lumps + 3.0 * next_ratio * second * met_variance,
        full,
    )
