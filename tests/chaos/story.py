"""One story: a cluster under load, an operator, a storm of faults drawn by a seed, and calm after.

    python -m tests.chaos.run --seed 17

The operator is the real one from the reader of Prometheus to the writers; around it are fakes of
the ports (`cluster`, `prometheus`). Time is virtual.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.chaos.cluster import (
    NAME,
    RIVAL,
    SCRAPE_PHASE_SECONDS,
    TARGET,
    Cluster,
    Killed,
    Write,
)
from tests.chaos.cluster import Fault as ServerFault
from tests.chaos.faults import PAGES, POINTS, SERVER, Fault, draw
from tests.chaos.prometheus import CONFIG, Distortion
from tests.unit.policy_world import World

from servingslo.adapters.clock import SteadyClock
from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.controller.actuators.replicas import ReplicaCount
from servingslo.controller.adapters import Adapters
from servingslo.controller.loop import Controller
from servingslo.controller.reconciler import Reconciler
from servingslo.controller.recordings.recording import Recorder
from servingslo.controller.registry import Registry
from servingslo.controller.reporting.reporter import Reporter
from servingslo.controller.reporting.stored_state import learned_of
from servingslo.controller.undoing import Undoing
from servingslo.policy.inputs import Limits

TICK_SECONDS = 15.0
# Ticks of learning before the storm, of the storm, and of calm in which all has to be well again.
WARM_TICKS, STORM_TICKS, CALM_TICKS = 12, 40, 48
FAULTS = 60
# After a last look that takes longer the plan is void; a shorter one may be overtaken unseen.
LOOK_SECONDS = 10.0
_MOST_LOOKS = 4
PREFILL, DECODE = "llama-prefill", "llama-decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What stood at the end: the count of each target, the status, and what the truth asks for.

    peak: the greatest true rate of the story, which a reserve keeps for.
    """

    counts: Mapping[str, int]
    rate: float
    peak: float
    status: Mapping[str, Any]
    spec: Mapping[str, Any]
    learned_bytes: int


@dataclass
class Told:
    """The record of a story, for the checker: writes, log lines and the end.

    stood_still: seconds in which the operator stood still beside its ticks.
    """

    seed: int
    faults: list[Fault]
    ticks: int = 0
    writes: list[Write] = field(default_factory=list)
    log: list[tuple[float, str, str]] = field(default_factory=list)
    deaths: list[tuple[float, str]] = field(default_factory=list)
    events: int = 0
    status_writes: int = 0
    storm_end: float = 0.0
    stood_still: float = 0.0
    ending: Ending | None = None


class _Lines(logging.Handler):
    """Log lines as they are said, with the time of the story."""

    def __init__(self, told: Told, now: Callable[[], float]) -> None:
        super().__init__()
        self._told, self._now = told, now

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" {record.exc_info[1]!r}"
        self._told.log.append((self._now(), record.levelname, text))


@dataclass
class _Metrics:
    reader: PrometheusReader
    cluster: Cluster
    gateway: Any = None

    async def read(self, pods=None):
        self.cluster.at_point("read")
        metrics = await self.reader.read(pods)
        self.cluster.saw(metrics)
        if self.gateway is not None:
            metrics = self.gateway.added(metrics)
        self.cluster.at_point("read-done")
        return metrics


@dataclass
class _Workloads:
    cluster: Cluster

    async def read(self, namespace, target, container, recognize):
        view = await self.cluster.read_workload(target)
        return replace(view, read_as=recognize([pod.name for pod in view.pods]))

    def invalidate(self, namespace, target):
        self.cluster.invalidate(namespace, target)

    async def other_scalers(self, namespace, target):
        return await self.cluster.other_scalers(namespace, target)


@dataclass
class _Resources:
    cluster: Cluster

    async def read_all(self):
        return await self.cluster.read_all()

    async def read(self, ref):
        return await self.cluster.read_record(ref)

    async def patch_status(self, ref, changed):
        await self.cluster.patch_status(ref, changed)


