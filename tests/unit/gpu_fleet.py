"""Simulated engines with the readings that DCGM's exporter would give of their GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from estimation_fleet import SCRAPE_SECONDS, SimulatedFleet, Traffic, engine_sample, poisson

from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.sample import GPUSample, PodSample
from servingslo.models.engine.service_time import ServiceLaw
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
IDLE_WATTS, BUSY_WATTS = 70.0, 500.0
# NVML: a reading is of a second at most. dcgm-exporter reads anew after 30 s, two scrapes here.
READING_SECONDS = 1.0
TICKS_OF_A_READING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """How readings differ from the engine's busy share.

    kernel_ratio: of the engine's busy time in which kernels run. foreign_ratio: of the rest in
    which another process's run. utilization, power: whether they are exported.
    """

    kernel_ratio: float = 1.0
    foreign_ratio: float = 0.0
    utilization: bool = True
    power: bool = True

    def reading(self, busy_ratio: float) -> GPUSample:
        """One GPU's sample at this busy share of its engine."""
        own = self.kernel_ratio * busy_ratio
        ratio = own + self.foreign_ratio * (1.0 - own)
        return GPUSample(
            gpu="0",
            age_seconds=1.0,
            utilization_ratio=ratio if self.utilization else None,
            power_watts=IDLE_WATTS + (BUSY_WATTS - IDLE_WATTS) * ratio if self.power else None,
        )


def estimates(
    rate_per_replica: float,
    cards: Cards | None,
    *,
    replicas: int = 4,
    seconds: float = 600.0,
    stated: ServiceLaw | None = None,
    seed: int = 7,
) -> Iterator[Estimate]:
    """Yield the estimate of each tick; cards: None without GPU metrics."""
    rng = np.random.default_rng(seed)
    trace = read_trace(TRACE)
    arrivals = poisson(rate_per_replica * replicas, seconds, rng)
    chosen = rng.integers(0, len(trace), len(arrivals))
    traffic = Traffic(
        arrivals, np.array(trace.prompt_tokens)[chosen], np.array(trace.output_tokens)[chosen]
    )
    fleet = SimulatedFleet(kind=engine_kind("h100-8b"), replicas=replicas)
    state = EstimatorState()
    for sample in _samples(fleet, traffic, cards, seconds):
        state, estimate = update(state, replace(sample, service_law=stated))
        yield estimate


def _samples(
    fleet: SimulatedFleet, traffic: Traffic, cards: Cards | None, seconds: float
) -> Iterator[FleetSample]:
    readings: dict[str, tuple[GPUSample, ...]] = {}
    for tick in range(1, int(seconds // SCRAPE_SECONDS) + 1):
        now = tick * SCRAPE_SECONDS
        busy = {}
        for moment in (now - READING_SECONDS, now):
            traffic.offer(fleet.service, moment)
            fleet.service.advance(moment)
            busy[moment] = {name: one.busy_seconds for name, one in fleet.engines.items()}
        for name, engine in fleet.engines.items():
            fleet.scraped[name] = (now, engine_sample(engine))
            if cards is not None and tick % TICKS_OF_A_READING == 1:
                share = (busy[now][name] - busy[now - READING_SECONDS][name]) / READING_SECONDS
                readings[name] = (cards.reading(min(max(share, 0.0), 1.0)),)
        sample = fleet.snapshot(now)
        yield replace(sample, pods=tuple(_with(pod, readings) for pod in sample.pods))


def _with(pod: PodSample, readings: dict[str, tuple[GPUSample, ...]]) -> PodSample:
    return replace(pod, gpus=readings.get(pod.name, ()))
