"""The cheapest composition of variants for a demand.

If no counts within bounds carry the demand, those that carry most are found, at the least price.
"""

from collections.abc import Callable
from dataclasses import dataclass

from servingslo.policy.pools.variants import enumeration, integer_program
from servingslo.policy.pools.variants.composition import Choice
from servingslo.policy.pools.variants.split import Counts

# Source: time of both on two cores: enumeration of three pools takes some milliseconds, and the
# number of its boxes rises threefold with each pool.
MOST_ENUMERATED = 3
# Demands that differ by less are the same when the most that can be carried is searched: a tenth of
# the error of a frontier.
SAME_DEMAND_RATIO = 1e-5

Search = Callable[[Choice, float], Counts | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Counts by pool, and what they give.

    price_hourly: without cold starts. kept_per_second: the greatest demand that is carried with any
    tolerated failure. carries: whether that is at least the demand; otherwise these counts carry
    most of all within bounds.
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
    demand = max(demand, 0.0)
    counts = cheapest_counts(choice, demand)
    if counts is None:
        counts = _most_carrying(choice)
    kept = choice.kept_per_second(counts)
    return Composition(
        counts=counts,
        price_hourly=choice.price_hourly(counts),
        kept_per_second=kept,
        carries=kept >= demand,
    )


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
