"""Compare two groups of pods over the same time: does the new setting serve worse?

Requests that are served in one batch are slow or fast together, so they count as fewer: a sample
states its design effect.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric

# Error of a share of requests beyond a threshold: half of the least that p95 objectives can
# distinguish.
ERROR_RATIO = 0.05
# An opinion: clients notice one failed request in a hundred. How often they repeat it would tell.
FAILED_ERROR_RATIO = 0.01
# One-sided 95 %.
CONFIDENCE_DEVIATIONS = 1.645
# Requests whose batch changes from step to step: a share varies like that of half as many requests.
RUNNING_DESIGN_EFFECT = 2.0
# To be distinguished, a smaller share needs at least as many requests as this one.
LEAST_RATIO = 0.05
# Fewer requests say nothing: of 30 requests without a miss, up to 10 % may miss (rule of three).
LEAST_REQUESTS = 30
# The mean time is this many times as long as on the siblings. An opinion: what clients notice.
SLOWER_RATIO = 1.25
# Squared coefficient of variation of the time of a request: that of an exponential time. Waits in
# a queue vary so (M/M/1), executions less.
MEAN_VARIANCE = 1.0
# By chance of load balancing, a pod sometimes gets this share of requests fewer.
LEAST_FEWER_RATIO = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Measurements of one group of pods over the comparison.

    deltas: latencies by metric, if there are histograms. answered, failed: requests, if they are
    counted. mean_seconds: of a request, if there are no histograms. engines: how many.
    design_effect: requests that vary like a single independent one.
    """

    deltas: Mapping[LatencyMetric, HistogramDelta] = field(default_factory=dict)
    answered: float = 0.0
    failed: float = 0.0
    mean_seconds: float | None = None
    engines: int = 0
    design_effect: float = RUNNING_DESIGN_EFFECT

    @property
    def requests(self) -> float:
        """Requests, from the metric that counts most: a single token has no time per token."""
        counts = (delta.count for delta in self.deltas.values())
        return max(counts, default=self.answered + self.failed)

    @property
    def requests_per_engine(self) -> float:
        """Requests of one engine over the same time."""
        return self.requests / self.engines if self.engines else 0.0


class _Share(NamedTuple):
    """Share of a sample's requests that miss, at least and at most, their number, its variance.

    Nothing is known of the requests in the bucket that holds a threshold.
    """

    least: float
    most: float
    requests: float
    variance: float


class _Difference(NamedTuple):
    """Difference of one share; what: the miss, in words.

    more, fewer: by how much our share is surely larger or smaller, above the allowed share.
    certain: the least significant difference. missed: whether our share alone misses the objective.
    """

    what: str
    ours: _Share
    theirs: _Share
    more: float
    fewer: float
    certain: float
    missed: bool


def requests_needed(variance: float, error: float, design_effect: float) -> int:
    """Requests of each of two samples, so that their difference is known to an error.

    variance, error: of a share, or both relative to a mean. design_effect: see `Sample`; for
    requests of one batch it is at most the batch, 1 + (m − 1)·ρ with ρ = 1.
    Source: n = 2·z²·v/e² for two samples, one-sided, times the design effect of a sample in
    clusters (Kish, Survey Sampling, 1965).
    """
    return math.ceil(design_effect * 2.0 * (CONFIDENCE_DEVIATIONS / error) ** 2 * variance)


def share_variance(objectives: Sequence[Objective]) -> float:
    """The largest variance of a share at the limit that an objective allows."""
    shares = [max(1.0 - one.percentile / 100.0, LEAST_RATIO) for one in objectives]
    share = max(shares, default=LEAST_RATIO)
    return share * (1.0 - share)


def worse_in_words(objectives: Sequence[Objective], new: Sample, old: Sample) -> str:
    """Why to take the new setting back; '' if it stays. Both samples have enough requests."""
    differences = []
    for objective in objectives:
        ours, theirs = (_late(objective, sample) for sample in (new, old))
        if ours is not None and theirs is not None:
            allowed = 1.0 - objective.percentile / 100.0
            what = f"{objective.key} missed"
            differences.append(_difference(what, ours, theirs, allowed, ERROR_RATIO))
    ours, theirs = (
        _share(one, share := one.failed / one.requests, share, one.requests) for one in (new, old)
    )
    failed = _difference("failed", ours, theirs, 0.0, FAILED_ERROR_RATIO)
    served = new.requests_per_engine / old.requests_per_engine
    # Difference that chance alone can cause.
    chance = CONFIDENCE_DEVIATIONS * math.sqrt(new.design_effect / new.requests)
    even = max(LEAST_FEWER_RATIO, chance)
    harms = [one for one in (*differences, failed) if one.more > one.certain]
    harm = max(harms, key=attrgetter("more"), default=None)
    gained = max((one.fewer for one in differences), default=0.0) * min(served, 1.0)
    # Limits trade one objective for another. If a pod serves fewer requests, its gain counts less.
    if harm is not None and harm.more > gained:
        return (
            f"{harm.what}: {harm.ours.least:.1%} of {harm.ours.requests:.0f} requests, "
            f"elsewhere {harm.theirs.most:.1%} of {harm.theirs.requests:.0f}"
        )
    missed = [one.what for one in differences if one.missed]
    if missed and served < 1.0 - even:
        # Requests that clients aborted are in no histogram.
        return (
            f"{missed[-1]}, and {new.requests:.0f} requests served, "
            f"elsewhere {old.requests_per_engine:.0f}"
        )
    # Without histograms, nothing but the mean shows how long clients wait.
    return "" if differences else _slower(new, old)


def _slower(new: Sample, old: Sample) -> str:
    """In words: the mean time is longer than on the siblings."""
    if not new.mean_seconds or not old.mean_seconds:
        return ""
    measured = new.mean_seconds / old.mean_seconds
    vary = sum(one.design_effect * MEAN_VARIANCE / one.requests for one in (new, old))
    if measured <= 1.0 + _certain(vary, SLOWER_RATIO - 1.0):
        return ""
    return f"a request takes {measured:.2f} times as long as elsewhere"


def _difference(
    what: str, ours: _Share, theirs: _Share, allowed: float, error: float
) -> _Difference:
    return _Difference(
        what=what,
        ours=ours,
        theirs=theirs,
        more=max(ours.least, allowed) - max(theirs.most, allowed),
        fewer=max(theirs.least, allowed) - max(ours.most, allowed),
        certain=_certain(ours.variance + theirs.variance, error),
        missed=ours.least > allowed + _certain(ours.variance, error),
    )


def _certain(variance: float, least: float) -> float:
    """The least significant difference with this variance."""
    return max(least, CONFIDENCE_DEVIATIONS * math.sqrt(variance))


def _late(objective: Objective, sample: Sample) -> _Share | None:
    """The share of requests beyond the threshold; None if they are too few."""
    delta = sample.deltas.get(objective.metric)
    within = None if delta is None else delta.share_within(objective.threshold_seconds)
    if delta is None or within is None or delta.count < LEAST_REQUESTS:
        return None
    return _share(sample, 1.0 - within[1], 1.0 - within[0], delta.count)


def _share(sample: Sample, least: float, most: float, requests: float) -> _Share:
    variance = max(least * (1.0 - least), most * (1.0 - most))
    return _Share(least, most, requests, sample.design_effect * variance / requests)
