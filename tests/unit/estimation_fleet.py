"""A simulated fleet seen as Prometheus would show it: snapshots of pods at scrape times."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo_lab.sim.fleets.engine_kinds import EngineKind
from servingslo_lab.sim.fleets.service import Routing, Service
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.engine import Engine
from servingslo_lab.sim.replicas.step_table import StepTable

SCRAPE_SECONDS = 15.0
COLD_START_SECONDS = 100.0
SETTLED_SECONDS = 200.0


@dataclass
class Traffic:
    """Requests in the order of their arrival, offered as time goes on."""

    arrivals: np.ndarray
    prompts: np.ndarray
    outputs: np.ndarray
    cached_ratio: float = 0.0
    offered: int = 0

    def offer(self, service: Service, until: float) -> None:
        """Those that have arrived by then and were not offered before."""
        while self.offered < len(self.arrivals) and self.arrivals[self.offered] <= until:
            service.offer(
                arrival=float(self.arrivals[self.offered]),
                prompt_tokens=int(self.prompts[self.offered]),
                output_tokens=int(self.outputs[self.offered]),
                cached_ratio=self.cached_ratio,
            )
            self.offered += 1


@dataclass
class SimulatedFleet:
    """Engines of one kind behind a gateway; every pod is scraped at its own moment.

    steps: measured step times, in place of the kind's law.
    """

    kind: EngineKind
    replicas: int
    routing: Routing = Routing.LEAST_LOADED
    max_queued: int | None = None
    template_hash: str = "v1"
    steps: StepTable | None = None
    service: Service = field(init=False)
    engines: dict[str, Engine] = field(init=False, default_factory=dict)
    scraped: dict[str, tuple[float, EngineSample]] = field(init=False, default_factory=dict)
    ready_since: dict[str, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.service = Service(routing=self.routing, random_state=1)
        for number in range(self.replicas):
            self.add(f"pod-{number}", -SETTLED_SECONDS)

    def add(self, name: str, now: float) -> None:
        """A pod becomes ready."""
        engine = Engine(
            law=self.kind.law,
            limits=self.kind.limits,
            requests=self.service.requests,
            max_queued=self.max_queued,
        )
        if self.steps is not None:
            layout.follow_table(engine.row, self.steps.numbers)
        self.engines[name] = engine
        self.ready_since[name] = now
        self.service.add(name, engine, max(now, 0.0))

    def remove(self, name: str, now: float) -> None:
        """A pod goes away with the requests in it."""
        self.service.remove(name, now, drain=False)
        for known in (self.engines, self.ready_since, self.scraped):
            known.pop(name, None)

    def run(
        self,
        arrivals: np.ndarray,
        prompts: np.ndarray,
        outputs: np.ndarray,
        *,
        until: float,
        cached_ratio: float = 0.0,
        at_tick: Callable[[float], None] | None = None,
    ) -> Iterator[FleetSample]:
        """The fleet's snapshots, one every 15 s."""
        traffic = Traffic(arrivals, prompts, outputs, cached_ratio)
        ticks = int(until // SCRAPE_SECONDS)
        for tick in range(1, ticks + 1):
            now = tick * SCRAPE_SECONDS
            names = list(self.engines)
            moments = sorted(
                (now - SCRAPE_SECONDS + _phase(name) * SCRAPE_SECONDS, name) for name in names
            )
            for moment, name in (*moments, (now, "")):
                traffic.offer(self.service, moment)
                self.service.advance(moment)
                if name:
                    self.scraped[name] = (moment, engine_sample(self.engines[name]))
            yield self.snapshot(now)
            if at_tick is not None:
                at_tick(now)

    def snapshot(self, now: float) -> FleetSample:
        """The pods as they were last scraped."""
        return FleetSample(
            time_seconds=now,
            pods=tuple(
                PodSample(
                    name=name,
                    template_hash=self.template_hash,
                    image="engine:1",
                    gpu_product=self.kind.gpu_product,
                    ready=True,
                    age_seconds=now - self.ready_since[name] + COLD_START_SECONDS,
                    ready_for_seconds=now - self.ready_since[name],
                    ready_after_seconds=COLD_START_SECONDS,
                    scheduled_after_seconds=2.0,
                    engines=(_aged(*self.scraped[name], now),) if name in self.scraped else (),
                )
                for name in self.engines
            ),
        )


def engine_sample(engine: Engine) -> EngineSample:
    """What the engine exports now."""
    count = engine.counter
    return EngineSample(
        engine="0",
        running=float(engine.running),
        waiting=float(engine.waiting),
        kv_usage_ratio=engine.kv_usage_ratio,
        kv_capacity_tokens=engine.limits.kv_capacity_tokens,
        kv_block_tokens=engine.limits.kv_block_tokens,
        max_num_seqs=engine.limits.max_num_seqs,
        max_num_batched_tokens=engine.limits.max_num_batched_tokens,
        prompt_tokens_total=float(count(layout.PROMPT_TOKENS)),
        cached_prompt_tokens_total=float(count(layout.CACHED_TOKENS)),
        generation_tokens_total=float(count(layout.GENERATED_TOKENS)),
        finished_total={"length": float(count(layout.SUCCESSES))},
        preempted_total=float(count(layout.PREEMPTIONS)),
        rejected_total=float(count(layout.REJECTIONS)),
        ttft_seconds=_histogram(engine, layout.TTFT),
        inter_token_seconds=_histogram(engine, layout.ITL),
        time_per_output_token_seconds=_histogram(engine, layout.TPOT),
        latency_seconds=_histogram(engine, layout.E2E),
        queue_seconds=_histogram(engine, layout.QUEUE),
        prompt_tokens=_histogram(engine, layout.PROMPT_LENGTH),
        output_tokens=_histogram(engine, layout.OUTPUT_LENGTH),
        iteration_tokens=_histogram(engine, layout.ITERATION),
    )


def _histogram(engine: Engine, number: int) -> HistogramSample:
    histogram = engine.histogram(number)
    return HistogramSample(
        upper_bounds=(*histogram.upper_bounds, float("inf")),
        cumulative_counts=tuple(float(c) for c in histogram.cumulative_counts),
        sum=histogram.sum,
        count=float(histogram.count),
    )


def _aged(moment: float, sample: EngineSample, now: float) -> EngineSample:
    age = now - moment
    return replace(
        sample, gauges_age_seconds=age, counters_age_seconds=age, histograms_age_seconds=age
    )


def _phase(name: str) -> float:
    """When in the interval a pod is scraped, by its name, as Prometheus spreads its targets."""
    return zlib.crc32(name.encode()) % 997 / 997.0


def page_of(
    served: float,
    *,
    running: float = 4.0,
    waiting: float = 0.0,
    age: float = 1.0,
    slow: float = 0.0,
) -> EngineSample:
    """An engine that has served so many requests. slow: of them, with a first token after 9 s."""
    usual = served - slow
    return EngineSample(
        engine="0",
        gauges_age_seconds=age,
        counters_age_seconds=age,
        histograms_age_seconds=age,
        running=running,
        waiting=waiting,
        kv_usage_ratio=0.3,
        generation_tokens_total=200.0 * served,
        prompt_tokens_total=1000.0 * served,
        finished_total={"stop": served},
        ttft_seconds=HistogramSample(
            upper_bounds=(1.0, float("inf")),
            cumulative_counts=(usual, served),
            sum=9.0 * slow + 0.1 * usual,
            count=served,
        ),
    )


def poisson(rate: float, duration: float, rng: np.random.Generator) -> np.ndarray:
    """Arrival times of a Poisson process."""
    count = rng.poisson(rate * duration)
    return np.sort(rng.uniform(0.0, duration, count))
