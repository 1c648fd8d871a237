"""Pods with new batch limits beside their siblings: which serve better, and by how much."""

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

# Of the shares of requests beyond a threshold: half of the least that p95 objectives tell apart.
ERROR_RATIO = 0.05
# One-sided 95 %.
CONFIDENCE_DEVIATIONS = 1.645
# Requests of one batch are slow together: a share varies as that of half as many would.
DESIGN_EFFECT = 2.0
# A share below this is not told apart with fewer requests than this one is.
LEAST_RATIO = 0.05
# Fewer tell nothing: of 30 requests without a miss up to 10 % may be missed (rule of three).
LEAST_REQUESTS = 30
# Steps this much longer than the law says, against the siblings': real engines are predicted
# within 19 % at the 95th percentile (docs/designs/0006-real-engine.md).
MODEL_ERROR_RATIO = 1.25
# Balancing by chance gives a pod this many fewer at times.
LEAST_FEWER_RATIO = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """What the pods of one template measured over the comparison, by metric; it took `seconds`."""

    limits: BatchLimits
    deltas: Mapping[LatencyMetric, HistogramDelta] = field(default_factory=dict)
    engines: int = 0
    seconds: float = 0.0

    @property
    def requests(self) -> float:
        """Of the metric that counts most of them: one has no time per token with a single one."""
        return max((delta.count for delta in self.deltas.values()), default=0.0)

    @property
    def requests_per_engine(self) -> float:
        """Of one of them."""
        return self.requests / max(self.engines, 1)

    @property
    def token_seconds(self) -> float | None:
        """Mean time per output token."""
        delta = self.deltas.get(LatencyMetric.TPOT)
        return None if delta is None else delta.mean


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Of one objective. ours, theirs: share of requests beyond the threshold, and of how many.

    more: by how much more the share is, above what is allowed. certain: from how much on it tells.
    missed: whether ours alone misses the objective.
    """

    key: str
    ours: tuple[float, float]
    theirs: tuple[float, float]
    more: float
    certain: float
    missed: bool


def requests_needed(objectives: Sequence[Objective]) -> int:
    """Requests of the canary, or of a sibling on average, after which it is judged.

    Such that a share which is allowed to miss its threshold is known to ERROR_RATIO, one-sided.
    Source: sample size of a binomial share, z²·p(1-p)/e², twice it for two shares.
    """
    shares = [max(1.0 - one.percentile / 100.0, LEAST_RATIO) for one in objectives]
    share = max(shares, default=LEAST_RATIO)
    deviations = CONFIDENCE_DEVIATIONS / ERROR_RATIO
    return math.ceil(DESIGN_EFFECT * 2.0 * deviations**2 * share * (1.0 - share))


def worse_in_words(context: TickContext, new: PodGroup, old: PodGroup) -> str:
    """Why the new limits are to be taken back; '' where they are not. Both groups tell enough.

    What is seen to be better needs no model that says so.
    """
    differences = [
        one
        for objective in context.targets.objectives
        if (one := _difference(objective, new, old)) is not None
    ]
    served = new.requests_per_engine / old.requests_per_engine
    # How far chance alone moves it.
    even = max(LEAST_FEWER_RATIO, CONFIDENCE_DEVIATIONS * math.sqrt(DESIGN_EFFECT / new.requests))
    harms = [one for one in differences if one.more > one.certain]
    harm = max(harms, key=attrgetter("more"), default=None)
    gained = max((-one.more for one in differences), default=0.0) * min(served, 1.0)
    # Limits trade one objective for another; a pod that serves fewer gives that many fewer.
    if harm is not None and harm.more > gained:
        return (
            f"{harm.key} missed by {harm.ours[0]:.1%} of {harm.ours[1]:.0f} requests, "
            f"elsewhere by {harm.theirs[0]:.1%} of {harm.theirs[1]:.0f}"
        )
    missed = [one.key for one in differences if one.missed]
    if missed and served < 1.0 - even:
        # Requests that clients give up are in no histogram.
        return (
            f"{missed[-1]} missed, and {new.requests:.0f} requests served, "
            f"elsewhere {old.requests_per_engine:.0f}"
        )
    if served > 1.0 + even or any(-one.more > one.certain for one in differences):
        return ""
    return _refuted(context, new, old)


def _refuted(context: TickContext, new: PodGroup, old: PodGroup) -> str:
    """Where tokens take longer than with the siblings, and the law does not say so; in words.

    The limits were found with that law: what they were to save is not there either.
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
    """None where either is not known."""
    return one / other if one and other else None


def _law_token_seconds(demand: RequestDemand, group: PodGroup) -> float | None:
    """Mean time per token by the law, with as many sequences at once as the group had.

    Not at its rate of requests: near saturation batches differ by chance, and the time with them.
    Source: Little's law for the sequences; (T_fixed + n·t_req)/O, see `mu_effective_per_second`.
    """
    if not group.token_seconds or group.seconds <= 0:
        return None
    tokens_per_second = group.requests_per_engine * demand.output_mean_tokens / group.seconds
    running = min(tokens_per_second * group.token_seconds, group.limits.max_num_seqs)
    served_per_second = mu_effective_per_second(demand, running)
    return running / (served_per_second * demand.output_mean_tokens)


def _difference(objective: Objective, new: PodGroup, old: PodGroup) -> _Difference | None:
    """None where either group tells too little."""
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
    """From how much on a difference of shares with this variance tells."""
    return max(ERROR_RATIO, CONFIDENCE_DEVIATIONS * math.sqrt(DESIGN_EFFECT * variance))


def _missed(objective: Objective, group: PodGroup) -> tuple[float, float] | None:
    """Share of requests beyond the threshold, and of how many; None where too few tell."""
    delta = group.deltas.get(objective.metric)
    within = None if delta is None else delta.share_within(objective.threshold_seconds)
    if delta is None or within is None or delta.count < LEAST_REQUESTS:
        return None
    # The bucket that holds the threshold is counted by half, with both groups.
    return 1.0 - (within[0] + within[1]) / 2.0, delta.count


def _variance(share: float, requests: float) -> float:
    return share * (1.0 - share) / requests
