"""How variants share the traffic, and the demand that they carry together.

What a fleet of unequal pools carries depends on who splits the traffic. With R_k(c) the rate that c
replicas of pool k carry within their objectives:

- by load (an endpoint picker by free capacity): all are filled alike, Σ R_k(c_k);
- evenly by pod (round robin): a pod of the slow pool gets as many requests as one of the fast pool,
  so the fleet carries (Σ c_k) · min R_k(c_k)/c_k;
- by fixed weights of pools: the pool that fills first ends it, min R_k(c_k)/w_k.

Two of 10/s and two of 2/s carry 24/s by load, but 8/s evenly by pod: one slow pod can cost more
than it adds. A gateway that equalizes requests in flight sends a fast pod more, but not in
proportion to what it carries: its requests leave sooner, yet it could hold many more. So a split by
load may have measured weights of pods v_k: the share of pool k is c_k·v_k/Σ c_j·v_j, and the pool
that fills first ends it.
"""

from bisect import bisect, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

# Rates of a replica that differ by less are the same: half of the error of a frontier.
SAME_RATE_RATIO = 1e-4

# Requests per second that this many replicas of a pool carry; 0 for none. Rises with the count.
RateOf = Callable[[int], float]
Counts = Mapping[str, int]
Rates = Mapping[str, RateOf]


class SplitRule(StrEnum):
    """Who shares the traffic among pools."""

    BY_LOAD = "ByLoad"
    EVEN_BY_POD = "EvenByPod"
    FIXED_WEIGHTS = "FixedWeights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A rule, and the weights that it needs.

    weights: for fixed weights, the share of each pool, up to a common factor; a pool without one
    gets nothing. By load: requests that a pod of each pool gets, up to a common factor; empty if
    each pool is filled as far as the others. source: 'learned' or 'assumed'.
    """

    rule: SplitRule = SplitRule.EVEN_BY_POD
    source: str = "assumed"
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def sums_rates(self) -> bool:
        """Whether the pools' rates add up."""
        return self.rule is SplitRule.BY_LOAD and not self.weights

    def pod_weight(self, pool: str) -> float:
        """Requests that a pod of the pool gets, up to a common factor, if pods share the traffic.

        A pool without a measured weight gets as much as the pods of the largest one.
        """
        if self.rule is SplitRule.EVEN_BY_POD:
            return 1.0
        return self.weights.get(pool, max(self.weights.values(), default=1.0))


def shares(split: Split, counts: Counts, rate_of: Rates) -> dict[str, float]:
    """Share of the demand that each pool gets; all 0 without replicas.

    Fixed weights do not depend on counts: a pool without replicas keeps its share, which is lost.
    """
    if split.rule is SplitRule.FIXED_WEIGHTS:
        parts = {pool: split.weights.get(pool, 0.0) for pool in counts}
    elif split.sums_rates:
        parts = rates(counts, rate_of)
        if not any(parts.values()):
            parts = {pool: float(count) for pool, count in counts.items()}
    else:
        parts = {pool: count * split.pod_weight(pool) for pool, count in counts.items()}
    whole = sum(parts.values())
    return {pool: part / whole if whole > 0.0 else 0.0 for pool, part in parts.items()}


def carried_rate_per_second(split: Split, counts: Counts, rate_of: Rates) -> float:
    """The greatest demand at which every pool keeps its objectives, requests per second."""
    found = rates(counts, rate_of)
    if split.sums_rates:
        return sum(found.values())
    return filled_first_rate_per_second(shares(split, counts, rate_of), found)


def filled_first_rate_per_second(
    shares_ratio: Mapping[str, float], rates_per_second: Mapping[str, float]
) -> float:
    """The demand at which the first pool is full, for any shares; 0 without shares."""
    filled = [rates_per_second[pool] / share for pool, share in shares_ratio.items() if share > 0.0]
    return min(filled, default=0.0)


def rates(counts: Counts, rate_of: Rates) -> dict[str, float]:
    """What the replicas of each pool carry, requests per second."""
    return {pool: rate_of[pool](count) if count > 0 else 0.0 for pool, count in counts.items()}


class Remembered:
    """Rates of a pool, each computed once, and only where they are not known from others.

    A replica carries no less in a larger pool. So if it carries the same in a smaller and in a
    larger pool, it does in those between.
    """

    def __init__(self, rate_of: RateOf) -> None:
        self._rate_of = rate_of
        self._known: dict[int, float] = {0: 0.0}
        # Counts whose rate was computed, in order.
        self._computed: list[int] = []

    def __call__(self, count: int) -> float:
        """What so many replicas carry, requests per second."""
        if count not in self._known:
            between = self._between(count)
            if between is None:
                between = self._rate_of(count)
                insort(self._computed, count)
            self._known[count] = between
        return self._known[count]

    def _between(self, count: int) -> float | None:
        """The rate if a replica carries the same in the next smaller and larger pool known."""
        place = bisect(self._computed, count)
        if not 0 < place < len(self._computed):
            return None
        fewer, more = self._computed[place - 1], self._computed[place]
        each, most = self._known[fewer] / fewer, self._known[more] / more
        return each * count if each <= most <= each * (1.0 + SAME_RATE_RATIO) else None


def remembered(rate_of: RateOf) -> Remembered:
    """The same rates, each computed once."""
    return rate_of if isinstance(rate_of, Remembered) else Remembered(rate_of)
