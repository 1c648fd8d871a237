"""A small world for the planner: simulated engines behind a gateway, pods that start and stop."""

import functools
import math
from dataclasses import dataclass, field, replace

import numpy as np

from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.sample import (
    EngineLaunch,
    EngineSample,
    GPUSample,
    HistogramSample,
    PodSample,
)
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.hpa_behavior import (
    DEFAULT_DOWN_WINDOW_SECONDS,
    Behavior,
    ScalingRules,
)
from servingslo.policy.inputs import (
    BatchingMode,
    BatchingTargets,
    Limits,
    Observation,
    ReplicaTargets,
    ScaleTarget,
    Targets,
)
from servingslo.policy.planner import observe, plan
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.state import PlannerState
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.fleets.service import Service
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.engine import Engine, Outcome

TICK_SECONDS = 15.0
SCRAPE_AGE_SECONDS = 2.0
OLD_SECONDS = 3600.0
RETRY_SECONDS = 10.0
TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama"),
    objectives=(
        Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),
        Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.05),
    ),
    replicas=ReplicaTargets(minimum=1, maximum=12),
)
# For stories about the replica count, which no advice on batch limits changes: its search takes
# half of a tick.
REPLICAS_ONLY = replace(TARGETS, batching=BatchingTargets(mode=BatchingMode.OFF))

# For stories about something else than the release of replicas in the first five minutes.
STATED_WINDOW = Behavior(
    scale_down=ScalingRules(stabilization_window_seconds=DEFAULT_DOWN_WINDOW_SECONDS)
)


NO_PLACE = "Insufficient nvidia.com/gpu"


@dataclass
class Pod:
    """A pod of the target."""

    name: str
    created: float
    ready_at: float
    template: str
    image: str = "vllm:1"
    slowness: float = 1.0
    unschedulable: bool = False
    deleted: bool = False


