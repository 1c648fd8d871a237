"""Pods that vanish without us, as spot capacity does: how often, and what to order on top.

A loss is a pod that was ready at one tick and is gone, or being deleted, at the next, beyond what a
lower count explains and while no rollout runs. Losses of a pool are Poisson in the hours that its
pods have served. With a Gamma prior the rate is (prior losses + losses) / (prior hours + hours),
with both forgotten over a day, because a market changes.

A lost pod is replaced, and is missing for a cold start. So the expected number of missing pods is
losses an hour × cold start (J. D. C. Little, Operations Research 1961): ten pods that are each lost
every two hours, with starts of six minutes, miss half a pod on average.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from servingslo.estimation.sample import PodSample
from servingslo.estimation.stored_fields import Number, Numbers, Record
from servingslo.policy.pools.variants.composition import Choice, Variant
from servingslo.policy.pools.variants.split import Counts
from servingslo.units import SECONDS_PER_DAY, SECONDS_PER_HOUR

# Half a loss in fifty hours of a pod, as Jeffreys' prior of a Poisson rate, over the time in which
# half of the cheapest spot pods are reclaimed once; a loss seen is worth as much as those hours.
# Judgement; measured by the spare replicas of fleets without losses, which must be none.
PRIOR_LOSSES = 0.5
PRIOR_POD_HOURS = 50.0
# Evidence is halved in this time: prices and places of spot capacity follow the day.
HALF_LIFE_SECONDS = SECONDS_PER_DAY
# Pods that vanished while we did not look are not counted: their time is unknown.
LONGEST_GAP_SECONDS = 300.0
# Nothing is ordered on top without a loss that is still remembered.
LEAST_LOSSES = 0.5
# With less than this missing on average, one pod is missing a twentieth of the time at most: the
# other pods are sized for percentiles of demand that are exceeded as often.
LEAST_MISSING = 0.05
# A pool that lost this part of its pods within one cold start can vanish as a whole.
WHOLE_RATIO = 0.5
LEAST_LOST_TOGETHER = 2
# This part of what a pool that can vanish needs on top is ordered in another pool.
ELSEWHERE_RATIO = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LossState:
    """What was learnt of a pool's losses; the default was never observed.

    losses, pod_hours: remembered. burst_ratio: the largest part of the pool that was lost within
    one cold start, forgotten as they are. ready: names of pods that were ready at the last tick.
    live: how many there were that were not being deleted. desired: the count then. recent: for
    each loss within a cold start its time, how many were lost, and how many were ready before.
    """

    losses: float = 0.0
    pod_hours: float = 0.0
    burst_ratio: float = 0.0
    time_seconds: float | None = None
    ready: tuple[str, ...] = ()
    live: int = 0
    desired: int | None = None
    recent: tuple[tuple[float, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSample:
    """One tick of a pool: its pods, the count of its target, and whether a rollout runs."""

    time_seconds: float
    pods: Sequence[PodSample]
    desired: int | None
    rollout: bool
    cold_start_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEstimate:
    """Losses of a pool.

    losses_per_pod_hour: of one pod. losses_per_hour: of all that serve. missing: replicas that are
    expected to be missing at any time. vanishes: whether the pool can vanish as a whole. source:
    'measured', or 'prior' while no loss is remembered.
    """

    losses_per_pod_hour: float
    losses_per_hour: float
    missing: float
    vanishes: bool
    source: str

    @property
    def spare(self) -> int:
        """Whole replicas to order on top; 0 while no loss is remembered."""
        if self.source == "prior" or self.missing < LEAST_MISSING:
            return 0
        return math.ceil(self.missing)


def observe_losses(state: LossState, sample: LossSample) -> LossState:
    """The state after one more tick in which the pool was read."""
    now = sample.time_seconds
    live = [pod for pod in sample.pods if not pod.deleting]
    ready = tuple(sorted(pod.name for pod in live if pod.ready))
    after = replace(state, time_seconds=now, ready=ready, live=len(live), desired=sample.desired)
    before = state.time_seconds
    if before is None or not 0.0 <= now - before <= LONGEST_GAP_SECONDS:
        return replace(after, recent=())
    kept = 0.5 ** ((now - before) / HALF_LIFE_SECONDS)
    hours = len(state.ready) * (now - before) / SECONDS_PER_HOUR
    lost = 0 if sample.rollout else _lost(state, sample)
    recent = tuple(one for one in state.recent if now - one[0] < sample.cold_start_seconds)
    if lost:
        recent = (*recent, (now, lost, len(state.ready)))
    together = sum(count for _, count, _ in recent)
    burst = together / max(of for _, _, of in recent) if recent else 0.0
    if together < LEAST_LOST_TOGETHER:
        burst = 0.0
    return replace(
        after,
        losses=kept * state.losses + lost,
        pod_hours=kept * state.pod_hours + hours,
        burst_ratio=max(kept * state.burst_ratio, min(burst, 1.0)),
        recent=recent,
    )


def _lost(state: LossState, sample: LossSample) -> int:
    """Ready pods that vanished, less those that a lower count has removed."""
    there = {pod.name for pod in sample.pods if not pod.deleting}
    gone = sum(name not in there for name in state.ready)
    wanted = [count for count in (state.desired, sample.desired) if count is not None]
    if not wanted:
        return 0
    return max(gone - max(state.live - min(wanted), 0), 0)


def loss_estimate(
    state: LossState, serving: int, cold_start_seconds: float, *, stated: bool = False
) -> LossEstimate:
    """Losses of a pool with so many serving replicas; stated: it is known to be spot capacity."""
    each = (PRIOR_LOSSES + state.losses) / (PRIOR_POD_HOURS + state.pod_hours)
    return LossEstimate(
        losses_per_pod_hour=each,
        losses_per_hour=each * serving,
        missing=each * serving * cold_start_seconds / SECONDS_PER_HOUR,
        vanishes=stated or state.burst_ratio >= WHOLE_RATIO,
        source="measured" if state.losses >= LEAST_LOSSES else "prior",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """Replicas to order on top, by pool, and where a part of them was moved from and to."""

    counts: Counts
    moved: Mapping[str, str] = field(default_factory=dict)


def spare_counts(choice: Choice, counts: Counts, estimates: Mapping[str, LossEstimate]) -> Spare:
    """Where the replicas on top are ordered.

    Those for a pool are ordered in that pool. If it can vanish as a whole, half of what they carry,
    rounded up to replicas, is ordered in the cheapest other pool that cannot vanish, or in the one
    that is lost least often if all can. counts: of the composition.
    """
    spare = {one.name: 0 for one in choice.variants}
    moved: dict[str, str] = {}
    for one in choice.variants:
        estimate = estimates[one.name]
        need = estimate.spare
        if not need or not counts[one.name]:
            continue
        other = _refuge(choice, counts, estimates, one) if estimate.vanishes else None
        if other is None:
            spare[one.name] += need
            continue
        elsewhere = math.ceil(need * ELSEWHERE_RATIO)
        spare[one.name] += need - elsewhere
        spare[other.name] += _replacing(one, other, counts, elsewhere)
        moved[one.name] = other.name
    return Spare(counts=spare, moved=moved)


def with_spare(choice: Choice, spare: Spare) -> Choice:
    """The choice with these replicas on top, also in a pool that would have none otherwise."""
    return replace(
        choice,
        variants=tuple(
            replace(
                one,
                spare=spare.counts[one.name],
                minimum=min(max(one.minimum, spare.counts[one.name]), one.maximum),
            )
            for one in choice.variants
        ),
    )


def _refuge(
    choice: Choice, counts: Counts, estimates: Mapping[str, LossEstimate], pool: Variant
) -> Variant | None:
    """The pool that takes a part of another's spare replicas; None if there is none.

    Where pods share the traffic, a first pod of a slow pool can cost more than it adds: there, only
    a pool that has replicas.
    """
    others = [
        one
        for one in choice.variants
        if one is not pool
        and (counts[one.name] > 0 or choice.split.sums_rates)
        and one.maximum > 0
        and _each(one, counts) > 0.0
    ]

    def rank(one: Variant) -> tuple[bool, float, float, str]:
        estimate = estimates[one.name]
        often = estimate.losses_per_pod_hour if estimate.vanishes else 0.0
        return estimate.vanishes, often, one.price_hourly / _each(one, counts), one.name

    return min(others, key=rank, default=None)


def _each(one: Variant, counts: Counts) -> float:
    """What one replica of the pool carries."""
    count = max(counts[one.name], 1)
    return one.rate_of(count) / count


def _replacing(pool: Variant, other: Variant, counts: Counts, replicas: int) -> int:
    """Replicas of the other pool that carry as much as so many of this one."""
    return math.ceil(replicas * _each(pool, counts) / _each(other, counts) - 1e-9)


# Pods and the last tick are not stored: after a restart, the first tick only looks.
LOSSES = Record(
    LossState,
    Numbers(
        Number("losses", digits=4, least=0.0),
        Number("pod_hours", digits=4, least=0.0),
        Number("burst_ratio", digits=3, least=0.0, most=1.0),
    ),
)
