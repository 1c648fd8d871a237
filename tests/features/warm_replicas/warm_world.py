"""A simulated fleet whose engines sleep and wake, as the planner orders it."""

from dataclasses import dataclass, replace

from servingslo.features.warm_replicas.call import (
    ON_CALL,
    SERVES,
    TARGETS,
    WARM_REPLICAS,
    WarmDecision,
    WarmTargets,
    warm_of,
)
from servingslo.policy.inputs import InForce, Observation
from servingslo_lab.sim.fleets.cluster import FINISHING_SECONDS, Cluster
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.pods import PodPhase, SimulatedPod, removal_order
from servingslo_lab.sim.fleets.result import RunResult, results_of
from servingslo_lab.sim.production import Production, benchmark_targets
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.backend import best_backend
from servingslo_lab.sim.traces.trace import Trace


class SleepyCluster(Cluster):
    """Pods on call take no requests; a wake takes some seconds; those on call are removed first."""

    def __init__(self, fleet: FleetSpec, trace: Trace, seed: int, wake_seconds: float) -> None:
        super().__init__(fleet, trace, seed, best_backend())
        self.wake_seconds = wake_seconds
        self.out: set[str] = set()
        self.asleep: dict[str, float] = {}
        self.slept_seconds = 0.0

    def scale(self, replicas: int) -> None:
        """Kubernetes removes pods of a lower deletion cost first."""
        most = self.fleet.max_replicas
        self.desired = replicas if most is None else min(replicas, most)
        while len(self.live) < self.desired:
            self._order()
        first = sorted(self.live, key=lambda pod: (removal_order(pod)[0], pod.name not in self.out,
                                                   removal_order(pod)[1]))  # fmt: skip
        for pod in first[: len(self.live) - self.desired]:
            self._awake(pod.name)
            self.out.discard(pod.name)
            self._remove(pod)

    def observe(self, scraped_at: float) -> Observation:
        """With the state of each engine at the scrape, and the labels of the pods now."""
        seen = super().observe(scraped_at)
        pods = tuple(
            replace(pod, engines=tuple(
                replace(one, sleep_states={"awake": float(pod.name not in self.scraped_asleep)})
                for one in pod.engines
            ))
            for pod in seen.pods
        )  # fmt: skip
        labels = {pod.name: ON_CALL if pod.name in self.out else SERVES for pod in pods}
        return replace(seen, pods=pods, in_force={WARM_REPLICAS: InForce(values=labels)})

    def scrape(self) -> None:
        """The engines as they are now."""
        super().scrape()
        self.scraped_asleep = set(self.asleep)

    def carry_out(self, decided: WarmDecision | None) -> None:
        """As the actuator does."""
        named = {pod.name: pod for pod in self.live if pod.phase is PodPhase.READY}
        for name in () if decided is None else decided.takes_out:
            if name in named:
                self.serving.remove(named[name].row)
                self.out.add(name)
        for name in () if decided is None else decided.sleeps:
            if name in named:
                ints = self.rows[named[name].row].ints
                assert name in self.out
                assert ints[layout.RUNNING] + ints[layout.WAITING_COUNT] == 0
                self.asleep[name] = self.now
        for name in () if decided is None else decided.wakes:
            if name in named and name in self.out:
                seconds = self.wake_seconds if name in self.asleep else 0.0
                self._at(self.now + seconds, lambda pod=named[name]: self._back(pod))

    def _back(self, pod: SimulatedPod) -> None:
        self._awake(pod.name)
        if pod.name in self.out and pod.phase is PodPhase.READY:
            self.out.remove(pod.name)
            self.serving.append(pod.row)

    def _awake(self, name: str) -> None:
        if (since := self.asleep.pop(name, None)) is not None:
            self.slept_seconds += self.now - since


@dataclass(frozen=True)
class Played:
    """A run. price_hours: replica-hours, those that slept at their share of the price."""

    result: RunResult
    price_hours: float
    most_asleep: int
    decisions: list


def played(
    fleet: FleetSpec,
    trace: Trace,
    stated: WarmTargets | None,
    *,
    seed: int = 61,
    wake_seconds: float = 5.0,
    maximum: int = 16,
) -> Played:
    """The production planner on this fleet. stated: None without the field."""
    targets = benchmark_targets(max_replicas=maximum)
    if stated is not None:
        targets = replace(targets, features={TARGETS.name: stated})
    planner, cluster = Production(targets), SleepyCluster(fleet, trace, seed, wake_seconds)
    cluster.warm_start(fleet.initial_replicas)
    interval, lag, most = fleet.scrape_interval_seconds, fleet.scrape_lag_seconds, 0
    tick = interval
    while tick < trace.duration_seconds:
        cluster.run_until(tick - lag)
        cluster.scrape()
        cluster.run_until(tick)
        cluster.apply(planner.decide(cluster.observe(tick - lag)))
        cluster.carry_out(warm_of(planner.decisions[-1].knobs))
        cluster.ticks.append(cluster.tick())
        most = max(most, len(cluster.asleep))
        tick += interval
    cluster.run_until(trace.duration_seconds)
    billed = cluster.billed_seconds(trace.duration_seconds)
    for name in list(cluster.asleep):
        cluster._awake(name)
    slept, share = cluster.slept_seconds, 1.0 if stated is None else stated.cost_ratio
    cluster.run_until(trace.duration_seconds + FINISHING_SECONDS)
    result = results_of(
        cluster.requests, duration_seconds=trace.duration_seconds, replica_seconds=billed,
        ticks=tuple(cluster.ticks), class_names=None,
    )  # fmt: skip
    return Played(result, (billed - (1.0 - share) * slept) / 3600.0, most, planner.decisions)