class Operator:
    """One process of the operator on the cluster. gateway: whose objects it may write, if any."""

    def __init__(self, cluster: Cluster, gateway: Any = None) -> None:
        self.cluster, self.gateway = cluster, gateway
        clock = SteadyClock(wall=cluster.now_seconds, monotonic=lambda: cluster.now)
        self.reader = PrometheusReader(
            CONFIG,
            monotonic=lambda: cluster.now,
            clock=clock,
            client=cluster.prometheus,
        )
        workloads = _Workloads(cluster)
        adapters = Adapters(
            clock=clock,
            metrics=_Metrics(self.reader, cluster, gateway),
            workloads=workloads,
            actuators=(
                ReplicaCount(cluster, workloads),
                *(() if gateway is None else gateway.actuators),
            ),
            resources=_Resources(cluster),
            events=cluster,
            exporter=OperatorMetrics(),
        )
        self.registry = Registry()
        limits, reporter = Limits(), Reporter(adapters=adapters)
        self.reconciler = Reconciler(
            adapters=adapters,
            registry=self.registry,
            limits=limits,
            recorder=Recorder(None),
            reporter=reporter,
        )
        self.controller = Controller(
            adapters=adapters,
            registry=self.registry,
            reconciler=self.reconciler,
            undoing=Undoing(
                adapters=adapters, registry=self.registry, limits=limits, reporter=reporter
            ),
            tick_seconds=TICK_SECONDS,
        )

    async def tick(self) -> None:
        """One round, and further looks at what asks for them, as the loop does."""
        self.registry.take_woken()
        await self.controller._relist_when_due(self.cluster.now)
        await self.controller._tick(tuple(self.registry.resources))
        if self.gateway is not None and self.controller._listed:
            self.controller.undoing.ask()
            await self.controller.undoing.when_due(self.cluster.now)
        for _ in range(_MOST_LOOKS):
            woken = self.registry.take_woken()
            if not woken:
                return
            self.cluster.spend(0.2)
            await self.controller._tick(tuple(woken))

    def end(self) -> None:
        """The process is gone."""
        self.reader.close()


