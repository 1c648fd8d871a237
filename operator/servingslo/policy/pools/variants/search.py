"""The cheapest composition of variants for a demand, and what makes it cost as much.

If no counts within bounds carry the demand, those that carry most are found, at the least price.
"""

from collections.abc import Callable
from dataclasses import replace

from servingslo.policy.pools.variants import enumeration, integer_program
from servingslo.policy.pools.variants.composition import (
    Binding,
    Choice,
    Composition,
    composition_of,
)
from servingslo.policy.pools.variants.split import Counts

# Source: time of both on two cores: enumeration of three pools takes some milliseconds, and the
# number of its boxes rises threefold with each pool.
MOST_ENUMERATED = 3
# Demands that differ by less are the same when the most that can be carried is searched: a tenth of
# the error of a frontier.
SAME_DEMAND_RATIO = 1e-5

Search = Callable[[Choice, float], Counts | None]


def least_price_composition(choice: Choice, demand: float) -> Composition:
    """The counts of least cost that carry the demand (requests per second) with failures.

    If none do, those of least cost among those that carry most. Costs are prices of an hour, with
    the cold starts of replicas that are not present.
    """
    demand = max(demand, 0.0)
    counts = cheapest_counts(choice, demand)
    if counts is None:
        counts = _most_carrying(choice)
        return composition_of(choice, counts, demand, _what_prevents(choice, demand))
    return composition_of(choice, counts, demand, _what_binds(choice, counts, demand))


def cheapest_counts(choice: Choice, demand: float) -> Counts | None:
    """The counts of least cost that hold the demand; None if none within bounds do."""
    if len(choice.variants) <= MOST_ENUMERATED:
        return enumeration.cheapest_counts(choice, demand)
    return integer_program.cheapest_counts(choice, demand)


def _most_carrying(choice: Choice) -> Counts:
    """The counts that carry most, at the least cost; the minimum if GPUs allow no others."""
    low: Counts = {one.name: one.minimum for one in choice.variants}
    best, least = low, choice.kept_per_second(low)
    most = max(
        choice.kept_per_second({pool: high for pool, (_, high) in box.items()})
        for box in enumeration.boxes(choice)
    )
    # Without a bound on GPUs this is found at once.
    asked, same = most, most * SAME_DEMAND_RATIO
    while most > least + same:
        found = cheapest_counts(choice, asked)
        if found is None:
            most = asked
        else:
            best, least = found, choice.kept_per_second(found)
        asked = (least + most) / 2.0
    return cheapest_counts(choice, least) or best


def _what_prevents(choice: Choice, demand: float) -> Binding:
    """The bound that keeps every composition from carrying the demand."""
    if choice.gpus_max is not None:
        free = replace(choice, gpus_max=None)
        if cheapest_counts(free, demand) is not None:
            return Binding.GPUS
    return Binding.MAXIMUM


def _what_binds(choice: Choice, counts: Counts, demand: float) -> Binding:
    """What the cost of the cheapest composition comes from."""
    if all(counts[one.name] == one.minimum for one in choice.variants):
        return Binding.MINIMUM
    cost = choice.cost(counts)
    if choice.gpus_max is not None:
        spare = choice.gpus_max - choice.gpus(counts)
        if spare < max(one.gpus_per_replica for one in choice.variants) and _cheaper(
            replace(choice, gpus_max=None), demand, cost
        ):
            return Binding.GPUS
    full = {one.name: 2 * one.maximum for one in choice.variants if counts[one.name] == one.maximum}
    if full and _cheaper(choice.bounded(most=full), demand, cost):
        return Binding.MAXIMUM
    reserve = any(one.tolerated_failures for one in choice.variants)
    if reserve and _cheaper(choice.without_reserve(), demand, cost):
        return Binding.RESERVE
    return Binding.DEMAND


def _cheaper(choice: Choice, demand: float, cost: float) -> bool:
    found = cheapest_counts(choice, demand)
    return found is not None and choice.cost(found) < cost * (1.0 - enumeration.SAME_COST_RATIO)
