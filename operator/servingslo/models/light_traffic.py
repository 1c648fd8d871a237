"""Light traffic: the time per output token where most requests meet one prompt, or none.

Law: raw moments of a compound negative binomial sum.
Source: W. Feller, An Introduction to Probability Theory and Its Applications II (1971), chapter VI.
Assumes: each request waits for the prefill of those that find it, see `occupancy_levels`.
Fails: as `occupancy_levels`.
Shown by: `make validate`, "long prompts, outputs of a few tokens"; without it TPOT p95 is up to
three times too late there.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from servingslo.models.gap_loads import GapLoad
from servingslo.models.occupancy_levels import Found
from servingslo.models.output_laws import Moments
from servingslo.models.service_time import RequestDemand

# Shares that meet prompts below this one, and deviations below this part of a step, have nothing
# but rounding in their higher moments.
_LEAST_SHARE = 1e-6
_LEAST_DEVIATION = 1e-3
# A negative binomial law with this is Poisson to nine digits.
_LEAST_SCATTER = 1e-9
# Against a division by zero where nothing is prefilled.
_TINY_TOKENS = 1e-9


class LightLoad(NamedTuple):
    """What requests meet where a replica has few, in plain numbers.

    few: see `Found`. step, deviation: seconds of a step without prefill. once, in_gap: mean number
    of prompts met that came before the first token, and in each gap. scatter: of that number, see
    `Found`. work, square, cube: moments of
    the prefill of one, in seconds.
    """

    few: float
    step: float
    deviation: float
    once: float
    in_gap: float
    scatter: float
    work: float
    square: float
    cube: float


def light_load(
    demand: RequestDemand, load: GapLoad, step: float, found: Found, budget_tokens: float
) -> LightLoad:
    """What requests meet that arrivals find; step: see `own_step`.

    Each waits for the prefill of those that find it, whenever in its stay they come. Of those that
    come in the full steps of its own prompt, as much is prefilled in the last step, with its first
    token, as there is room.
    """
    per_token, tokens = demand.prefill_per_token_seconds, demand.uncached_mean_tokens
    gaps = max(demand.output_mean_tokens - 1.0, 1.0)
    full_step = step + per_token * budget_tokens
    full_steps = (load.prefill_steps - 1.0) * full_step
    full_steps /= demand.prefill_mean_seconds + load.prefill_steps * step
    room = load.prefill_steps * budget_tokens / max(tokens, _TINY_TOKENS) - 1.0
    together = min(full_steps, 1.0) * min(max(room, 0.0), 1.0)
    return LightLoad(
        found.few,
        step,
        demand.step_growth_seconds * math.sqrt(load.variance),
        found.delayed * found.early * (1.0 - together),
        found.delayed * (1.0 - found.early) / gaps,
        max(found.scatter, _LEAST_SCATTER),
        demand.prefill_mean_seconds,
        per_token**2 * demand.uncached_second_moment_tokens2,
        per_token**3 * demand.uncached_third_moment_tokens3,
    )


def mixed_with_bare(usual: Moments, gaps: Any, load: LightLoad) -> tuple[Any, Moments, Moments]:
    """Share of the requests that meet no prefill, moments of the others, and of all.

    By output length; usual: moments where many run. The number of prompts that a request meets is
    negative binomial with the mean ν and the factorial moments ν²(1 + q) and ν³(1 + q)(1 + 2q), q
    its scatter: none with (1 + qν)^(−1/q), e^−ν as q → 0. A gap is longer by the work of those that
    it meets over all gaps.
    """
    inverse = 1.0 / gaps
    number, more = load.once + load.in_gap * gaps, 1.0 + load.scatter
    none = np.exp(np.log1p(load.scatter * number) / -load.scatter)
    bare = load.few * none
    met, spread = number * inverse, load.deviation * load.deviation
    work = met * load.work
    square = met * inverse * load.square
    first = load.few * work
    second = load.few * (square + more * work * work + (1.0 - none) * spread)
    third = (3.0 * square + (more + load.scatter) * work * work) * more * work
    third = load.few * (third + met * inverse * inverse * load.cube)
    # The same of the usual law, about the step.
    over, variance = usual.mean - load.step, usual.deviation * usual.deviation
    many = 1.0 - load.few
    first += many * over
    second += many * (variance + over * over)
    third += many * (usual.skewness * variance * usual.deviation)
    third += many * (3.0 * variance + over * over) * over
    rest = np.maximum(1.0 - bare, _LEAST_SHARE)
    others = _moments(load.step, first / rest, second / rest, third / rest)
    return bare, others, _moments(load.step, first, second + bare * spread, third)


def _moments(origin: float, first: Any, second: Any, third: Any) -> Moments:
    """Moments about a point, as mean, deviation and skewness."""
    spread, least = second - first * first, (_LEAST_DEVIATION * origin) ** 2
    variance = np.maximum(spread, least)
    deviation = np.sqrt(variance)
    central = (spread > least) * (third + first * (2.0 * first * first - 3.0 * second))
    return Moments(origin + first, deviation, central / (variance * deviation))
