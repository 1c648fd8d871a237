"""Light traffic: the time per output token if most requests meet one prompt, or none.

Law: two raw moments of a compound Poisson sum, with requests that meet nothing kept separate.
Source: W. Feller, An Introduction to Probability Theory and Its Applications II (1971), chapter VI.
Assumes: each request waits for the prefill of those that find it, see `occupancy_levels`.
Fails: as `occupancy_levels`.
Shown by: `make validate`, "long prompts, outputs of a few tokens"; the guard's document bursts cost
8 % more without it.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from servingslo.models.engine.service_time import RequestDemand
from servingslo.models.numerics import TINY_TOKENS
from servingslo.models.running.occupancy_levels import Found
from servingslo.models.tokens.gap_loads import GapLoad
from servingslo.models.tokens.output_laws import Moments
from servingslo.models.tokens.prefill_interference import prefill_square_seconds2

# Below this share of requests that meet prompts, and below this deviation as a part of a step, the
# higher moments are only rounding.
_LEAST_SHARE = 1e-6
_LEAST_DEVIATION = 1e-3


class LightLoad(NamedTuple):
    """The load that requests meet at a replica with few others, in plain numbers.

    few: see `Found`. step, deviation: seconds of a step without prefill. once, in_gap: mean number
    of prompts met that came before the first token, and in each gap. work, square: moments of one
    prompt's prefill, in seconds.
    """

    few: float
    step: float
    deviation: float
    once: float
    in_gap: float
    work: float
    square: float


def light_load(
    demand: RequestDemand, load: GapLoad, step: float, found: Found, budget_tokens: float
) -> LightLoad:
    """Return the load that requests meet, from what arrivals find; step: see `own_step`.

    Each request waits for the prefill of those that find it, at any time in its stay. Some of them
    come in the full steps of its own prompt. They are prefilled in the last step, with its first
    token, as far as there is room.
    """
    per_token, tokens = demand.prefill_per_token_seconds, demand.uncached_mean_tokens
    gaps = max(demand.output_mean_tokens - 1.0, 1.0)
    full_step = step + per_token * budget_tokens
    full_steps = (load.prefill_steps - 1.0) * full_step
    full_steps /= demand.prefill_mean_seconds + load.prefill_steps * step
    room = load.prefill_steps * budget_tokens / max(tokens, TINY_TOKENS) - 1.0
    together = min(full_steps, 1.0) * min(max(room, 0.0), 1.0)
    return LightLoad(
        found.few,
        step,
        demand.step_growth_seconds * math.sqrt(load.variance),
        found.delayed * found.early * (1.0 - together),
        found.delayed * (1.0 - found.early) / gaps,
        demand.prefill_mean_seconds,
        prefill_square_seconds2(demand),
    )


def mixed_with_bare(usual: Moments, gaps: Any, load: LightLoad) -> tuple[Any, Moments, Moments]:
    """Return the share of requests that meet no prefill, moments of the others, and of all.

    By output length; usual: moments with many running. A request meets a Poisson number of prompts
    with the mean ν, none with e^−ν, and a gap is longer by their work over all gaps.
    """
    number = load.once + load.in_gap * gaps
    none = np.exp(-number)
    bare, spread = load.few * none, load.deviation**2
    work = number / gaps * load.work
    square = number / gaps**2 * load.square
    first = load.few * work
    second = load.few * (square + work**2 + (1.0 - none) * spread)
    # The same of the usual law, about the step.
    over, variance = usual.mean - load.step, usual.deviation**2
    many = 1.0 - load.few
    first += many * over
    second += many * (variance + over**2)
    rest = np.maximum(1.0 - bare, _LEAST_SHARE)
    others = _moments(load.step, first / rest, second / rest)
    return bare, others, _moments(load.step, first, second + bare * spread)


def _moments(origin: float, first: Any, second: Any) -> Moments:
    """Return moments about a point, as mean and deviation."""
    variance = np.maximum(second - first * first, (_LEAST_DEVIATION * origin) ** 2)
    return Moments(origin + first, np.sqrt(variance))
