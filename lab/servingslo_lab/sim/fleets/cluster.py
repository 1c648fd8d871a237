"""A fleet on a virtual clock: a trace, engines that start and fail, and an autoscaler.

The autoscaler is called once in each scrape interval and gets an `Observation`, never the truth.
All randomness comes from the seed. With the same seed, runs of two autoscalers are equal as long as
their decisions are.
"""

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from servingslo.models.engine.service_time import EngineLimits
from servingslo.policy.inputs import Observation
from servingslo.runtimes.engines.vllm import VLLM
from servingslo.units import SECONDS_PER_HOUR
from servingslo_lab.sim.fleets.columns import client_table, request_columns, since_first_attempt
from servingslo_lab.sim.fleets.events import publish
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.lanes import gateway_fields, lanes_of
from servingslo_lab.sim.fleets.nodes import Nodes
from servingslo_lab.sim.fleets.observing import engine_sample
from servingslo_lab.sim.fleets.pods import (
    WORKLOAD_NAME,
    WORKLOAD_NAMESPACE,
    PodPhase,
    SimulatedPod,
    paid_seconds,
    pod_sample,
    removal_order,
)
from servingslo_lab.sim.fleets.result import RunResult, Tick, results_of, tick_of
from servingslo_lab.sim.fleets.service import RULES
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.backend import Backend, best_backend
from servingslo_lab.sim.replicas.engine import POLICIES
from servingslo_lab.sim.replicas.layout import EngineRow
from servingslo_lab.sim.replicas.routing import REQUESTS, new_gateway
from servingslo_lab.sim.traces.trace import Trace