class Story:
    """Draws a story by its seed and lives it."""

    @property
    def broken(self) -> tuple[str, ...]:
        """What did not hold in addition to what the checker reads."""
        return ()

    def __init__(
        self,
        seed: int,
        fault_count: int = FAULTS,
        only: tuple[str, ...] = (),
        *,
        pools: bool = False,
    ) -> None:
        rng = self.rng = random.Random(seed)
        self.rate = _demand(rng)
        self.cluster = Cluster(
            worlds=_pools(rng, self.rate) if pools else {TARGET: _world(rng, self.rate)},
            rng=random.Random(rng.getrandbits(32)),
            peak_rate=lambda a, b: max(self.rate(a + i * (b - a) / 24.0) for i in range(25)),
            least_rate=lambda a, b: min(self.rate(a + i * (b - a) / 24.0) for i in range(25)),
            at_point=self._at_point,
            on_record=self._watched,
        )
        self.spec = _spec(rng)
        if pools:
            self.spec = of_pools(self.spec, rng)
        faults = draw(rng, fault_count, STORM_TICKS, only)
        self.told = Told(seed=seed, faults=faults)
        self.told.ticks = WARM_TICKS + STORM_TICKS + CALM_TICKS
        self.operator: Operator | None = None
        self.down_until = 0
        self.armed: list[Fault] = []
        self._missed_watch = False

    def run(self) -> Told:
        """Live it; the record."""
        logger = logging.getLogger("servingslo")
        handler = _Lines(self.told, lambda: self.cluster.now)
        before = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            asyncio.run(self._live())
        finally:
            logger.removeHandler(handler)
            logger.level, logger.propagate = before
        return self.told

    def made(self) -> Operator:
        """A new process of the operator."""
        return Operator(self.cluster)

    async def _live(self) -> None:
        cluster = self.cluster
        cluster.put(NAME, self.spec)
        for tick in range(self.told.ticks):
            at = tick * TICK_SECONDS + SCRAPE_PHASE_SECONDS + 2.0
            cluster.pass_to(at + self.told.stood_still)
            self._set(tick - WARM_TICKS)
            if self.operator is None and tick >= self.down_until:
                self.operator = self.made()
            if self.operator is None:
                continue
            try:
                await self.operator.tick()
            except Killed:
                await self._bury(tick)
        self._end()

    async def _bury(self, tick: int) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self.operator is not None:
            self.operator.end()
        self.operator = None
        self.down_until = tick + self.rng.choice((1, 1, 2, 4))

    def _end(self) -> None:
        cluster, told = self.cluster, self.told
        record = cluster.records[NAME]
        learned = learned_of(record.status)
        told.writes = cluster.writes
        told.events, told.status_writes = cluster.events, cluster.status_writes
        told.storm_end = (WARM_TICKS + STORM_TICKS) * TICK_SECONDS + told.stood_still
        told.ending = Ending(
            counts={name: world.desired for name, world in cluster.worlds.items()},
            rate=self.rate(cluster.now),
            peak=cluster.peak_rate(0.0, cluster.now),
            status=record.status,
            spec=record.spec,
            learned_bytes=len(repr(learned)),
        )
        if self.operator is not None:
            self.operator.end()

    def _watched(self) -> None:
        """The watch brings the resources as they are, where it has no gap."""
        if self.operator is None:
            return
        if self.cluster.watch_gap:
            self._missed_watch = True
        else:
            self.operator.registry.replace_all(self.cluster.records.values())

    def _at_point(self, point: str) -> None:
        """The operator has come to one of its steps: whoever waits for it there strikes."""
        for fault in [f for f in self.armed if _point(f) == point]:
            self.armed.remove(fault)
            rng = fault.rng()
            if fault.kind == "killed":
                self.told.deaths.append((self.cluster.now, point))
                raise Killed
            rng.random()
            seconds = rng.choice((5.0, 20.0, 70.0, 180.0))
            self.cluster.spend(seconds)
            # Between the answer of the operator's last look and its request nothing can be done
            # about it but to look again when that took long: a person acts at every other step.
            unseen = point == "write" or (point == "looked" and seconds <= LOOK_SECONDS)
            if rng.random() < 0.5 and not unseen:
                self._person(rng.choice(("paused", "recommend", "bounds", "hpa-now")), rng)

    # What is in force

    def _set(self, tick: int) -> None:
        """Bring about what this tick of the storm has, and end what is over."""
        faults = [f for f in self.told.faults if f.start <= tick < f.end]
        kinds = {f.kind for f in faults}
        cluster, prometheus = self.cluster, self.cluster.prometheus
        if tick == STORM_TICKS:
            self._calm()
            return
        prometheus.down, prometheus.empty = "down" in kinds, "empty" in kinds
        prometheus.partial, prometheus.repeated = "partial" in kinds, "repeated" in kinds
        prometheus.shuffled = "shuffled" in kinds
        prometheus.scrapes_stop = "scrapes-stop" in kinds
        prometheus.second_source = "second-source" in kinds
        prometheus.slow_seconds = 1.5 if "slow" in kinds else 0.0
        prometheus.behind_seconds = 20.0 if "two-servers" in kinds else 0.0
        prometheus.clock_ahead = 45.0 * (("clock-ahead" in kinds) - ("clock-behind" in kinds))
        self._set_pages(faults)
        cluster.faults = [
            ServerFault(f.kind, f.rng().choice((0.2, 0.5, 1.0)))
            for f in faults
            if f.kind in SERVER and f.kind != "watch-gap"
        ]
        cluster.watch_gap = "watch-gap" in kinds
        if not cluster.watch_gap and self._missed_watch:
            self._missed_watch = False
            self._watched()
        cluster.gone = {self._strike(f) for f in faults if f.kind == "target-gone"}
        for fault in self.told.faults:
            if fault.start == tick:
                self._begin(fault)
            if fault.end == tick:
                self._over(fault)
        back = next((f for f in faults if f.kind == "put-back"), None)
        if back is not None:
            self._strike(back)
            cluster.set_count(back.rng().randint(1, 5), "argocd-controller")

    def _set_pages(self, faults: list[Fault]) -> None:
        known = {how.seed: how for how in self.cluster.prometheus.distortions}
        found = []
        for fault in faults:
            if fault.kind not in PAGES:
                continue
            how = known.get(fault.seed)
            if how is None:
                rng, pods = fault.rng(), [p.name for p in self.cluster.pods]
                some = rng.sample(pods, max(1, int(len(pods) * rng.choice((0.3, 0.6, 1.0)))))
                how = Distortion(fault.kind, 1.0, frozenset(some), fault.seed)
            found.append(how)
        self.cluster.prometheus.distortions = found
        slow = {f.seed for f in faults if f.kind == "pod-slow"}
        living = {pod.name for pod in self.cluster.pods}
        self.cluster.sick = {pod for how in found for pod in how.pods & living} | slow

    def _strike(self, fault: Fault) -> str:
        """The target that a fault is about, which the cluster then acts on."""
        names = sorted(self.cluster.worlds)
        self.cluster.struck = names[fault.seed % len(names)]
        return self.cluster.struck

    def _begin(self, fault: Fault) -> None:
        cluster, rng = self.cluster, fault.rng()
        self._strike(fault)
        match fault.kind:
            case "killed" | "frozen":
                self.armed.append(fault)
            case "wall-clock":
                cluster.wall_offset += rng.choice((-3600.0, -60.0, 60.0, 3600.0))
            case "node-gone":
                cluster.lose_pods(rng.choice((1, 2)))
            case "thawed":
                self._thaw(rng.choice((20.0, 70.0, 180.0, 300.0)))
            case "begun-anew":
                cluster.spend(rng.uniform(0.0, 12.0))
                many = rng.randint(1, len(cluster.world.pods) or 1)
                cluster.begin_anew(many, container_started=rng.random() < 0.5)
            case "pod-restart":
                cluster.restart_pod(rng.randrange(9))
            case "pod-slow":
                cluster.restart_pod(rng.randrange(9), rng.choice((3.0, 20.0)))
            case "gpu-shortage":
                cluster.room(len(cluster.world.pods))
            case "rollout":
                if not cluster.world.rollout:
                    cluster.world.roll_out(f"t{fault.seed}", "vllm:1")
            case "paused" | "recommend" | "bounds" | "recreated" | "deleted" | "by-hand":
                self._person(fault.kind, rng)
            case "hpa":
                self._scaled_by_another()
            case "rival" if not cluster.watch_gap:
                # None that is made can be older than ours: an owner that was there was seen.
                cluster.put(RIVAL, {**self.spec, "mode": "Recommend"}, uid="uid-rival")

    def _thaw(self, seconds: float) -> None:
        """The operator is stopped and goes on: it looks, and again after a window of a second."""
        began = self.cluster.now
        self.cluster.thaw(seconds)
        self.told.stood_still += self.cluster.now - began

    def _person(self, what: str, rng: random.Random) -> None:
        """What somebody does to the resource or to the count."""
        cluster = self.cluster
        match what:
            case "paused" | "recommend":
                cluster.put(NAME, {**self.spec, "mode": what.capitalize()})
            case "bounds":
                low = rng.randint(1, 4)
                bounds = {"min": low, "max": low + rng.randint(0, 4)}
                cluster.put(NAME, self._bounded(bounds))
            case "recreated":
                low = rng.randint(1, 4)
                bounds = {"min": low, "max": low + 3}
                cluster.put(NAME, self._bounded(bounds), uid=f"uid-{rng.getrandbits(32)}")
            case "deleted":
                cluster.delete(NAME)
            case "by-hand":
                cluster.set_count(rng.randint(1, 6), "kubectl-scale")
            case "hpa-now":
                self._scaled_by_another()

    def _bounded(self, bounds: Mapping[str, int]) -> dict[str, Any]:
        """The spec with other bounds, of the target that is struck."""
        if "pools" not in self.spec:
            return {**self.spec, "replicas": bounds}
        pools = [
            {**pool, "replicas": bounds}
            if pool["targetRef"]["name"] == self.cluster.struck
            else pool
            for pool in self.spec["pools"]
        ]
        return {**self.spec, "pools": pools}

    def _scaled_by_another(self) -> None:
        self.cluster.scaled_by = {self.cluster.struck: ("HorizontalPodAutoscaler/llama",)}

    def _over(self, fault: Fault) -> None:
        cluster = self.cluster
        self._strike(fault)
        match fault.kind:
            case "paused" | "recommend" | "bounds" | "recreated" | "deleted":
                cluster.put(NAME, self.spec)
            case "gpu-shortage":
                cluster.room(None)
            case "pod-slow":
                self.cluster.heal()
            case "hpa":
                cluster.scaled_by = {}
            case "rival":
                cluster.delete(RIVAL)

    def _calm(self) -> None:
        """All faults are over; the resource is what it was at first."""
        cluster, prometheus = self.cluster, self.cluster.prometheus
        prometheus.down = prometheus.empty = prometheus.scrapes_stop = False
        prometheus.partial = prometheus.repeated = prometheus.shuffled = False
        prometheus.second_source = False
        prometheus.slow_seconds = prometheus.behind_seconds = prometheus.clock_ahead = 0.0
        prometheus.distortions = []
        cluster.faults, cluster.watch_gap, cluster.gone = [], False, set()
        cluster.scaled_by, cluster.sick = {}, set()
        for target in cluster.worlds:
            cluster.struck = target
            cluster.settle_rollout()
            cluster.room(None)
            cluster.heal()
        self.armed = []
        cluster.delete(RIVAL)
        cluster.put(NAME, self.spec)
        self._watched()


