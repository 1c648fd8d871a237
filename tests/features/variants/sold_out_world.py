"""One card at two prices in the simulator, of which the cheap one is sold out for a while."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.inputs import (
    Limits,
    Observation,
    ReplicaTargets,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.reasons import Reason
from servingslo.units import SECONDS_PER_HOUR
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.fleets.pods import PodPhase, removal_order
from servingslo_lab.sim.pools.fleet import VariantsSpec
from servingslo_lab.sim.pools.production import fleet_targets
from servingslo_lab.sim.pools.together import PoolsResult, run_together
from servingslo_lab.sim.pools.variants import Variants
from servingslo_lab.sim.replicas.backend import best_backend
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.workloads import generated, step, uniform_lengths

QUOTA = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1"
SLO = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.95)
PRICES = {"spot": 1.0, "dear": 4.0}
TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama"),
    objectives=(
        Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=SLO.ttft_seconds),
        Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=SLO.tpot_seconds),
    ),
    replicas=ReplicaTargets(minimum=1, maximum=16),
)


@dataclass
class Market:
    """The planner over both pools, and how many cards the cheap one has.

    cards: (from seconds, number or None for any), in order. refused: no pod is made beyond them, as
    under a quota; else it is made and waits. told, seen: decisions and observations by time.
    """

    pools: Variants
    targets: FleetTargets
    cards: Sequence[tuple[float, int | None]]
    refused: bool = False
    state: FleetState = field(default_factory=FleetState)
    told: dict[float, FleetDecision] = field(default_factory=dict)
    seen: dict[float, Mapping[str, Observation]] = field(default_factory=dict)

    def decide(self, observations: Mapping[str, Observation]) -> Mapping[str, Wanted]:
        """What the plan orders, after cards came or went."""
        now = observations["spot"].time_seconds
        self._trade([count for at, count in self.cards if at <= now][-1])
        if self.refused:
            observations = {**observations, "spot": _refused(observations["spot"])}
        decision, self.state = plan_fleet(observations, self.targets, Limits(), self.state, now)
        self.told[now], self.seen[now] = decision, observations
        return {
            name: Wanted(replicas=one.replicas_after if one.apply_replicas else None)
            for name, one in decision.pools.items()
        }

    def waiting(self, at: float) -> int:
        """Pods of the cheap pool that had no card then."""
        return sum(bool(pod.unschedulable_reason) for pod in self.seen[at]["spot"].pods)

    def _trade(self, cards: int | None) -> None:
        spot = self.pools.pools["spot"]
        spot.fleet = replace(spot.fleet, gpu_quota=cards)
        lost = max(spot.holding - cards, 0) if cards is not None else 0
        held = [pod for pod in spot.live if pod.phase is not PodPhase.UNSCHEDULABLE]
        for pod in sorted(held, key=removal_order)[:lost]:
            spot._end(pod, drain=False)
        spot.scale(spot.desired)
        spot._schedule_pods()


def lived(
    cards: Sequence[tuple[float, int | None]],
    *,
    refused: bool = False,
    rates: tuple[float, float] = (40.0, 40.0),
    initial: tuple[int, int] = (4, 1),
    seconds: float = 1800.0,
    rise_at_seconds: float = 500.0,
) -> tuple[Market, PoolsResult]:
    """A trace with one step of demand, under the plan. initial: replicas of both pools."""
    fleets = {
        name: FleetSpec(
            engine="l4-small", price_per_hour=price, initial_replicas=count, max_replicas=16,
            cold_start=ColdStart(mean_seconds=90.0),
        )
        for (name, price), count in zip(PRICES.items(), initial, strict=True)
    }  # fmt: skip
    spec = VariantsSpec(pools=fleets)
    course = step(*rates, at_seconds=rise_at_seconds, duration_seconds=seconds)
    lengths = uniform_lengths((50, 800), (10, 200))
    trace = generated(course, lengths, np.random.default_rng(1))
    pools = Variants(spec, trace, 1, best_backend())
    targets = fleet_targets(dict.fromkeys(fleets, TARGETS), spec, fleets)
    market = Market(pools, targets, cards, refused)
    return market, run_together(pools, market, trace, interval=15.0, lag=5.0)


def dollars(result: PoolsResult) -> float:
    """What both pools cost in all."""
    held = result.replica_seconds
    return sum(PRICES[name] * held[name] / SECONDS_PER_HOUR for name in PRICES)


def _refused(seen: Observation) -> Observation:
    made = tuple(pod for pod in seen.pods if not pod.unschedulable_reason)
    if len(made) == len(seen.pods):
        return seen
    problem = SignalProblem(reason=Reason.QUOTA_REACHED, detail=QUOTA)
    return replace(seen, pods=made, current_replicas=len(made), problems=(problem,))
