"""The cheapest counts by enumeration, with bounds that leave few counts to try.

Counts are searched in boxes in which more replicas never carry less. If rates add up, or weights of
pools are fixed, all counts are one box. If pods share the traffic, the first pod of a slow pool can
lower what the whole carries; but among counts that are all 1 or more, another pod only adds. So
there is a box for each set of pools that have replicas, also after the tolerated failures.

In a box, the pools that cost most for what they are worth are enumerated first, upwards, and the
last pool is found by bisection. The price of the rest, in fractions of replicas at the best rate of
a replica, is a lower bound. It only rises with the count of a pool that costs more than the rest,
so the first count whose bound is no better than the best known ends that pool.
Source: branch and bound, A. H. Land and A. G. Doig, Econometrica 1960.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from servingslo.policy.pools.variants.composition import Choice, Variant
from servingslo.policy.pools.variants.split import Counts, SplitRule

# A replica in a larger pool carries at least as much, up to this part: a frontier is known to
# 0.02 % of a rate, and pooling only helps.
UNEVENNESS_RATIO = 1e-3
# Costs within this part are equal.
SAME_COST_RATIO = 1e-12

Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Worth:
    """A pool in a box: its bounds, and what one replica of it is worth at most.

    lost: what is lost at least with the tolerated failures, if it has any replica.
    """

    variant: Variant
    low: int
    high: int
    worth: float
    lost: float

    @property
    def price(self) -> float:
        """Least price of a unit of worth."""
        return self.variant.price_hourly / self.worth if self.worth > 0.0 else math.inf

    @property
    def gpus(self) -> float:
        """GPUs of a unit of worth."""
        return self.variant.gpus_per_replica / self.worth if self.worth > 0.0 else math.inf


@dataclass(frozen=True, slots=True)
class Found:
    """Counts that hold, and their cost."""

    counts: Counts
    cost: float


def cheapest_counts(choice: Choice, demand: float) -> Counts | None:
    """The counts of least cost that hold the demand (requests per second); None if none do."""
    best: Found | None = None
    for box in boxes(choice):
        search = _BoxSearch(choice, demand, box, best)
        best = search.run()
    return None if best is None else best.counts


def boxes(choice: Choice) -> Iterator[dict[str, Bounds]]:
    """Bounds of counts by pool, between which more replicas never carry less."""
    parts = [list(_parts(one, choice)) for one in choice.variants]
    for bounds in product(*parts):
        yield {one.name: each for one, each in zip(choice.variants, bounds, strict=True)}


def _parts(variant: Variant, choice: Choice) -> Iterator[Bounds]:
    low, high = variant.minimum, variant.maximum
    lost = variant.tolerated_failures
    if choice.split.sums_rates or choice.split.rule is SplitRule.FIXED_WEIGHTS:
        edges = [(low, high)]
    else:
        edges = [
            (low, min(high, 0)),
            (max(low, 1), min(high, lost)),
            (max(low, lost + 1), high),
        ]
    return ((least, most) for least, most in edges if least <= most)


class _BoxSearch:
    """The search in one box."""

    def __init__(
        self, choice: Choice, demand: float, box: dict[str, Bounds], best: Found | None
    ) -> None:
        self._choice = choice
        self._demand = demand
        self._box = box
        self._best = best

    def run(self) -> Found | None:
        """The best of this box, or the best before if that is no dearer."""
        low = {pool: least for pool, (least, _) in self._box.items()}
        high = {pool: most for pool, (_, most) in self._box.items()}
        if not self._choice.within_gpus(low) or not self._holds(high):
            return self._best
        if self._holds(low):
            self._offer(low)
        elif self._choice.split.rule is SplitRule.FIXED_WEIGHTS:
            self._offer({pool: self._alone(high, pool) for pool in high})
        else:
            self._enumerate(low, high)
        return self._best

    def _holds(self, counts: Counts) -> bool:
        return self._choice.kept_per_second(counts) >= self._demand

    def _offer(self, counts: Counts) -> None:
        if not self._choice.within_gpus(counts):
            return
        cost = self._choice.cost(counts)
        if self._best is None or cost < self._best.cost * (1.0 - SAME_COST_RATIO):
            self._best = Found(counts=dict(counts), cost=cost)

    def _alone(self, others: Counts, pool: str, guess: int | None = None) -> int:
        """The least count of a pool that holds with these counts of the others."""
        low, high = self._box[pool]
        return least_true(
            lambda count: self._holds({**others, pool: count}), low, high, guess or low
        )

    def _enumerate(self, low: Counts, high: Counts) -> None:
        pools = []
        for one in self._choice.variants:
            most = high[one.name]
            # With all others at their least, more of this pool than it needs are of no use.
            if most > low[one.name] and self._holds({**low, one.name: most}):
                most = self._alone(low, one.name)
                self._offer({**low, one.name: most})
            pools.append(self._worth(one, low[one.name], most))
        need = self._need(pools)
        if len(pools) == 1:
            return
        pools.sort(key=lambda pool: (-pool.price, pool.variant.name))
        gpus = math.inf if self._choice.gpus_max is None else float(self._choice.gpus_max)
        self._descend(pools, {}, need, 0.0, gpus)

    def _worth(self, one: Variant, low: int, high: int) -> _Worth:
        worth, lost = self._choice.split.pod_weight(one.name), 0.0
        if self._choice.split.sums_rates:
            worth = self._best_rate(one, high)
            if one.tolerated_failures and one.maximum > 0:
                lost = one.rate_of(1) * (1.0 - UNEVENNESS_RATIO)
        return _Worth(one, low, high, worth, lost)

    @staticmethod
    def _best_rate(one: Variant, high: int) -> float:
        """What a replica carries at most."""
        return one.rate_of(high) / high * (1.0 + UNEVENNESS_RATIO) if high > 0 else 0.0

    def _need(self, pools: Sequence[_Worth]) -> float:
        """The worth that any counts of the box need to hold."""
        if self._choice.split.sums_rates:
            return self._demand
        needs = [0.0]
        for pool in pools:
            if pool.low > 0 and pool.worth > 0.0:
                rate = self._best_rate(pool.variant, pool.high)
                needs.append(self._demand * pool.worth / rate if rate > 0.0 else math.inf)
        return max(needs)

    def _descend(
        self, pools: Sequence[_Worth], counts: Counts, need: float, cost: float, gpus: float
    ) -> None:
        """Try all counts of the pools whose bound is below the best."""
        pool, rest = pools[0], pools[1:]
        name = pool.variant.name
        for count in range(pool.low, pool.high + 1):
            left = need - pool.worth * count
            room = gpus - pool.variant.gpus_per_replica * count
            if room < _filled(rest, 0.0, lambda one: one.gpus, _gpus_of):
                break
            so_far = cost + pool.variant.cost(count)
            price = so_far + _filled(rest, left, lambda one: one.price, _price_of)
            if price == math.inf or room < _filled(rest, left, lambda one: one.gpus, _gpus_of):
                continue
            if self._best is not None and price >= self._best.cost * (1.0 - SAME_COST_RATIO):
                break
            # Failures must be carried too. Without replicas of the rest, there are none to lose.
            lost = min((one.lost for one in rest), default=0.0) if left > 0.0 else 0.0
            price = so_far + _filled(rest, left + lost, lambda one: one.price, _price_of)
            if self._best is not None and price >= self._best.cost * (1.0 - SAME_COST_RATIO):
                continue
            tried = {**counts, name: count}
            if len(rest) > 1:
                self._descend(rest, tried, left, so_far, room)
            else:
                self._finish(rest[0], tried, left)

    def _finish(self, pool: _Worth, counts: Counts, need: float) -> None:
        """Give the last pool the least count that holds."""
        name = pool.variant.name
        if not self._holds({**counts, name: pool.high}):
            return
        guess = math.ceil(need / pool.worth) if pool.worth > 0.0 else pool.low
        least = least_true(
            lambda count: self._holds({**counts, name: count}), pool.low, pool.high, guess
        )
        self._offer({**counts, name: least})


def _price_of(variant: Variant) -> float:
    return variant.price_hourly


def _gpus_of(variant: Variant) -> float:
    return float(variant.gpus_per_replica)


def _filled(
    pools: Sequence[_Worth],
    need: float,
    unit: Callable[[_Worth], float],
    each: Callable[[Variant], float],
) -> float:
    """The least that pools ask for a worth, in fractions of replicas; inf if they have too little.

    unit: of a unit of worth. each: of a replica.
    """
    total = 0.0
    for pool in pools:
        total += each(pool.variant) * pool.low
        need -= pool.worth * pool.low
    for pool in sorted(pools, key=unit):
        if need <= 0.0:
            break
        most = pool.worth * (pool.high - pool.low)
        if most > 0.0:
            total += unit(pool) * min(need, most)
            need -= most
    return total if need <= 0.0 else math.inf


def least_true(check: Callable[[int], bool], low: int, high: int, guess: int) -> int:
    """The least number from low to high for which a monotone check is true; true for high.

    The number is expected near the guess: the search doubles its steps from there, then halves.
    """
    at, step = min(max(guess, low), high), 1
    most_false, known = low - 1, high
    if at < high and not check(at):
        most_false = at
        while most_false + step < known:
            if check(most_false + step):
                known = most_false + step
                break
            most_false += step
            step *= 2
    else:
        known = at
        while known - step > most_false:
            if not check(known - step):
                most_false = known - step
                break
            known -= step
            step *= 2
    while known - most_false > 1:
        middle = (known + most_false) // 2
        if check(middle):
            known = middle
        else:
            most_false = middle
    return known
