"""What the planner remembers of a fleet from tick to tick."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servingslo.estimation.forecast.demand import ForecastState
from servingslo.policy.replicas.state import PlannerState

# By pool, then by objective ('ttft:95'): the part of the threshold that the pool may use.
PoolLimits = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """Memory of a resource; the default was never observed. Of a single target it is `pools` alone.

    pools: of each pool, by its name. demand: forecast of the demand of the whole resource.
    through_ratio: share of requests that pass the prefill pool, 1 unless it is surely less; None
    before it was seen. smoothed_through_ratio: as counted.
    limits_seconds: how thresholds are divided. no_room_seconds: when requests last waited for room
    in decode. features: what each feature remembers of all pools, by its name.
    """

    pools: Mapping[str, PlannerState] = field(default_factory=dict)
    demand: ForecastState = field(default_factory=ForecastState)
    through_ratio: float | None = None
    smoothed_through_ratio: float | None = None
    limits_seconds: PoolLimits = field(default_factory=dict)
    no_room_seconds: float | None = None
    features: Mapping[str, object] = field(default_factory=dict)

    def of(self, pool: str) -> PlannerState:
        """The memory of a pool; an empty one if it was never observed."""
        return self.pools.get(pool, PlannerState())

    def with_pool(self, pool: str, state: PlannerState) -> "FleetState":
        """The same with this memory of a pool."""
        return replace(self, pools={**self.pools, pool: state})
