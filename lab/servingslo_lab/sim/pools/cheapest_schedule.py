"""The cheapest replica counts of variants in hindsight: an exact optimum over intervals.

The demand of each interval is known, and replicas are there at once. In each interval one
composition serves; requests beyond what it carries miss their objectives, and no others do. At
most a share of all requests may miss. No schedule that changes at these intervals is cheaper: cold
starts, backlogs and the spread within an interval only add to its price.

Of all counts, only those matter that no cheaper ones carry as much. With one of them for each
interval, this is a knapsack with a choice of one item in each group, solved as an integer program.
Source: P. Sinha and A. A. Zoltners, "The multiple-choice knapsack problem", Operations Research
1979.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import FloatArray
from servingslo.policy.pools.variants.composition import Choice
from servingslo.units import SECONDS_PER_HOUR

MOST_COMPOSITIONS = 1_000_000
# Relative gap between a schedule and its proven bound at which the solver ends.
GAP_RATIO = 1e-4

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Compositions that no cheaper one carries as much as, cheapest first.

    prices_hourly, rates_per_second: of each, both rising.
    """

    counts: tuple[Counts, ...]
    prices_hourly: FloatArray
    rates_per_second: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapestSchedule:
    """The schedule and its price.

    counts: of each interval. price: of all intervals. bound: no schedule is cheaper than this.
    missed_ratio: share of the requests beyond what is carried.
    """

    counts: tuple[Counts, ...]
    price: float
    bound: float
    missed_ratio: float


def cheapest_schedule(
    choice: Choice,
    demand_per_second: Sequence[float],
    *,
    interval_seconds: float,
    share: float = 1.0,
) -> CheapestSchedule | None:
    """The cheapest counts for each interval; None if even the most replicas carry too little.

    share: least part of all requests that must be carried. Tolerated failures and spare replicas
    are not counted: hindsight knows that nothing fails. Raises: InvalidInputError for more than
    MOST_COMPOSITIONS counts.
    """
    front = composition_frontier(choice)
    demand = np.asarray(demand_per_second, dtype=np.float64)
    options = [_options(front, one) for one in demand]
    group = np.repeat(np.arange(len(demand)), options)
    chosen = np.concatenate([np.arange(count) for count in options])
    missed = np.maximum(demand[group] - front.rates_per_second[chosen], 0.0) * interval_seconds
    allowed = (1.0 - share) * float(demand.sum()) * interval_seconds
    price = front.prices_hourly[chosen] * interval_seconds / SECONDS_PER_HOUR
    columns = np.arange(len(group))
    one_each = sparse.csr_matrix((np.ones(len(group)), (group, columns)))
    result = milp(
        price,
        integrality=np.ones(len(group), dtype=np.int64),
        bounds=Bounds(0.0, 1.0),
        constraints=[
            LinearConstraint(one_each, 1.0, 1.0),
            # A request is not split: less than a thousandth of one is a rounding error.
            LinearConstraint(sparse.csr_matrix(missed), -np.inf, allowed + 1e-3),
        ],
        options={"mip_rel_gap": GAP_RATIO},
    )
    if result.x is None:
        return None
    taken = np.flatnonzero(result.x > 0.5)
    requests = float(demand.sum()) * interval_seconds
    return CheapestSchedule(
        counts=tuple(front.counts[chosen[at]] for at in taken),
        price=float(price[taken].sum()),
        bound=float(result.mip_dual_bound),
        missed_ratio=float(missed[taken].sum()) / requests if requests > 0.0 else 0.0,
    )


def composition_frontier(choice: Choice) -> Frontier:
    """The compositions within bounds and GPUs that no cheaper one carries as much as."""
    bare = choice.without_reserve()
    sizes = [one.maximum - one.minimum + 1 for one in bare.variants]
    if math.prod(sizes) > MOST_COMPOSITIONS:
        raise InvalidInputError(
            "replicas.max", [one.maximum for one in bare.variants], "a million counts in all"
        )
    names = [one.name for one in bare.variants]
    ranges = [range(one.minimum, one.maximum + 1) for one in bare.variants]
    every = (dict(zip(names, counts, strict=True)) for counts in product(*ranges))
    rated = [
        (bare.price_hourly(counts), -bare.carried_per_second(counts), tuple(counts.values()))
        for counts in every
        if bare.within_gpus(counts)
    ]
    rated.sort()
    best: list[tuple[float, float, tuple[int, ...]]] = []
    for one in rated:
        if not best or one[1] < best[-1][1]:
            best.append(one)
    return Frontier(
        counts=tuple(dict(zip(names, counts, strict=True)) for _, _, counts in best),
        prices_hourly=np.array([price for price, _, _ in best]),
        rates_per_second=np.array([-rate for _, rate, _ in best]),
    )


def _options(front: Frontier, demand: float) -> int:
    """How many of the cheapest compositions may serve: up to the first that carries the demand."""
    enough = int(np.searchsorted(front.rates_per_second, demand, side="left"))
    return min(enough + 1, len(front.counts))