FINISHING_SECONDS = 120.0
"""Requests must end within this time after the last arrival, or they miss."""
WARM_SECONDS = 3600.0
"""Age of the pods that exist at the beginning of a trace."""
# Extra pods that a rolling update starts, as a share of the replica count, rounded up.
# Source: Kubernetes, Deployment, `maxSurge` by default. `maxUnavailable` is 0 here: a new pod takes
# minutes to start, so no pod is removed before it is ready.
ROLLOUT_SURGE_RATIO = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An autoscaler's request; None does not change a knob.

    max_queued: bound on running + waiting of each engine, max_waiting: on waiting only, both
    enforced from now on. limits: of all engines; a change restarts all pods by a rolling update.
    lanes: the bounds of classes that change. rates: requests per second of paced classes.
    nodes_ahead: that are kept free.
    """

    replicas: int | None = None
    max_queued: int | None = None
    max_waiting: int | None = None
    limits: EngineLimits | None = None
    lanes: Mapping[str, int | None] = field(default_factory=dict)
    nodes_ahead: int | None = None
    rates: Mapping[str, float] = field(default_factory=dict)


class Autoscaler(Protocol):
    """Anything that decides from observations."""

    def decide(self, observation: Observation) -> Wanted:
        """Return the current request."""


class Cluster:
    """A fleet that serves a trace; use `simulate`."""

    def __init__(self, fleet: FleetSpec, trace: Trace, seed: int, backend: Backend) -> None:
        self.fleet = fleet
        self.trace = trace
        self.requests = backend.requests(request_columns(trace, fleet.cached_ratio))
        self.clients = client_table(trace, fleet.clients, backend)
        self.lanes = lanes_of(fleet.classes, trace.class_names)
        self.rows = backend.rows()
        self.serving: list[int] = []
        self._backend = backend
        gateway = new_gateway(RULES[fleet.routing], seed)
        gateway[REQUESTS] = len(trace)
        self._gateway = backend.integers(gateway)
        self.pods: list[SimulatedPod] = []
        self.live: list[SimulatedPod] = []
        self.desired = 0
        self.limits = fleet.engine_limits
        self.generation = 0
        self.max_queued = fleet.max_queued
        self.max_waiting: int | None = None
        self.now = 0.0
        self.ticks: list[Tick] = []
        self._starts = np.random.default_rng([seed, 1])
        self._failures = np.random.default_rng([seed, 2])
        self._cards = np.random.default_rng([seed, 3])
        self._reclaims = np.random.default_rng([seed, 4])
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_number = 0
        self.nodes = self._nodes(np.random.default_rng([seed, 5]))
        self._await_reclaim()

    def _nodes(self, random: np.random.Generator) -> Nodes | None:
        if (spec := self.fleet.nodes) is None:
            return None
        return Nodes(
            spec=spec,
            at=self._at,
            draw=lambda: spec.start.drawn(float(random.standard_normal())),
            placed=self._schedule_pods,
            most=self.fleet.gpu_quota,
        )

    # Pods

    def scale(self, replicas: int) -> None:
        """Order or remove pods to reach this replica count."""
        most = self.fleet.max_replicas
        self.desired = max(replicas if most is None else min(replicas, most), 0)
        while len(self.live) < self.desired:
            self._order()
        for pod in sorted(self.live, key=removal_order)[: len(self.live) - self.desired]:
            self._remove(pod)
        self._continue_rollout()

    def warm_start(self, replicas: int) -> None:
        """Begin with this many pods, ready since long ago; their start is not paid for."""
        self.desired = replicas
        for _ in range(replicas):
            pod = self._new_pod()
            pod.ordered = pod.scheduled = self.now - WARM_SECONDS
            self._ready(pod)
            pod.ready = pod.ordered + self._cold_start()
        if self.nodes is not None:
            self.nodes.up = replicas

    def _new_pod(self) -> SimulatedPod:
        pod = SimulatedPod(
            number=len(self.pods), ordered=self.now, limits=self.limits, generation=self.generation
        )
        self.pods.append(pod)
        self.live.append(pod)
        return pod

    def _order(self) -> None:
        pod = self._new_pod()
        pod.phase = PodPhase.UNSCHEDULABLE
        self._schedule_pods()

    def _schedule_pods(self) -> None:
        self._place_pods()
        if self.nodes is not None:
            waiting = sum(pod.phase is PodPhase.UNSCHEDULABLE for pod in self.live)
            self.nodes.balance(self.now, self.holding, waiting)

    def _place_pods(self) -> None:
        free = self._free_gpus()
        for pod in self.live:
            if pod.phase is PodPhase.UNSCHEDULABLE and free > 0:
                free -= 1
                pod.phase = PodPhase.STARTING
                pod.scheduled = self.now
                self._at(self.now + self._cold_start(), self._becomes_ready(pod))

    @property
    def holding(self) -> int:
        """Number of pods that hold a GPU."""
        return sum(pod.holds_gpu for pod in self.pods)

    def _free_gpus(self) -> float:
        if self.nodes is not None:
            return self.nodes.up - self.holding
        return math.inf if (quota := self.fleet.gpu_quota) is None else quota - self.holding

    def _cold_start(self) -> float:
        return self.fleet.cold_start.drawn(float(self._starts.standard_normal()))

    def _becomes_ready(self, pod: SimulatedPod) -> Callable[[], None]:
        def happen() -> None:
            if pod.phase is PodPhase.STARTING:
                self._ready(pod)

        return happen

    def _ready(self, pod: SimulatedPod) -> None:
        pod.phase = PodPhase.READY
        pod.ready = self.now
        pod.row = len(self.rows)
        self.rows.append(self._backend.row(self._new_engine(pod)))
        self.serving.append(pod.row)
        if (mean := self.fleet.mean_seconds_to_failure) is not None:
            self._at(self.now + float(self._failures.exponential(mean)), self._fails(pod))
        self._continue_rollout()

    def _new_engine(self, pod: SimulatedPod) -> EngineRow:
        fleet = self.fleet
        row = layout.new_engine(
            fleet.engine_law, pod.limits, max_queued=self.max_queued, max_waiting=self.max_waiting,
            policy=POLICIES[fleet.scheduling], session_count=self.trace.session_count,
        )  # fmt: skip
        if fleet.steps is not None:
            layout.follow_table(row, fleet.steps.numbers)
        if (batching := fleet.dynamic_batching) is not None:
            layout.make_dynamic(row, batching.instances, batching.max_queue_delay_seconds)
        slow = fleet.slow_pods
        if slow.share_ratio > 0 and self._cards.random() < slow.share_ratio:
            pod.slowness = slow.factor
        row.floats[layout.SLOWNESS] = pod.slowness * fleet.slowing.factor_at(self.now)
        return row

    def _fails(self, pod: SimulatedPod) -> Callable[[], None]:
        def happen() -> None:
            if pod.phase in {PodPhase.READY, PodPhase.DRAINING}:
                replace = pod.phase is PodPhase.READY
                self._end(pod, drain=False)
                if replace:
                    self.scale(self.desired)

        return happen

    def _await_reclaim(self) -> None:
        if self.fleet.spot is not None:
            mean = SECONDS_PER_HOUR / self.fleet.spot.events_per_hour
            self._at(self.now + float(self._reclaims.exponential(mean)), self._reclaim)

    def _reclaim(self) -> None:
        """Take a share of the ready pods at once, and order their replacements."""
        ready = [pod for pod in self.live if pod.phase is PodPhase.READY]
        if self.fleet.spot is not None and ready:
            count = max(round(self.fleet.spot.lost_ratio * len(ready)), 1)
            for place in self._reclaims.permutation(len(ready))[:count].tolist():
                self._end(ready[place], drain=False)
            self.scale(self.desired)
        self._await_reclaim()

    def _remove(self, pod: SimulatedPod) -> None:
        self._end(pod, drain=self.fleet.drain)
        self._schedule_pods()

    def _end(self, pod: SimulatedPod, *, drain: bool) -> None:
        if pod in self.live:
            self.live.remove(pod)
        if pod.row != layout.NONE and pod.row in self.serving:
            self.serving.remove(pod.row)
        if pod.row == layout.NONE or not drain:
            if pod.row != layout.NONE:
                self._lose(pod.row)
            pod.phase = PodPhase.GONE
            pod.ended = self.now
        else:
            pod.phase = PodPhase.DRAINING
            if self.fleet.drain_seconds is not None:
                self._at(self.now + self.fleet.drain_seconds, self._drained(pod))

    def _drained(self, pod: SimulatedPod) -> Callable[[], None]:
        def happen() -> None:
            if pod.phase is PodPhase.DRAINING:
                self._end(pod, drain=False)
                self._schedule_pods()

        return happen

    def _lose(self, place: int) -> None:
        self._backend.lose(self.requests, self.clients, self.rows, place, self._gateway, self.now)

    def billed_seconds(self, end: float) -> float:
        """Paid replica time until `end`: from when a pod gets its GPU until its removal.

        Of nodes that have to be ordered: from their order until they go.
        """
        if self.nodes is not None:
            return self.nodes.paid_seconds(end)
        return sum(paid_seconds(pod, end) for pod in self.pods)

    def tick(self) -> Tick:
        """The current state of the fleet."""
        return tick_of(self.now, self.desired, [self.rows[place] for place in self.serving])

    def apply(self, wanted: Wanted) -> None:
        """Carry out an autoscaler's request."""
        if wanted.limits is not None:
            self.change_limits(wanted.limits)
        self.bound_queues(wanted.max_queued, wanted.max_waiting)
        if self.lanes is not None:
            self.lanes.set_bounds(wanted.lanes)
            self.lanes.set_rates(wanted.rates)
        if self.nodes is not None and wanted.nodes_ahead is not None:
            # Node autoscalers look every few seconds: they see both changes at once.
            self.nodes.ahead = wanted.nodes_ahead
        if wanted.replicas is not None and wanted.replicas != self.desired:
            self.scale(wanted.replicas)
        if self.nodes is not None:
            self._schedule_pods()

    def change_limits(self, limits: EngineLimits) -> None:
        """Roll out new limits: each old pod is removed when its replacement is ready."""
        if limits == self.limits:
            return
        self.limits = limits
        self.generation += 1
        self._continue_rollout()

    def _continue_rollout(self) -> None:
        """Remove old pods that are no longer needed, and order new ones up to the surge limit."""
        old = [pod for pod in self.live if pod.generation != self.generation]
        if not old:
            return
        ready = sum(pod.phase is PodPhase.READY for pod in self.live)
        for _ in range(min(ready - self.desired, len(old))):
            self._end(old.pop(), drain=self.fleet.drain)
            self._schedule_pods()
        surge = math.ceil(ROLLOUT_SURGE_RATIO * self.desired)
        lacking = self.desired - (len(self.live) - len(old))
        for _ in range(min(self.desired + surge - len(self.live), lacking)):
            self._order()

    def bound_queues(self, max_queued: int | None, max_waiting: int | None) -> None:
        """Change the bounds of every engine at once; None does not change a bound."""
        for place in self.serving:
            ints = self.rows[place].ints
            if max_queued is not None:
                ints[layout.QUEUE_BOUND] = max_queued
            if max_waiting is not None:
                ints[layout.WAITING_BOUND] = max_waiting
        self.max_queued = self.max_queued if max_queued is None else max_queued
        self.max_waiting = self.max_waiting if max_waiting is None else max_waiting

    # Time

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        self._event_number += 1
        heapq.heappush(self._events, (time, self._event_number, happen))

    def run_until(self, until: float) -> None:
        """Simulate requests, pod starts and failures until this time, for all engines."""
        while self._events and self._events[0][0] <= until:
            time, _, happen = heapq.heappop(self._events)
            self._serve(time)
            self.now = time
            happen()
        self._serve(until)
        self.now = until
        for pod in self.pods:
            if pod.phase in {PodPhase.READY, PodPhase.DRAINING}:
                row = self.rows[pod.row]
                row.floats[layout.SLOWNESS] = pod.slowness * self.fleet.slowing.factor_at(until)
                self._backend.advance(self.requests, self.rows, pod.row, until)
                empty = row.ints[layout.RUNNING] + row.ints[layout.WAITING_COUNT] == 0
                if pod.phase is PodPhase.DRAINING and empty:
                    pod.phase = PodPhase.GONE
                    pod.ended = until
                    self._schedule_pods()

    def _serve(self, until: float) -> None:
        backend = self._backend
        serving = backend.integers(self.serving)
        if self.lanes is not None:
            self.lanes.serve(backend, self.requests, self.rows, serving, self._gateway, until)
        elif self.clients is None:
            backend.serve(self.requests, self.rows, serving, self._gateway, until)
        else:
            backend.serve_clients(
                self.requests, self.clients, self.rows, serving, self._gateway, until
            )

    def scrape(self) -> None:
        """Read all engines, as Prometheus would at this moment."""
        for pod in self.live:
            if pod.phase is PodPhase.READY:
                pod.scraped = engine_sample(self.rows[pod.row], pod.limits, 0.0)
        if self.lanes is not None:
            self.lanes.scrape()

    def observe(self, scraped_at: float) -> Observation:
        """The autoscaler's current observation."""
        age = self.now - scraped_at
        return Observation(
            time_seconds=self.now,
            namespace=WORKLOAD_NAMESPACE,
            name=WORKLOAD_NAME,
            uid=WORKLOAD_NAME,
            generation=1,
            desired_replicas=self.desired,
            current_replicas=len(self.live),
            rollout_in_progress=any(pod.generation != self.generation for pod in self.live),
            # Its engines export vLLM's metrics.
            runtime=VLLM.name,
            pods=tuple(pod_sample(pod, self.now, age) for pod in self.pods if pod.ended is None),
            **gateway_fields(self.lanes, age),
        )


