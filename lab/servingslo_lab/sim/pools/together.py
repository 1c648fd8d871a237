"""Several pools on one virtual clock, whose engines serve the requests of one trace together.

The kinds of pools differ in how requests pass through them: `cluster` and `variants`.
"""

from dataclasses import dataclass

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.fleets.cluster import FINISHING_SECONDS, Cluster
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.pods import PodPhase
from servingslo_lab.sim.fleets.result import RunResult, Tick
from servingslo_lab.sim.pools.scaling import FleetAutoscaler
from servingslo_lab.sim.replicas.backend import Backend
from servingslo_lab.sim.traces.trace import Trace

POOL_SEED = 1 << 20
"""Added to the seed of each further pool, so that starts and failures of pools differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsResult:
    """The results of the requests and of each pool, by its name.

    result: like that of a single fleet, with the replica time of all pools and without ticks.
    """

    result: RunResult
    replica_seconds: dict[str, float]
    ticks: dict[str, tuple[Tick, ...]]


class Pool(Cluster):
    """One of several pools: a fleet whose engines run together with those of the others."""

    def __init__(
        self, fleet: FleetSpec, trace: Trace, seed: int, backend: Backend, together: "Together"
    ) -> None:
        self._together = together
        super().__init__(fleet, trace, seed, backend)

    @property
    def gateway(self) -> list[int]:
        """The state of the pool's gateway."""
        return self._gateway

    @property
    def next_event_seconds(self) -> float:
        """Time of the next start, failure or end of draining of a pod in this pool."""
        return self._events[0][0] if self._events else float("inf")

    @property
    def computing(self) -> list[int]:
        """Engines that take requests or finish their running ones."""
        phases = {PodPhase.READY, PodPhase.DRAINING}
        return [pod.row for pod in self.pods if pod.phase in phases]

    def share(self, other: "Pool") -> None:
        """Use the requests, engines and gateway of another pool."""
        self.requests, self.rows, self._gateway = other.requests, other.rows, other.gateway

    def _serve(self, until: float) -> None:
        self._together.serve(until)

    def _lose(self, place: int) -> None:
        super()._lose(place)
        self._together.lost(self, place)

    def _free_gpus(self) -> float:
        return min(super()._free_gpus(), self._together.free_gpus)

    def _schedule_pods(self) -> None:
        """A GPU that one pool releases may be taken by a pending pod of another."""
        super()._schedule_pods()
        for pool in self._together.pools.values():
            if pool is not self:
                super(Pool, pool)._schedule_pods()


class Together:
    """The pools of a fleet with their requests."""

    def __init__(self, gpu_quota: int | None) -> None:
        self.pools: dict[str, Pool] = {}
        self._gpu_quota = gpu_quota

    @property
    def free_gpus(self) -> float:
        """GPUs that no pod of any pool holds; infinite without a quota."""
        if self._gpu_quota is None:
            return float("inf")
        return self._gpu_quota - sum(pool.holding for pool in self.pools.values())

    def serve(self, until: float) -> None:
        """Advance requests and engines of all pools to this time."""
        raise NotImplementedError

    def lost(self, pool: Pool, place: int) -> None:
        """React to the failure of an engine."""

    def result(self, replica_seconds: float) -> RunResult:
        """The requests of the trace, in its order."""
        raise NotImplementedError

    def run_until(self, until: float) -> None:
        """Simulate requests, pod starts and failures of all pools until this time."""
        pools = tuple(self.pools.values())
        while (time := min(pool.next_event_seconds for pool in pools)) <= until:
            for pool in pools:
                pool.run_until(time)
        for pool in pools:
            pool.run_until(until)


def run_together(
    pools: Together, scaler: FleetAutoscaler, trace: Trace, *, interval: float, lag: float
) -> PoolsResult:
    """Serve the trace with the pools under an autoscaler that looks in this interval."""
    members = pools.pools
    for pool in members.values():
        pool.warm_start(pool.fleet.initial_replicas)
    tick = interval
    while tick < trace.duration_seconds:
        pools.run_until(tick - lag)
        for pool in members.values():
            pool.scrape()
        pools.run_until(tick)
        seen = {name: pool.observe(tick - lag) for name, pool in members.items()}
        for name, wanted in scaler.decide(seen).items():
            members[name].apply(wanted)
        for pool in members.values():
            pool.ticks.append(pool.tick())
        tick += interval
    end = trace.duration_seconds
    pools.run_until(end)
    billed = {name: pool.billed_seconds(end) for name, pool in members.items()}
    pools.run_until(end + FINISHING_SECONDS)
    return PoolsResult(
        result=pools.result(sum(billed.values())),
        replica_seconds=billed,
        ticks={name: tuple(pool.ticks) for name, pool in members.items()},
    )


def check_trace(trace: Trace) -> None:
    """Raises: InvalidInputError for requests that pools cannot serve."""
    for name in ("sessions", "priorities", "shared_tokens"):
        if getattr(trace, name) is not None:
            raise InvalidInputError("trace", name, "requests without sessions and priorities")
