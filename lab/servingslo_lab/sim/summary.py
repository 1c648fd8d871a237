"""Compare policies on one scenario: means over seeds, and the policies that none beats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.policies import FORESIGHT, OPTIMUM, ORACLE, SINGLE, STATIC
from servingslo_lab.sim.scoring import Interval, Score, interval

# A share or cost that is better by no more than this counts as equal.
_SAME_SHARE, _SAME_COST = 5e-5, 1e-3
_HINDSIGHT = frozenset({ORACLE, STATIC, SINGLE, OPTIMUM, FORESIGHT})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSummary:
    """One of several pools under a policy; mean, with an interval for several seeds."""

    name: str
    replica_hours: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySummary:
    """One policy over all seeds; means, with intervals for several seeds.

    seeds: those with a score. relative_cost: divided by the oracle's replica-hours.
    worst_minute_ratio: the least of all seeds. recovery_seconds: the longest of all seeds.
    beaten_by: policies with at least its share and at most its cost, one of them better; policies
    that know the trace in advance do not count. on_frontier: no policy beats it. pools: if there
    are several. may_be_beaten_by: policies that would beat it at the favourable ends of their
    intervals and the unfavourable ends of its own.
    """

    scenario: str
    policy: str
    seeds: tuple[int, ...]
    share_ratio: Interval
    replica_hours: Interval
    relative_cost: Interval | None
    dollars: Interval
    dollars_per_million_tokens: Interval | None
    actions_per_hour: Interval
    worst_minute_ratio: float
    recovery_seconds: float
    rejected_ratio: float
    lost_ratio: float
    ttft_p99_seconds: float | None
    tpot_p99_seconds: float | None
    beaten_by: tuple[str, ...] = ()
    may_be_beaten_by: tuple[str, ...] = ()
    pools: tuple[PoolSummary, ...] = ()

    @property
    def in_hindsight(self) -> bool:
        """Whether it was derived from the trace itself."""
        return self.policy in _HINDSIGHT

    @property
    def on_frontier(self) -> bool:
        """Whether no policy is better in one and no worse in the other."""
        return not self.beaten_by

    @property
    def surely_on_frontier(self) -> bool:
        """Whether it is on the frontier for all shares and costs within their intervals.

        If the interval of a share includes zero, the result is not certain.
        """
        known = self.share_ratio.half_width is None or self.share_ratio.low > 0.0
        return known and self.on_frontier and not self.may_be_beaten_by


def summaries(outcomes: Sequence[Outcome], *, dollars_per_hour: float) -> list[PolicySummary]:
    """Each policy of one scenario, in the order of the outcomes; only those with a score."""
    policies = list(dict.fromkeys(outcome.policy for outcome in outcomes))
    found = [
        _summary([o for o in outcomes if o.policy == policy], dollars_per_hour)
        for policy in policies
    ]
    known = [one for one in found if one is not None]
    return [_with_beaters(one, known) for one in known]


def _summary(outcomes: Sequence[Outcome], dollars_per_hour: float) -> PolicySummary | None:
    scored = [(o.seed, o.score) for o in outcomes if o.score is not None]
    if not scored:
        return None
    scores = [score for _, score in scored]

    def of(read: Callable[[Score], float | None]) -> Interval | None:
        values = [value for value in map(read, scores) if value is not None]
        return interval(values) if len(values) == len(scores) else None

    def worst(read: Callable[[Score], float | None]) -> float | None:
        values = [value for value in map(read, scores) if value is not None]
        return max(values) if len(values) == len(scores) else None

    return PolicySummary(
        scenario=outcomes[0].scenario,
        policy=outcomes[0].policy,
        seeds=tuple(seed for seed, _ in scored),
        share_ratio=interval([s.share_ratio for s in scores]),
        replica_hours=interval([s.replica_hours for s in scores]),
        relative_cost=of(lambda s: s.relative_cost),
        dollars=interval([_dollars(s, dollars_per_hour) for s in scores]),
        dollars_per_million_tokens=of(lambda s: s.dollars_per_million_tokens),
        actions_per_hour=interval([s.actions_per_hour for s in scores]),
        worst_minute_ratio=min(s.worst_minute_ratio for s in scores),
        recovery_seconds=max(s.recovery_seconds for s in scores),
        rejected_ratio=sum(s.rejected_ratio for s in scores) / len(scores),
        lost_ratio=sum(s.lost_ratio for s in scores) / len(scores),
        ttft_p99_seconds=worst(lambda s: s.ttft_p99_seconds),
        tpot_p99_seconds=worst(lambda s: s.tpot_p99_seconds),
        pools=_pools(scores),
    )


def _dollars(score: Score, dollars_per_hour: float) -> float:
    if score.pools:
        return sum(pool.dollars for pool in score.pools)
    return score.replica_hours * dollars_per_hour


def _pools(scores: Sequence[Score]) -> tuple[PoolSummary, ...]:
    return tuple(
        PoolSummary(
            name=pools[0].name, replica_hours=interval([pool.replica_hours for pool in pools])
        )
        for pools in zip(*(score.pools for score in scores), strict=True)
    )


def beats(share_ratio: float, hours: float, other_share_ratio: float, other_hours: float) -> bool:
    """Whether the first has at least the share, at most the cost, and one of them better."""
    no_worse = share_ratio >= other_share_ratio and hours <= other_hours
    better = share_ratio > other_share_ratio + _SAME_SHARE or hours < other_hours * (
        1.0 - _SAME_COST
    )
    return no_worse and better


def _with_beaters(one: PolicySummary, known: Sequence[PolicySummary]) -> PolicySummary:
    share, hours = one.share_ratio, one.replica_hours
    others = [other for other in known if other is not one and not other.in_hindsight]
    return replace(
        one,
        beaten_by=tuple(
            other.policy
            for other in others
            if beats(other.share_ratio.mean, other.replica_hours.mean, share.mean, hours.mean)
        ),
        may_be_beaten_by=tuple(
            other.policy
            for other in others
            if beats(other.share_ratio.high, other.replica_hours.low, share.low, hours.high)
        ),
    )
