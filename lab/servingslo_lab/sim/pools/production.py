"""The production planner of several pools as an autoscaler: `plan_fleet()` and nothing else."""

from collections.abc import Mapping
from dataclasses import replace

from servingslo.models.engine.service_time import FloatArray
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import (
    AdmissionMode,
    BatchingMode,
    CostTargets,
    Limits,
    Observation,
    ReplicaTargets,
    ScaleTarget,
    Targets,
)
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.units import SECONDS_PER_DAY
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.past import Past
from servingslo_lab.sim.pools.fleet import AnyPools


def fleet_targets(
    targets: Mapping[str, Targets],
    spec: AnyPools,
    fleets: Mapping[str, FleetSpec],
    stated: FleetTargets | None = None,
) -> FleetTargets:
    """The resource over these pools, with the bounds of the simulated fleets.

    targets: of the resource as it is for each pool. fleets: of each pool, with its largest count
    and its price, where the resource states none. stated: the spec of pools, if there is one.
    """
    bounds = [spec.gpu_quota, None if stated is None else stated.gpus_max]
    return FleetTargets(
        pools=tuple(
            PoolTargets(
                name=name, role=spec.roles[name], targets=_pool_targets(targets[name], name, one)
            )
            for name, one in fleets.items()
        ),
        gpus_max=min((bound for bound in bounds if bound is not None), default=None),
        transfer_seconds=None if stated is None else stated.transfer_seconds,
    )


def _pool_targets(targets: Targets, name: str, fleet: FleetSpec) -> Targets:
    stated = [targets.replicas.maximum, fleet.max_replicas]
    most = min((bound for bound in stated if bound is not None), default=None)
    return replace(
        targets,
        target=ScaleTarget(api_version="apps/v1", kind="Deployment", name=name),
        replicas=ReplicaTargets(
            minimum=max(targets.replicas.minimum, 1),
            maximum=most,
            tolerated_failures=targets.replicas.tolerated_failures,
        ),
        cost=targets.cost or CostTargets(gpu_hourly=fleet.dollars_per_hour),
        batching=replace(targets.batching, mode=BatchingMode.OFF),
        admission_mode=AdmissionMode.OFF,
    )


class ProductionPools:
    """The planner of several pools with its state; only replica counts are carried out.

    past: the rates of the whole resource before the trace,
    with the arrivals of the trace; None for no history.
    """

    def __init__(
        self,
        targets: FleetTargets,
        past: Past | None = None,
        arrival_seconds: FloatArray | None = None,
    ) -> None:
        self._targets = targets
        self._state = FleetState()
        self._past, self._arrivals = past, arrival_seconds
        self._due = 0.0
        self._decisions: list[Mapping[str, Decision]] = []

    def decide(self, observations: Mapping[str, Observation]) -> Mapping[str, Wanted]:
        """The planner's counts, in the order of its writes."""
        dated = {name: self._dated(one) for name, one in observations.items()}
        now = next(iter(dated.values())).time_seconds
        if any(one.history is not None for one in dated.values()):
            self._due = now + SECONDS_PER_DAY
        decision, self._state = plan_fleet(dated, self._targets, Limits(), self._state, now)
        self._decisions.append(decision.pools)
        return {
            name: Wanted(replicas=one.replicas_after if one.apply_replicas else None)
            for name, one in decision.pools.items()
        }

    def of_pool(self, name: str) -> list[Decision]:
        """The decisions for one pool, at the times of the trace."""
        begin = 0.0 if self._past is None else self._past.begin_seconds
        found = [one[name] for one in self._decisions]
        return [replace(one, time_seconds=one.time_seconds - begin) for one in found]

    def _dated(self, observation: Observation) -> Observation:
        """The observation on the planner's clock, with the history if it is due."""
        if self._past is None or self._arrivals is None:
            return observation
        now = observation.time_seconds
        at = self._past.begin_seconds + now
        history = self._past.history_at(self._arrivals, now) if at >= self._due else None
        return replace(observation, time_seconds=at, history=history)
