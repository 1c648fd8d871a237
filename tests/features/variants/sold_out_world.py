"""Two pools of one card at two prices, of which the cheap one is sold out for a while."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.inputs import Observation, ReplicaTargets, ScaleTarget, SignalProblem, Targets
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import Role
from servingslo.reasons import Reason
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.pools import production
from servingslo_lab.sim.pools.fleet import VariantsSpec
from servingslo_lab.sim.pools.production import ProductionPools, fleet_targets
from servingslo_lab.sim.pools.together import PoolsResult, run_together
from servingslo_lab.sim.pools.variants import Variants
from servingslo_lab.sim.replicas.backend import best_backend
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import Trace

QUOTA = 'exceeded quota: gpus, requested: requests.nvidia.com/gpu=1'
SLO = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.95)
PRICES = {"spot": 1.0, "dear": 4.0}
COLD_SECONDS = 90.0
TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama"),
    objectives=(
        Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),
        Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.05),
    ),
    replicas=ReplicaTargets(minimum=1, maximum=16),
)


@dataclass
class Market:
    """The planner over both pools, and how many GPUs the cheap one finds at each time.

    room: (from seconds, GPUs or None for any number), in order. refused: no pod is made beyond
    them, as under a quota; else it is made and waits for a place.
    """

    planner: ProductionPools
    pools: Variants
    room: Sequence[tuple[float, int | None]]
    refused: bool = False
    seen: list = field(default_factory=list)

    def decide(self, observations: Mapping[str, Observation]) -> Mapping[str, Wanted]:
        now = observations["spot"].time_seconds
        spot = self.pools.pools["spot"]
        spot.fleet = replace(spot.fleet, gpu_quota=[n for at, n in self.room if at <= now][-1])
        spot._schedule_pods()
        observations = dict(observations)
        if self.refused:
            observations["spot"] = _refused(observations["spot"])
        wanted = self.planner.decide(observations)
        self.seen.append((now, observations, wanted))
        return wanted


def _refused(seen: Observation) -> Observation:
    made = tuple(pod for pod in seen.pods if not pod.unschedulable_reason)
    if len(made) == len(seen.pods):
        return seen
    problem = SignalProblem(reason=Reason.QUOTA_REACHED, detail=QUOTA)
    return replace(seen, pods=made, current_replicas=len(made), problems=(problem,))


def lived(trace: Trace, room, *, refused=False, seed=1, initial=None, engines=None, cold=COLD_SECONDS, most=16):
    engines = engines or {"spot": "l4-small", "dear": "l4-small"}
    initial = initial or {"spot": 3, "dear": 1}
    fleets = {
        name: FleetSpec(
            engine=engines[name], price_per_hour=price, initial_replicas=initial[name], max_replicas=most,
            cold_start=ColdStart(mean_seconds=cold),
        )
        for name, price in PRICES.items()
    }
    spec = VariantsSpec(pools=fleets)
    targets = fleet_targets(dict.fromkeys(fleets, TARGETS), spec, fleets)
    world = Variants(spec, trace, seed, best_backend())
    market = Market(ProductionPools(targets), world, room, refused)
    result = run_together(world, market, trace, interval=15.0, lag=5.0)
    return result, market
