"""The cheapest counts of variants for a demand, exactly.

With N replicas in all, of which L may be lost, a replica has to carry D/(N − L) of the demand D.
That leaves each pool none of its replicas or at least so many. What N such replicas cost least is
found pool by pool, over the replicas and the GPUs that the pools before have: at most pools × their
counts × N × GPUs additions, for each set of counts that a pool may have; without the GPUs if a
replica of each pool has as many. N rises until the cheapest replicas alone would cost as much as
the best counts known, or until each replica carries its part in any pool.
Source: dynamic programming over a knapsack, R. Bellman, 1957.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from servingslo.features.variants.composition import UNEVENNESS_RATIO, Choice, Variant
from servingslo.policy.pools.division import Counts

# Counts of replicas that a pool may have, in order.
Allowed = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Counts by pool, and what they give.

    price_hourly: without cold starts. kept_per_second: the greatest demand that is carried with any
    tolerated failure. carries: whether that is the demand; otherwise these counts carry most of all
    within bounds.
    """

    counts: Counts
    price_hourly: float
    kept_per_second: float
    carries: bool


def least_price_composition(choice: Choice, demand: float) -> Composition:
    """The counts of least cost that carry the demand (requests per second) with failures.

    If none do, those of least cost among those that carry most. Costs are prices of an hour, with
    the cold starts of replicas that are not present.
    """
    counts = cheapest_counts(choice, demand)
    if counts is None:
        counts = _most_carrying(choice)
    return Composition(
        counts=counts,
        price_hourly=choice.price_hourly(counts),
        kept_per_second=choice.kept_per_second(counts),
        carries=choice.keeps(counts, demand),
    )


def cheapest_counts(choice: Choice, demand: float) -> Counts | None:
    """The counts of least cost that hold the demand; None if none within bounds do."""
    minimum = {one.name: one.minimum for one in choice.variants}
    if demand <= 0.0:
        return minimum if choice.within_gpus(minimum) else None
    choice = _within_gpus(choice)
    most_each = max(one.kept_each_per_second(one.maximum) for one in choice.variants)
    if most_each <= 0.0:
        return None
    best: tuple[float, Counts | None] = (math.inf, None)
    cheapest = min(one.price_hourly for one in choice.variants)
    for lost in range(max(one.tolerated_failures for one in choice.variants) + 1):
        least = lost + math.ceil(demand / most_each * (1.0 - UNEVENNESS_RATIO))
        totals = range(max(least, lost + 1), _enough(choice, demand, lost) + 1)

        def allowed(total: int, lost: int = lost) -> tuple[Allowed, ...]:
            each = demand / (total - lost)
            return tuple(_allowed(one, each, lost) for one in choice.variants)

        for counts, alike in groupby(totals, key=allowed):
            same = list(alike)
            if same[0] * cheapest >= best[0]:
                break
            found = _cheapest_of(choice, counts, same[0], same[-1])
            best = min(best, found, key=lambda one: one[0])
    return best[1]


def _within_gpus(choice: Choice) -> Choice:
    """The choice with no maximum beyond the GPUs."""
    if choice.gpus_max is None:
        return choice
    room = choice.gpus_max
    variants = tuple(
        replace(one, maximum=max(min(one.maximum, room // one.gpus_per_replica), one.minimum))
        for one in choice.variants
    )
    return replace(choice, variants=variants)


def _enough(choice: Choice, demand: float, lost: int) -> int:
    """The most replicas that can be worth it: of more, one could go and the rest would carry."""
    first = []
    for one in choice.variants:
        counts = range(max(one.minimum, 1), one.maximum + 1)
        fewest = bisect_left(counts, 1, key=lambda n: int(one.kept_each_per_second(n) > 0.0))
        if fewest < len(counts):
            first.append((one, counts[fewest]))
    slowest = min(one.kept_each_per_second(count) for one, count in first)
    standing = sum(one.minimum for one in choice.variants) + sum(count for _, count in first)
    enough = max(lost + math.ceil(demand / slowest) + 1, standing)
    return min(enough, sum(one.maximum for one in choice.variants))


def _allowed(one: Variant, each: float, lost: int) -> Allowed:
    """Counts of which a replica carries so much, and no more than the lost ones may fail."""
    most = one.maximum if one.tolerated_failures <= lost else min(one.maximum, lost)
    counts = range(max(one.minimum, 1), most + 1)
    least = bisect_left(counts, 1, key=lambda count: int(one.kept_each_per_second(count) >= each))
    return (*((0,) if one.minimum == 0 else ()), *counts[least:])


def _cheapest_of(
    choice: Choice, allowed: Sequence[Allowed], first: int, last: int
) -> tuple[float, Counts | None]:
    """Cost and counts of the cheapest first to last replicas; infinite if there are none."""
    bounded = choice.gpus_max is not None
    room = max(choice.gpus_max or 0, 0)
    if bounded and len({one.gpus_per_replica for one in choice.variants}) == 1:
        # As many GPUs a replica everywhere: they bound the replicas.
        last = min(last, room // choice.variants[0].gpus_per_replica)
        bounded, room = False, 0
        if last < first:
            return math.inf, None
    # Least cost by replicas and GPUs of the pools so far; and what the pool has then.
    cost = np.full((last + 1, room + 1), math.inf)
    cost[0, 0] = 0.0
    chosen = []
    for one, counts in zip(choice.variants, allowed, strict=True):
        found, taken = np.full_like(cost, math.inf), np.zeros(cost.shape, dtype=np.int64)
        for count in counts:
            gpus = one.gpus_per_replica * count if bounded else 0
            if count > last or gpus > room:
                break
            tried = cost[: last + 1 - count, : room + 1 - gpus] + one.cost(count)
            better = tried < found[count:, gpus:]
            found[count:, gpus:][better] = tried[better]
            taken[count:, gpus:][better] = count
        cost = found
        chosen.append(taken)
    at = first * (room + 1) + int(cost[first:].argmin())
    replicas, gpus = divmod(at, room + 1)
    least = float(cost[replicas, gpus])
    if least == math.inf:
        return least, None
    result = {}
    for one, taken in zip(reversed(choice.variants), reversed(chosen), strict=True):
        count = int(taken[replicas, gpus])
        result[one.name] = count
        replicas -= count
        gpus -= one.gpus_per_replica * count if bounded else 0
    return least, {one.name: result[one.name] for one in choice.variants}


def _most_carrying(choice: Choice) -> Counts:
    """The counts that carry most, at the least cost; the minimum if GPUs allow no others."""
    best: Counts = {one.name: one.minimum for one in choice.variants}
    least = choice.kept_per_second(best)
    each = {one.name: one.kept_each_per_second(one.maximum) for one in choice.variants}
    # No more than all replicas that are as fast as the slowest of them.
    most = max(
        choice.kept_per_second(
            {
                one.name: one.maximum if each[one.name] >= slowest else one.minimum
                for one in choice.variants
            }
        )
        for slowest in each.values()
    )
    # Without a bound on GPUs this is found at once.
    asked, same = most, most * UNEVENNESS_RATIO
    while most > least + same:
        found = cheapest_counts(choice, asked)
        if found is None:
            most = asked
        else:
            best, least = found, choice.kept_per_second(found)
        asked = (least + most) / 2.0
    return cheapest_counts(choice, least) or best
