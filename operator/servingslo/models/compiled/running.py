"""The law of running sequences of one load, compiled; see `occupancy`."""

import math
from typing import Any

import numpy as np
from numba.extending import overload

from servingslo.models import bursts, occupancy, replica_load, widening
from servingslo.models.bursts import Bursts
from servingslo.models.compiled.shared import (
    DEMAND_COUNT,
    demand_numbers,
    demand_of,
    share,
)
from servingslo.models.occupancy import BudgetBound, Occupancy, ReplicaLoad
from servingslo.models.replica_load import FleetLaw
from servingslo.models.service_time import FloatArray, RequestDemand
from servingslo.models.widening import BudgetQueue

# Numbers of a fleet in a plain array; and of a law, before its weights.
FLEET_COUNT = 8
LAW_COUNT = 15


def fleet_numbers(demand: RequestDemand, fleet: FleetLaw) -> list[float]:
    """The numbers that `demand_of` and `fleet_of` read."""
    return [*demand_numbers(demand), *map(float, fleet[:-1]), *map(float, fleet.budget)]


def fleet_of(numbers: Any) -> FleetLaw:
    """The fleet whose numbers follow those of the demand."""
    rest = numbers[DEMAND_COUNT:]
    budget = BudgetBound(rest[6], rest[7])
    return FleetLaw(rest[0], rest[1], rest[2], rest[3], rest[4], rest[5], budget)


def law_numbers(law: Occupancy) -> FloatArray:
    """The law as one array: `LAW_COUNT` numbers and its weights."""
    count = len(law.weights)
    numbers = np.empty(LAW_COUNT + count)
    numbers[0] = law.lowest
    numbers[1] = law.spacing
    numbers[2] = law.cap
    numbers[3] = law.wait_probability
    numbers[4] = law.wait_rate_per_second
    numbers[5] = law.mean
    numbers[6] = law.variance
    numbers[7] = law.third_moment
    numbers[8] = law.pool_count
    numbers[9] = law.bursts.variance_ratio
    numbers[10] = law.bursts.correlation_seconds
    numbers[11] = law.bursts.limit_excess
    numbers[12] = law.bursts.relaxed_excess
    numbers[13] = law.bursts.followed_ratio
    numbers[14] = law.below_cap
    for node in range(count):  # an assignment of arrays compiles the message that it may fail with
        numbers[LAW_COUNT + node] = law.weights[node]
    return numbers


def law_of(numbers: Any, weights: FloatArray) -> Occupancy:
    """The law of these numbers and weights, in Python or compiled."""
    return Occupancy(
        weights,
        numbers[0],
        numbers[1],
        numbers[2],
        numbers[3],
        numbers[4],
        numbers[5],
        numbers[6],
        numbers[7],
        int(numbers[8]),
        Bursts(numbers[9], numbers[10], numbers[11], numbers[12], numbers[13]),
        numbers[14],
    )


def occupancy_of(demand: RequestDemand, load: ReplicaLoad) -> Occupancy:
    """`occupancy.occupancies` of one load."""
    lattice = occupancy.lattice_of(demand, load)
    count, shape = lattice.node_count, lattice.shape
    slope = math.log(lattice.ratio)
    density = np.empty(count)
    for node in range(count):
        total = lattice.low + node * lattice.step
        log = math.lgamma(total + (shape + 1.0)) - math.lgamma(total + 1.0)
        density[node] = log + total * slope
    factors = np.full(count, load.factor)
    if load.budget.tokens == math.inf or demand.uncached_mean_tokens <= 0.0:
        for node in range(count):
            density[node] *= 1.0 / load.factor
    else:
        _widen(demand, load, lattice, density, factors)
    highest = density.max()
    weights = np.empty(count)
    for node in range(count):
        density[node] = math.exp(density[node] - highest)
        weights[node] = lattice.step * density[node]
    weights[0] = 0.5 * (lattice.step + 1.0) * density[0]
    above = occupancy.above_cap(load, lattice, density, weights, factors)
    below = moments_of(weights)
    mass = below[0] + above[0]
    for node in range(count):
        weights[node] /= mass
    return occupancy.summed(load, lattice, weights, below, above)


def _widen(demand: RequestDemand, load: ReplicaLoad, lattice: Any, logs: Any, factors: Any) -> None:
    """`widening.widened` with a factor for each node, in place."""
    pool = load.pool_count
    mean = occupancy.running_mean(demand, load.rate_per_second, load.factor / pool)
    queue = BudgetQueue(load.rate_per_second, load.factor, pool, load.budget.tokens, mean)
    before = logs[0]
    for node in range(len(logs)):
        running = (lattice.low + node * lattice.step) / pool
        factors[node] = widening.factors_by_running(demand, queue, running)
        if node == 0:
            logs[0] = 0.0
        else:
            growth = (logs[node] - before) / (0.5 * (factors[node] + factors[node - 1]))
            before = logs[node]
            logs[node] = logs[node - 1] + growth
    for node in range(len(logs)):
        logs[node] -= math.log(factors[node])


def moments_of(weights: Any) -> tuple[float, float, float, float]:
    """`occupancy.even_moments` of one law."""
    mass = first = second = third = 0.0
    for node in range(len(weights)):
        offset = node - occupancy.INDEX_CENTRE
        weight = weights[node]
        mass += weight
        first += weight * offset
        second += weight * offset * offset
        third += weight * offset * offset * offset
    return occupancy.central(mass, first, second, third)


def running_law(numbers: Any, rate_per_second: float, replica_count: int, pooled: bool) -> Any:
    """`law_numbers` of the running sequences of one of these replicas."""
    demand = demand_of(numbers)
    load = replica_load.replica_load(
        demand, fleet_of(numbers), rate_per_second, replica_count, pooled
    )
    return law_numbers(occupancy_of(demand, load))


def _at_budget(_budget: Any, _low: Any, _spacing: Any, _weights: Any) -> Any:
    """`occupancy.at_budget` without arrays in between."""

    def at_budget(budget: BudgetBound, low: float, spacing: float, weights: Any) -> float:
        if budget.running_count == math.inf:
            return 0.0
        total = 0.0
        for node in range(len(weights)):
            reached = node + (0.5 + (low - budget.running_count) / spacing)
            total += weights[node] * min(max(reached, 0.0), 1.0)
        return total

    return at_budget


overload(occupancy.at_budget, strict=False)(_at_budget)
share(
    bursts.bursts_of,
    bursts.measured_share,
    occupancy.above_cap,
    occupancy.central,
    occupancy.followed_bursts,
    occupancy.lattice_of,
    occupancy.queue_factor,
    occupancy.running_mean,
    occupancy.summed,
    occupancy.variability_factor,
    replica_load.replica_load,
    widening.factors_by_running,
    widening.memory_seconds,
    fleet_of,
    law_numbers,
    law_of,
    moments_of,
    occupancy_of,
    running_law,
    _widen,
)
