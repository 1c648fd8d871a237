"""Compare pods with new batch limits with their siblings: which serve better, and by how much."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.models.engine.capacity import mu_effective_per_second
from servingslo.models.engine.service_time import RequestDemand, request_demand
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.context import TickContext
from servingslo.policy.knobs.engine_limits.memory import BatchLimits

# Error of a share of requests beyond a threshold: half of the least that p95 objectives can
# distinguish.
ERROR_RATIO = 0.05
# One-sided 95 %.
CONFIDENCE_DEVIATIONS = 1.645
# Requests of one batch are slow together: a share varies like that of half as many requests.
DESIGN_EFFECT = 2.0
# To be distinguished, a smaller share needs at least as many requests as this one.
LEAST_RATIO = 0.05
# Fewer requests say nothing: of 30 requests without a miss, up to 10 % may miss (rule of three).
LEAST_REQUESTS = 30
# Steps take this many times as long as in the law, relative to the siblings: real engines are
# predicted within 19 % at the 95th percentile (docs/designs/0006-real-engine.md).
MODEL_ERROR_RATIO = 1.25
# By chance of load balancing, a pod sometimes gets this share of requests fewer.
LEAST_FEWER_RATIO = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Measurements of one template's pods over the comparison, by metric; it took `seconds`."""

    limits: BatchLimits
    deltas: Mapping[LatencyMetric, HistogramDelta] = field(default_factory=dict)
    engines: int = 0
    seconds: float = 0.0

    @property
    def requests(self) -> float:
        """Requests, from the metric that counts most: a single token has no time per token."""
        return max((delta.count for delta in self.deltas.values()), default=0.0)

    @property
    def requests_per_engine(self) -> float:
        """Requests of one engine."""
        return self.requests / max(self.engines, 1)

    @property
    def token_seconds(self) -> float | None:
        """Mean time per output token."""
        delta = self.deltas.get(LatencyMetric.TPOT)
        return None if delta is None else delta.mean


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Difference of one objective.

    ours, theirs: share of requests beyond the threshold, and the number of requests. more: by how
    much our share is larger, above the allowed share. certain: the least significant difference.
    missed: whether our share alone misses the objective.
    """

    key: str
    ours: tuple[float, float]
    theirs: tuple[float, float]
    more: float
    certain: float
    missed: bool


def requests_needed(objectives: Sequence[Objective]) -> int:
    """Requests of the canary, or of a sibling on average, needed for a verdict.

    With this many, a share at the allowed limit is known to ERROR_RATIO, one-sided. Source: sample
    size of a binomial share, z²·p(1-p)/e², twice it for two shares.
    """
    shares = [max(1.0 - one.percentile / 100.0, LEAST_RATIO) for one in objectives]
    share = max(shares, default=LEAST_RATIO)
    deviations = CONFIDENCE_DEVIATIONS / ERROR_RATIO
    return math.ceil(DESIGN_EFFECT * 2.0 * deviations**2 * share * (1.0 - share))


def worse_in_words(context: TickContext, new: PodGroup, old: PodGroup) -> str:
    """Why to take the new limits back; '' if they stay. Both groups have enough requests.

    If the measurements are better, the model need not confirm it.
    """
    differences = [
        one
        for objective in context.targets.objectives
        if (one := _difference(objective, new, old)) is not None
    ]
    served = new.requests_per_engine / old.requests_per_engine
    # Difference that chance alone can cause.
    even = max(LEAST_FEWER_RATIO, CONFIDENCE_DEVIATIONS * math.sqrt(DESIGN_EFFECT / new.requests))
    harms = [one for one in differences if one.more > one.certain]
    harm = max(harms, key=attrgetter("more"), default=None)
    gained = max((-one.more for one in differences), default=0.0) * min(served, 1.0)
    # Limits trade one objective for another. If a pod serves fewer requests, its gain counts less.
    if harm is not None and harm.more > gained:
        return (
            f"{harm.key} missed by {harm.ours[0]:.1%} of {harm.ours[1]:.0f} requests, "
            f"elsewhere by {harm.theirs[0]:.1%} of {harm.theirs[1]:.0f}"
        )
    missed = [one.key for one in differences if one.missed]
    if missed and served < 1.0 - even:
        # Requests that clients aborted are in no histogram.
        return (
            f"{missed[-1]} missed, and {new.requests:.0f} requests served, "
            f"elsewhere {old.requests_per_engine:.0f}"
        )
    if served > 1.0 + even or any(-one.more > one.certain for one in differences):
        return ""
    return _refuted(context, new, old)


def _refuted(context: TickContext, new: PodGroup, old: PodGroup) -> str:
    """In words: tokens take longer than on the siblings, and the law does not predict it.

    The limits were found with that law, so the expected savings are wrong too.
    """
    if context.prepared is None:
        return ""
    demand = request_demand(context.prepared.workload, context.prepared.law)
    measured = _ratio(new.token_seconds, old.token_seconds)
    expected = _ratio(_law_token_seconds(demand, new), _law_token_seconds(demand, old))
    if measured is None or expected is None or measured <= MODEL_ERROR_RATIO * max(expected, 1.0):
        return ""
    return f"a token takes {measured:.2f} times as long as elsewhere; the model says {expected:.2f}"


def _ratio(one: float | None, other: float | None) -> float | None:
    """The ratio; None if either value is not known."""
    return one / other if one and other else None


def _law_token_seconds(demand: RequestDemand, group: PodGroup) -> float | None:
    """Mean time per token from the law, with as many running sequences as the group had.

    The group's request rate is not used: near saturation batches differ by chance, and so does the
    time. Source: Little's law for the sequences; (T_fixed + n·t_req)/O, see
    `mu_effective_per_second`.
    """
    if not group.token_seconds or group.seconds <= 0:
        return None
    tokens_per_second = group.requests_per_engine * demand.output_mean_tokens / group.seconds
    running = min(tokens_per_second * group.token_seconds, group.limits.max_num_seqs)
    served_per_second = mu_effective_per_second(demand, running)
    return running / (served_per_second * demand.output_mean_tokens)


def _difference(objective: Objective, new: PodGroup, old: PodGroup) -> _Difference | None:
    """The difference; None if either group has too few requests."""
    ours, theirs = (_missed(objective, group) for group in (new, old))
    if ours is None or theirs is None:
        return None
    allowed = 1.0 - objective.percentile / 100.0
    alone = _certain(_variance(*ours))
    return _Difference(
        key=objective.key,
        ours=ours,
        theirs=theirs,
        more=max(ours[0], allowed) - max(theirs[0], allowed),
        certain=_certain(_variance(*ours) + _variance(*theirs)),
        missed=ours[0] > allowed + alone,
    )


def _certain(variance: float) -> float:
    """The least significant difference of shares with this variance."""
    return max(ERROR_RATIO, CONFIDENCE_DEVIATIONS * math.sqrt(DESIGN_EFFECT * variance))


def _missed(objective: Objective, group: PodGroup) -> tuple[float, float] | None:
    """Share of requests beyond the threshold, and their number; None if they are too few."""
    delta = group.deltas.get(objective.metric)
    within = None if delta is None else delta.share_within(objective.threshold_seconds)
    if delta is None or within is None or delta.count < LEAST_REQUESTS:
        return None
    # Half of the bucket that holds the threshold is counted, for both groups.
    return 1.0 - (within[0] + within[1]) / 2.0, delta.count


def _variance(share: float, requests: float) -> float:
    return share * (1.0 - share) / requests
