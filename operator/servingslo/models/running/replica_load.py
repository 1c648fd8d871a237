"""The load of one replica of a fleet, from which its law of running sequences is made.

Source: random routing thins a stream, and its dispersion less 1 with it, D. R. Cox and V. Isham,
Point Processes (1980); pools keep it.
"""

from typing import NamedTuple

from servingslo.models.engine.service_time import RequestDemand
from servingslo.models.running.bursts import STEADY
from servingslo.models.running.occupancy import (
    BudgetBound,
    ReplicaLoad,
    followed_bursts,
    queue_factor,
    variability_factor,
)

# Below this utilization requests meet no others, however bursty: one in ten thousand does.
_COMPANY_UTILIZATION = 1e-4


class FleetLaw(NamedTuple):
    """Properties common to all loads of one engine configuration and one mix of requests.

    cap: running sequences of a replica at saturation. running_cap: those at which arrivals wait for
    a slot; more than cap if the token budget bounds. saturation_rate_per_second: of a replica.
    service_dispersion: C_s² of the queue above the cap. dispersion, correlation_seconds: of the
    fleet's arrivals; math.nan if their memory is unknown. budget: the token budget if it bounds the
    running sequences, else `NO_BUDGET`.
    """

    cap: float
    running_cap: float
    saturation_rate_per_second: float
    service_dispersion: float
    dispersion: float
    correlation_seconds: float
    budget: BudgetBound


def replica_load(
    demand: RequestDemand, fleet: FleetLaw, rate_per_second: float, replica_count: int, pooled: bool
) -> ReplicaLoad:
    """Return the load of one of these replicas at this arrival rate of each.

    pooled: whether a request goes to the replica with the fewest running; else to any.
    """
    # Replicas that share arrivals at random each receive the bursts of the fleet thinned out.
    company = rate_per_second > _COMPANY_UTILIZATION * fleet.saturation_rate_per_second
    excess = (fleet.dispersion - 1.0) / replica_count if company else 0.0
    pool = replica_count if pooled else 1
    # Arrivals that are more regular than Poisson have no bursts.
    followed, bursts = excess, STEADY
    if excess > 0.0:
        bursts = followed_bursts(
            demand, rate_per_second, excess, fleet.correlation_seconds, pool, fleet.cap
        )
        followed = bursts.relaxed_excess
    dispersion = 1.0 + followed * pool
    return ReplicaLoad(
        rate_per_second=rate_per_second,
        factor=variability_factor(demand, rate_per_second, dispersion),
        cap=fleet.running_cap,
        saturation_rate_per_second=fleet.saturation_rate_per_second,
        pool_count=pool,
        queue_factor=queue_factor(dispersion, fleet.service_dispersion),
        bursts=bursts,
        budget=fleet.budget,
    )
