"""The safety margin of demand: how far above the median is planned, tracked by the error budget.

Every window spends some of the error budget: its burn is the share of requests that missed over
the share that may miss. The margin moves by a fixed step times (burn − 1) and never below its
place, 0: budget that is left pays back what was added, and buys nothing else. An hour without a
miss is no evidence for fewer replicas, since it tells what demand did and not what it may do:
margins below 0 gave replicas away just before a rise. Over any time in which the margin stays off
its bounds the mean burn differs from 1 by at most (distance moved) / (step · windows), whatever
demand does. That identity needs no law of demand and holds for delayed misses too. What it does not
promise: a miss is seen one cold start after the decision that caused it, so the margin swings by up
to step · delay · burn around its place; nothing holds while a bound is active, nor for any single
hour; and windows that say nothing about the margin (blind, at the maximum, waiting for cards, in a
surge and while capacity for it comes: no quantile of calm demand would have met those) are left
out. A shortage in which most requests miss burns a day's budget within minutes, so it is remembered
for hours: the step is small, and what it burnt counts in full.
Source: I. Gibbs and E. Candès, "Adaptive conformal inference under distribution shift", NeurIPS
2021, equation 2 and proposition 4.1, on the scale of normal scores, bounded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from servingslo.estimation.histograms import HistogramDelta
from servingslo.models.latency import Objective

# Normal scores: 0 plans for the stated quantile; above 0.5 more is paid for ramps and walks than it
# serves: docs/lab/estimation.md.
HIGHEST_SCORE = 0.5
# By how much a window of a quarter of a minute with a burn of 2 moves the margin: from its upper
# bound to its place in an hour without a miss.
STEP_PER_SECOND = 0.002 / 15.0
# All requests of a window miss where one in a hundred may.
LARGEST_BURN = 100.0
# Below this share of the budget's scale the margin is at its place.
NEGLIGIBLE_SCORE = 0.01
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginState:
    """The margin as a normal score added to the planned quantile's, and what moved it last.

    burn_ratio: of the last window that was judged, 1 spends the budget exactly; None before any.
    surge_seconds: when demand last moved as in a surge.
    """

    score: float = 0.0
    burn_ratio: float | None = None
    surge_seconds: float | None = None


def quantile_with_margin(probability: float, score: float) -> float:
    """The probability whose normal score is this much larger; within (0, 1)."""
    return _NORMAL.cdf(_NORMAL.inv_cdf(probability) + score)


def learn(state: MarginState, burn_ratio: float | None, seconds: float) -> MarginState:
    """The margin after a window of `seconds` that burnt this much; itself without evidence."""
    if burn_ratio is None or not math.isfinite(burn_ratio) or seconds <= 0:
        return state
    burn = min(max(burn_ratio, 0.0), LARGEST_BURN)
    score = state.score + STEP_PER_SECOND * seconds * (burn - 1.0)
    return replace(state, score=min(max(score, 0.0), HIGHEST_SCORE), burn_ratio=burn)


def burn_ratio(
    objectives: Sequence[Objective],
    observed: Mapping[str, HistogramDelta],
    rejected_ratio: float,
) -> float | None:
    """Share of requests that missed over the share that may; None without evidence.

    The larger of each objective's own, missed / (1 − percentile), and of all together against the
    smallest percentile, where the shares are added: histograms do not say which requests missed
    two objectives, so this is an upper bound. Where a threshold lies between two bucket edges only
    the part of the interval that is sure counts.
    rejected_ratio: share of the offered requests that were refused; each misses every objective.
    """
    burns: list[float] = []
    sure = possible = rejected_ratio
    tolerated = 0.0
    for objective in objectives:
        latency = observed.get(objective.metric)
        share = None if latency is None else latency.share_within(objective.threshold_seconds)
        if share is None:
            continue
        allowed = 1.0 - objective.percentile / 100.0
        least, most = 1.0 - share[1] + rejected_ratio, 1.0 - share[0] + rejected_ratio
        burns.append(_known_part(least / allowed, most / allowed))
        sure += 1.0 - share[1]
        possible += 1.0 - share[0]
        tolerated = max(tolerated, allowed)
    if not burns:
        return None
    return max(*burns, _known_part(sure / tolerated, possible / tolerated))


def _known_part(least: float, most: float) -> float:
    """The burn nearest to 1 of an interval: what is not sure moves nothing."""
    return min(max(1.0, least), most)
