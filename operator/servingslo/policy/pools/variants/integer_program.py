"""The cheapest counts as an integer program, for more pools than are enumerated.

x_kn is 1 if pool k has n replicas. Rates are tabulated, so a demand D is a linear constraint by
each split, without failures and with the tolerated failures f of each pool, which leave n − f:

- rates add up: Σ R_k(n) x_kn ≥ D;
- pods share by weights v_k: Σ v_j n x_jn ≥ D v_k n / R_k(n) x_kn for each pool k;
- pools share by weights w_k: x_kn = 0 where R_k(n) < D w_k / Σ w_j.

The solver allows small violations. So what it finds is checked by the rates themselves, and
excluded if it does not hold.
Source: HiGHS, Q. Huangfu and J. A. J. Hall, 2018, as `scipy.optimize.milp`.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from servingslo.policy.pools.variants.composition import Choice
from servingslo.policy.pools.variants.split import Counts, SplitRule

# Relative error of a quotient of rates; what is excluded by less is left to the exact check.
ROUNDING_RATIO = 1e-9
# Solutions that the exact check refuses, each within the solver's tolerance of one that holds.
MOST_REFUSED = 200

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class _Table:
    """Columns of the program: one for each pool and count."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.columns = [
            (index, count)
            for index, one in enumerate(choice.variants)
            for count in range(one.minimum, one.maximum + 1)
        ]
        self.pool: Integers = np.array([index for index, _ in self.columns], dtype=np.int64)
        self.count: Integers = np.array([count for _, count in self.columns], dtype=np.int64)

    def scenarios(self) -> Iterator[Integers]:
        """Counts with all replicas, and with the failures of each pool."""
        yield self.count
        for index, one in enumerate(self.choice.variants):
            if one.tolerated_failures:
                lost = np.where(self.pool == index, one.tolerated_failures, 0)
                yield np.maximum(self.count - lost, 0)

    def rates(self, counts: Integers) -> Floats:
        """What each column's pool carries with these counts."""
        variants = self.choice.variants
        return np.array(
            [
                variants[index].rate_of(int(count)) if count > 0 else 0.0
                for index, count in zip(self.pool, counts, strict=True)
            ]
        )

    def counts_of(self, chosen: Floats) -> dict[str, int]:
        """The counts of a solution."""
        variants = self.choice.variants
        return {
            variants[self.pool[at]].name: int(self.count[at]) for at in np.flatnonzero(chosen > 0.5)
        }


def cheapest_counts(choice: Choice, demand: float) -> Counts | None:
    """The counts of least cost that hold the demand (requests per second); None if none do."""
    table = _Table(choice)
    if not len(table.columns) or any(one.minimum > one.maximum for one in choice.variants):
        return None
    rows, least, allowed = _constraints(table, demand)
    pools = len(choice.variants)
    constraints = [
        LinearConstraint(
            np.array([(table.pool == index).astype(float) for index in range(pools)]), 1.0, 1.0
        )
    ]
    if rows:
        constraints.append(LinearConstraint(np.array(rows), np.array(least), np.inf))
    if choice.gpus_max is not None:
        each = np.array([choice.variants[index].gpus_per_replica for index in table.pool])
        constraints.append(LinearConstraint(each * table.count, -np.inf, float(choice.gpus_max)))
    cost = np.array([choice.variants[index].cost(count) for index, count in table.columns])
    for _ in range(MOST_REFUSED):
        result = milp(
            cost,
            integrality=np.ones(len(cost), dtype=np.int64),
            bounds=Bounds(0.0, allowed.astype(float)),
            constraints=constraints,
            options={"mip_rel_gap": 0.0},
        )
        if result.x is None:
            return None
        counts = table.counts_of(result.x)
        if choice.kept_per_second(counts) >= demand:
            return counts
        refused = (result.x > 0.5).astype(float)
        constraints.append(LinearConstraint(refused, -np.inf, pools - 1.0))
    return None


def _constraints(
    table: _Table, demand: float
) -> tuple[list[Floats], list[float], NDArray[np.bool_]]:
    """Rows with their least values, and which columns are allowed."""
    choice = table.choice
    rows: list[Floats] = []
    least: list[float] = []
    allowed = np.ones(len(table.columns), dtype=bool)
    for counts in table.scenarios():
        found = table.rates(counts)
        if choice.split.sums_rates:
            rows.append(found / max(demand, ROUNDING_RATIO))
            least.append(min(demand / max(demand, ROUNDING_RATIO), 1.0) - ROUNDING_RATIO)
        elif choice.split.rule is SplitRule.FIXED_WEIGHTS:
            allowed &= found >= demand * _weights(table, choice.split.weights) - ROUNDING_RATIO
        elif demand > 0.0:
            _share_by_pods(table, demand, counts, found, (rows, least, allowed))
    return rows, least, allowed


def _weights(table: _Table, weights: Mapping[str, float]) -> Floats:
    """The share of the traffic of each column's pool."""
    found = [weights.get(one.name, 0.0) for one in table.choice.variants]
    whole = sum(found)
    return np.array([found[index] / whole if whole > 0.0 else 0.0 for index in table.pool])


def _share_by_pods(
    table: _Table,
    demand: float,
    counts: Integers,
    found: Floats,
    into: tuple[list[Floats], list[float], NDArray[np.bool_]],
) -> None:
    """Add the constraints of a split by pods: every pool that has pods can take its share."""
    rows, least, allowed = into
    choice = table.choice
    weight = np.array([choice.split.pod_weight(choice.variants[i].name) for i in table.pool])
    weights = weight * counts
    # One pod at least that gets requests.
    rows.append((weights > 0.0).astype(float))
    least.append(1.0)
    most = sum(weights[table.pool == index].max() for index in range(len(choice.variants)))
    gets = weights > 0.0
    needs = np.zeros(len(weights))
    needs[gets] = np.inf
    able = gets & (found > 0.0)
    needs[able] = demand * weights[able] / found[able]
    allowed &= needs <= most * (1.0 + ROUNDING_RATIO)
    needs = np.minimum(needs, most * 2.0)
    for index in range(len(choice.variants)):
        rows.append((weights - np.where(table.pool == index, needs, 0.0)) / most if most else needs)
        least.append(-ROUNDING_RATIO)