def simulate(
    fleet: FleetSpec,
    trace: Trace,
    autoscaler: Autoscaler,
    *,
    seed: int,
    backend: Backend | None = None,
) -> RunResult:
    """Serve the trace with the fleet under this autoscaler.

    The trace's arrivals are fixed; the seed is for cold starts, failures and random routing.
    backend: by default the best one that is installed.
    """
    cluster = Cluster(fleet, trace, seed, backend or best_backend())
    cluster.warm_start(fleet.initial_replicas)
    interval, lag = fleet.scrape_interval_seconds, fleet.scrape_lag_seconds
    tick = interval
    while tick < trace.duration_seconds:
        cluster.run_until(tick - lag)
        cluster.scrape()
        cluster.run_until(tick)
        publish(autoscaler, cluster.live, cluster.rows, cluster.requests, trace, tick)
        wanted = autoscaler.decide(cluster.observe(tick - lag))
        cluster.apply(wanted)
        cluster.ticks.append(cluster.tick())
        tick += interval
    cluster.run_until(trace.duration_seconds)
    billed = cluster.billed_seconds(trace.duration_seconds)
    cluster.run_until(trace.duration_seconds + FINISHING_SECONDS)
    result = results_of(
        cluster.requests, duration_seconds=trace.duration_seconds, replica_seconds=billed,
        ticks=tuple(cluster.ticks),
        class_names=trace.class_names if cluster.lanes is not None else None,
    )  # fmt: skip
    if cluster.clients is None:
        return result
    return since_first_attempt(result, trace, cluster.requests, cluster.clients)