def _world(rng: random.Random, rate: Callable[[float], float], **others: Any) -> World:
    lengths = {"prompt_median": 400.0, "output_median": 600.0}
    return World(
        rate=rate,
        replicas=rng.choice((1, 2, 3)),
        seed=rng.randrange(1 << 16),
        cold_start=rng.choice((30.0, 60.0, 120.0)),
        **{**lengths, **others},
    )


def _pools(rng: random.Random, rate: Callable[[float], float]) -> dict[str, World]:
    """Prefill, whose answers are of one token, and decode, whose prompts come with their cache."""
    return {
        PREFILL: _world(rng, rate, named=PREFILL, output_median=1.0),
        DECODE: _world(rng, rate, named=DECODE, prompt_median=16.0),
    }


def of_pools(spec: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """The spec with a prefill and a decode pool in place of its target, some bounded in GPUs."""
    pools = [
        {
            "name": name,
            "role": role,
            "targetRef": {**spec["targetRef"], "name": target},
            "replicas": spec["replicas"],
            "batching": spec["batching"],
            "gpusPerReplica": 1,
        }
        for name, role, target in (("prefill", "Prefill", PREFILL), ("decode", "Decode", DECODE))
    ]
    of_one = {"targetRef", "replicas", "batching"}
    found = {name: value for name, value in spec.items() if name not in of_one}
    gpus = rng.choice((None, 8, 16))
    return {**found, "pools": pools, **({} if gpus is None else {"gpus": gpus})}


def _point(fault: Fault) -> str:
    return fault.rng().choice(POINTS)


def _demand(rng: random.Random) -> Callable[[float], float]:
    """A rate over time: steady, with a step, or a slow wave; requests per second."""
    base = rng.choice((0.8, 1.5, 2.5, 4.0))
    kind = rng.choice(("steady", "steady", "step", "wave"))
    if kind == "steady":
        return lambda _seconds: base
    if kind == "step":
        at, factor = rng.uniform(200.0, 900.0), rng.choice((0.3, 0.6, 1.8, 2.5))
        return lambda seconds: base * (factor if seconds >= at else 1.0)
    period = rng.uniform(900.0, 2400.0)
    return lambda seconds: base * (1.0 + 0.6 * _triangle(seconds / period))


def _triangle(phase: float) -> float:
    return 1.0 - 4.0 * abs(phase % 1.0 - 0.5)


def _spec(rng: random.Random) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
        "objectives": [
            {"metric": "ttft", "percentile": 95, "threshold": "2s"},
            {"metric": "tpot", "percentile": 95, "threshold": "60ms"},
        ],
        "replicas": {"min": 1, "max": 12},
        "batching": {"mode": rng.choice(("Off", "Off", "Off", "Off", "Recommend"))},
    }
    if rng.random() < 0.25:
        spec["fallback"] = {"behavior": "Floor", "replicas": rng.choice((2, 4))}
    if rng.random() < 0.3:
        spec["admission"] = {"mode": "Recommend"}
    return spec
