"""A prefill and a decode pool around the controller: each a world of its own, under one promise.

Both see every request: prefill answers with one token, decode has no prompt left to work on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.unit.controller_fakes import NAMESPACE, FakeFleet, Operator, record_of
from tests.unit.policy_world import TARGETS, World, steady
from tests.unit.workload_server import WorkloadServer

from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.controller.registry import Registry
from servingslo.policy.inputs import CostTargets, ReplicaTargets, ScaleTarget, SignalProblem
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets, Role
from servingslo.policy.ports import ClusterMetrics, WorkloadView
from servingslo.reasons import Reason
from servingslo.runtimes.recognition import Recognize

PREFILL, DECODE = "llama-prefill", "llama-decode"
MODEL = {"apiVersion": "apps/v1", "kind": "Deployment"}
POOLS: tuple[dict[str, Any], ...] = (
    {
        "name": "prefill",
        "role": "Prefill",
        "targetRef": {**MODEL, "name": PREFILL},
        "replicas": {"min": 1, "max": 12},
    },
    {
        "name": "decode",
        "role": "Decode",
        "targetRef": {**MODEL, "name": DECODE},
        "replicas": {"min": 1, "max": 12},
    },
)
# Of a replica of each of two Combined pools for an hour.
PRICES = {"dear": 4.0, "spot": 1.0}


def pools_record(**changed: Any) -> ResourceRecord:
    """A ServingSLO with both pools; further arguments as `record_of`."""
    spec = {
        "pools": [dict(pool) for pool in POOLS],
        "objectives": [
            {"metric": "ttft", "percentile": 95, "threshold": "2s"},
            {"metric": "tpot", "percentile": 95, "threshold": "60ms"},
        ],
    }
    return record_of(spec, **changed)


def two_prices() -> FleetTargets:
    """The same card at two prices."""
    return FleetTargets(
        pools=tuple(
            PoolTargets(
                name=name,
                role=Role.COMBINED,
                targets=replace(
                    TARGETS,
                    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name=name),
                    replicas=ReplicaTargets(minimum=1, maximum=12),
                    cost=CostTargets(gpu_hourly=price),
                    cold_start_seconds=300.0,
                ),
            )
            for name, price in PRICES.items()
        )
    )


def worlds(
    rate: object = steady(2.0), *, prefill: int = 2, decode: int = 2, **others: Any
) -> dict[str, World]:
    """The worlds of both targets."""
    return {
        PREFILL: World(
            rate=rate,
            replicas=prefill,
            named=PREFILL,
            prompt_median=1500.0,
            output_median=1.0,
            seed=3,
            **others,
        ),
        DECODE: World(
            rate=rate,
            replicas=decode,
            named=DECODE,
            prompt_median=16.0,
            output_median=400.0,
            seed=4,
            **others,
        ),
    }


@dataclass
class FakePools:
    """Several targets, each as `FakeFleet` is one. gone: targets that are not there."""

    fleets: Mapping[str, FakeFleet]
    gone: set[str] = field(default_factory=set)
    scalers: dict[str, Sequence[SignalProblem]] = field(default_factory=dict)
    written: list[tuple[str, int, int]] = field(default_factory=list)
    refusals: dict[str, Exception] = field(default_factory=dict)

    @property
    def workload(self) -> WorkloadServer:
        """Of the first pool: no batch limits are written here."""
        return next(iter(self.fleets.values())).workload

    @property
    def now(self) -> float:
        """Of the first world; all have one."""
        return next(iter(self.fleets.values())).now

    def tick(self) -> None:
        """Fifteen seconds later."""
        for fleet in self.fleets.values():
            fleet.tick()

    def now_seconds(self) -> float:
        """Of the worlds' clock."""
        return self.now

    def invalidate(self, namespace: str, target: ScaleTarget) -> None:
        """The next reading of this target passes over the cache."""
        self.fleets[target.name].invalidate(namespace, target)

    async def read_metrics(self) -> ClusterMetrics:
        """The engines of all pools that Prometheus knows."""
        pods = {}
        for fleet in self.fleets.values():
            found = await fleet.read_metrics()
            pods.update(found.pods)
        return ClusterMetrics(pods=pods)

    async def read_workload(
        self, namespace: str, target: ScaleTarget, container: str | None, recognize: Recognize
    ) -> WorkloadView:
        """One target, if it is there."""
        fleet = None if target.name in self.gone else self.fleets.get(target.name)
        if fleet is None:
            problem = SignalProblem(reason=Reason.TARGET_NOT_FOUND, detail=target.name)
            return WorkloadView(target=target, problems=(problem,))
        return await fleet.read_workload(namespace, target, container, recognize)

    async def scale(self, namespace: str, target: ScaleTarget, before: int, after: int) -> None:
        """Set the count of one target."""
        if (refusal := self.refusals.get(target.name)) is not None:
            raise refusal
        await self.fleets[target.name].scale(namespace, target, before, after)
        self.written.append((target.name, before, after))


@dataclass
class PoolsOperator(Operator):
    """The controller over both pools."""

    worlds: Mapping[str, World] = field(default_factory=worlds)

    def __post_init__(self) -> None:
        self.pools = FakePools(
            {name: FakeFleet(world=world, target=name) for name, world in self.worlds.items()}
        )
        self.fleet = self.pools
        self.exporter = OperatorMetrics()
        self.registry = Registry()
        self.start()

    def start(self) -> None:
        """A new process; who else scales a target is asked of the pools."""
        super().start()
        workloads = self.adapters.workloads
        asked = self.pools

        async def other_scalers(namespace: str, target: ScaleTarget) -> Sequence[SignalProblem]:
            assert namespace == NAMESPACE
            return asked.scalers.get(target.name, ())

        workloads.other_scalers = other_scalers

    def count(self, target: str) -> int:
        """The count that is ordered."""
        return self.worlds[target].desired

    def pool_status(self, name: str) -> Mapping[str, Any]:
        """A pool's part of the status on the server."""
        return next(one for one in self.resources.status()["pools"] if one["name"] == name)

    def blind(self, target: str) -> None:
        """From now on Prometheus has nothing of this target's pods."""
        down = SignalProblem(reason=Reason.METRICS_MISSING, detail="no series")
        self.pools.fleets[target].metrics_down = down


def one_target(pool: int, **changed: Any) -> ResourceRecord:
    """The same resource with only the target of one pool, as `targetRef`."""
    record = pools_record(**changed)
    target = POOLS[pool]
    spec = {key: value for key, value in record.spec.items() if key != "pools"}
    own = {"targetRef": target["targetRef"], "replicas": target["replicas"]}
    return replace(record, spec={**spec, **own})