@dataclass
class World:
    """The truth, and what Prometheus and Kubernetes would show of it.

    rate: arrivals per second at a time. cold_start: seconds from creation to readiness.
    room: pods that the cluster can place, None for any number. gate: holds the others back from the
    scheduler, '' where that finds them no place. crash: why they fail, if they are placed and crash
    instead. max_queued: bound on running +
    waiting of each engine. retries: how often a refused request comes again, after 10 s each.
    history: of the arrival rate, which the first observation brings. stuck_pods: whose counters and
    gauges no longer move. xid_errors: of the GPU of a pod, by its name. going_seen: pods that were
    removed are seen, and scraped, until they have finished what they had. launch: what command
    lines say. named: how names of its pods begin.
    """

    rate: object
    replicas: int
    kind: str = "l4-small"
    cold_start: float = 60.0
    room: int | None = None
    gate: str = ""
    crash: str = ""
    seed: int = 1
    max_num_seqs: int | None = None
    prompt_median: float = 600.0
    output_median: float = 120.0
    now: float = 0.0
    records: list = field(default_factory=list)
    hidden_pods: set = field(default_factory=set)
    silent_gauges: bool = False
    frozen_at: float | None = None
    max_queued: int | None = None
    retries: int = 0
    rollout: bool = False
    problems: tuple = ()
    history: RateHistory | None = None
    stuck_pods: set = field(default_factory=set)
    xid_errors: dict = field(default_factory=dict)
    going_seen: bool = False
    launch: EngineLaunch | None = None
    named: str = "llama"

    def __post_init__(self):
        self.random = np.random.default_rng(self.seed)
        self.service = Service()
        self.spec = engine_kind(self.kind)
        self.desired = self.replicas
        self.pods = []
        self.count = 0
        self.template, self.image, self.slowness = "t1", "vllm:1", 1.0
        self.coming_again = []
        self.tried = {}
        self.last_samples = {}
        self.going = []
        self.next_arrival = 0.0
        for _ in range(self.replicas):
            self._create(ready_at=-OLD_SECONDS)
        self._start_ready()

    def _create(self, ready_at=None):
        self.count += 1
        name = f"{self.named}-{self.count}"
        at = self.now + self.cold_start if ready_at is None else ready_at
        created = self.now if ready_at is None else ready_at - self.cold_start
        placed = self.room is None or len([p for p in self.pods if not p.unschedulable]) < self.room
        self.pods.append(
            Pod(
                name,
                created,
                at if placed else math.inf,
                self.template,
                image=self.image,
                slowness=self.slowness,
                unschedulable=not placed,
            )
        )

    def slow_down(self, name, slowness):
        """From now on the steps of this pod take so many times as long."""
        self.service.engines[name].row.floats[layout.SLOWNESS] = slowness

    def roll_out(self, template, image, slowness=1.0):
        """A new pod template: each old pod goes when a new one is ready in its place."""
        self.template, self.image, self.slowness = template, image, slowness
        self.rollout = True
        for _ in range(len(self.pods)):
            self._create()

    def _retire(self):
        """Old pods beyond the count wanted go, as many as new ones have become ready."""
        old = [p for p in self.pods if p.template != self.template]
        ready = [p for p in self.pods if p.template == self.template and p.ready_at <= self.now]
        for pod in old[: max(len(ready) + len(old) - self.desired, 0)] if ready else ():
            self.pods.remove(pod)
            self.service.remove(pod.name, self.now, drain=True)
        self.rollout = any(p.template != self.template for p in self.pods)

    def _engine(self, slowness=1.0):
        limits = self.spec.limits
        if self.max_num_seqs is not None:
            limits = type(limits)(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                kv_capacity_tokens=limits.kv_capacity_tokens,
            )
        return Engine(
            law=self.spec.law,
            limits=limits,
            requests=self.service.requests,
            max_model_len=16384,
            max_queued=self.max_queued,
            slowness=slowness,
        )

    def _start_ready(self):
        for pod in self.pods:
            if pod.ready_at <= self.now and pod.name not in self.service.engines:
                self.service.add(pod.name, self._engine(pod.slowness), self.now)
        if any(p.template != self.template for p in self.pods):
            self._retire()

    def scale(self, count):
        """The target's controller follows a new count; pods that are not ready go first."""
        self.desired = count
        while len(self.pods) > count:
            victim = max(self.pods, key=lambda p: (p.ready_at, p.created))
            self.pods.remove(victim)
            if victim.name in self.service.engines:
                self.service.remove(victim.name, self.now, drain=True)
                self.going.append(victim)
        while len(self.pods) < count:
            self._create()

    def advance(self, until):
        """Arrivals, engines and pods up to this time."""
        events = sorted({p.ready_at for p in self.pods if self.now < p.ready_at <= until} | {until})
        for event in events:
            self._arrivals(event)
            over = self.service.advance(event)
            self.records += over
            self.now = event
            self._come_again(over)
            self._start_ready()

    def _arrivals(self, until):
        peak = 1e-9 + max(self.rate(self.now), self.rate(until), self.rate((self.now + until) / 2))
        at = max(self.next_arrival, self.now)
        while True:
            gap = self.random.exponential(1.0 / peak)
            at += gap
            if at > until:
                break
            if self.random.random() * peak <= self.rate(at):
                self.service.offer(
                    arrival=at,
                    prompt_tokens=int(min(self._length(self.prompt_median, 1.0), 8000)),
                    output_tokens=int(min(self._length(self.output_median, self._spread), 2000)),
                )
        self.next_arrival = until

    @property
    def _spread(self):
        """Of answers; those of a prefill pool are of one token each."""
        return 0.8 if self.output_median > 1.0 else 0.0

    def _come_again(self, over):
        """Refused requests are offered again after a while, as clients that retry do."""
        due = [r for r in self.coming_again if r[0] <= self.now]
        self.coming_again = [r for r in self.coming_again if r[0] > self.now]
        for _, tries, record in sorted(due, key=lambda entry: entry[0]):
            self.service.offer(
                arrival=self.now,
                prompt_tokens=record.prompt_tokens,
                output_tokens=record.output_tokens,
            )
            self.tried[self.now, record.prompt_tokens] = tries
        for record in over:
            tries = self.tried.pop((record.arrival_seconds, record.prompt_tokens), 0)
            if record.outcome is Outcome.REJECTED and tries < self.retries:
                self.coming_again.append((self.now + RETRY_SECONDS, tries + 1, record))

    def _length(self, median, sigma):
        return max(1.0, self.random.lognormal(math.log(median), sigma))

    def observe(self, at):
        """The observation of the tick at this time, scraped a moment before."""
        if self.frozen_at is None:
            self.advance(at - SCRAPE_AGE_SECONDS)
            stuck = {n: s for n, s in self.last_samples.items() if n in self.stuck_pods}
            engines = self.service.engines | (self.service.draining if self.going_seen else {})
            fresh = {n: self._sample(e) for n, e in engines.items() if n not in stuck}
            self.last_samples = stuck | fresh
        self.advance(at)
        age = SCRAPE_AGE_SECONDS if self.frozen_at is None else at - self.frozen_at
        history, self.history = self.history, None
        return Observation(
            time_seconds=at,
            namespace="inference",
            name="llama",
            desired_replicas=self.desired,
            current_replicas=len(self.pods),
            rollout_in_progress=self.rollout,
            runtime="vllm",
            pods=tuple(self._pod(pod, age) for pod in (*self.pods, *self._seen_going())),
            problems=self.problems,
            history=history,
        )

    def _seen_going(self):
        """Pods that finish what they had, as Kubernetes lists them."""
        draining = self.service.draining if self.going_seen else {}
        return [pod for pod in self.going if pod.name in draining]

    def _pod(self, pod, age):
        ready = pod.ready_at <= self.now
        sample = self.last_samples.get(pod.name)
        engines = ()
        if sample is not None and ready and pod.name not in self.hidden_pods:
            engines = (self._aged(sample, age),)
        placeless = pod.unschedulable and not self.crash
        return PodSample(
            name=pod.name,
            template_hash=pod.template,
            image=pod.image,
            gpu_product=self.spec.gpu_product,
            ready=ready,
            deleting=pod in self.going,
            age_seconds=self.now - pod.created,
            scheduled_after_seconds=None if pod.unschedulable else 1.0,
            ready_after_seconds=pod.ready_at - pod.created if ready else None,
            ready_for_seconds=self.now - pod.ready_at if ready else None,
            unschedulable_reason=NO_PLACE if placeless and not self.gate else None,
            queued_reason=self.gate if placeless and self.gate else None,
            failing_reason=self.crash if pod.unschedulable and self.crash else None,
            engines=engines,
            gpus=self._gpus(pod, age),
            launch=self.launch,
        )

    def _gpus(self, pod, age):
        error = self.xid_errors.get(pod.name)
        return () if error is None else (GPUSample(gpu="0", age_seconds=age, xid_error=error),)

    def _aged(self, values, age):
        ages = {f"{group}_age_seconds": age for group in ("gauges", "counters", "histograms")}
        if self.silent_gauges:
            values = {
                "engine": "0",
                "nan_metrics": ("vllm:num_requests_running",),
            }
        return EngineSample(**values, **ages)

    def _sample(self, engine):
        limits = engine.limits
        return {
            "engine": "0",
            "running": float(engine.running),
            "waiting": float(engine.waiting),
            "kv_usage_ratio": engine.kv_usage_ratio,
            "kv_capacity_tokens": limits.kv_capacity_tokens,
            "kv_block_tokens": 16,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "prompt_tokens_total": float(engine.counter(layout.PROMPT_TOKENS)),
            "cached_prompt_tokens_total": float(engine.counter(layout.CACHED_TOKENS)),
            "generation_tokens_total": float(engine.counter(layout.GENERATED_TOKENS)),
            "finished_total": {"stop": float(engine.counter(layout.SUCCESSES))},
            "preempted_total": float(engine.counter(layout.PREEMPTIONS)),
            "rejected_total": float(engine.counter(layout.REJECTIONS)),
            "ttft_seconds": _histogram(engine, layout.TTFT),
            "inter_token_seconds": _histogram(engine, layout.ITL),
            "time_per_output_token_seconds": _histogram(engine, layout.TPOT),
            "latency_seconds": _histogram(engine, layout.E2E),
            "queue_seconds": _histogram(engine, layout.QUEUE),
            "prompt_tokens": _histogram(engine, layout.PROMPT_LENGTH),
            "output_tokens": _histogram(engine, layout.OUTPUT_LENGTH),
            "iteration_tokens": _histogram(engine, layout.ITERATION),
        }


def _histogram(engine, number):
    found = engine.histogram(number)
    return HistogramSample(
        upper_bounds=found.upper_bounds,
        cumulative_counts=tuple(float(c) for c in found.cumulative_counts[:-1]),
        sum=found.sum,
        count=float(found.count),
    )


@dataclass
class Run:
    """A world with a planner that acts on it, and everything that was decided."""

    world: World
    targets: object
    limits: object
    state: PlannerState = field(default_factory=PlannerState)
    decisions: list = field(default_factory=list)
    observations: list = field(default_factory=list)

    def until(self, end):
        """Tick up to this time."""
        while self.world.now + TICK_SECONDS <= end + 1e-9:
            self.tick()
        return self

    def tick(self):
        """One tick: observe, decide, act. The decision."""
        at = (math.floor(self.world.now / TICK_SECONDS + 1e-9) + 1) * TICK_SECONDS
        observation = self.world.observe(at)
        decision, self.state = plan(observation, self.targets, self.limits, self.state, at)
        self.observations.append(observation)
        self.decisions.append(decision)
        if decision.apply_replicas:
            self.world.scale(decision.replicas_after)
        return decision

    def at(self, seconds):
        """The decision made at this time."""
        return next(d for d in self.decisions if d.time_seconds == seconds)

    def between(self, start, end):
        """The decisions made from start to end."""
        return [d for d in self.decisions if start <= d.time_seconds <= end]

    def share_within(self, ttft, tpot, start=0.0, end=math.inf):
        """Share of the finished requests that came in this time and met both objectives."""
        judged = [r for r in self.world.records if start <= r.arrival_seconds < end]
        return sum(r.meets(ttft, tpot) for r in judged) / max(len(judged), 1)


def steady(rate):
    """A rate that never changes."""
    return lambda _seconds: rate


def stepped(*levels):
    """A rate that changes at given times: (from seconds, rate), in order."""

    def rate(seconds):
        return [value for since, value in levels if since <= seconds][-1]

    return rate


def run(world, targets=REPLICAS_ONLY, limits=None):
    """A story that has not begun."""
    return Run(world, targets, limits or Limits())


def reasons(decision):
    """The reasons of all steps."""
    return {step.reason for step in decision.steps}


@functools.cache
def settled_context() -> TickContext:
    """A tick of three replicas after five minutes of a steady load: nothing forbids anything."""
    told = run(World(rate=steady(4.0), replicas=3))
    told.until(300.0)
    at = 300.0 + TICK_SECONDS
    return observe(told.world.observe(at), REPLICAS_ONLY, Limits(), told.state, at).context
