"""The measured rate of arrivals while new pods relieve a fleet, over the true one.

Run as `python -m tests.benchmarks.new_pods [seeds]`: a table of docs/lab/findings.md.
Four l4-small replicas get 6.8 requests a second, from 100 s on 17 (Azure conversation lengths, sent
where the fewest run), which is more than they can serve; four more become ready within one scrape
interval from 120 s on. Every pod is scraped at a moment of its own. A new one is found after a
while, as Prometheus reads its targets at intervals too. Looks are as far apart as scrapes.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tests.unit.estimation_fleet import SimulatedFleet, Traffic, engine_sample, poisson

from servingslo.estimation.estimator import EstimatorState, update
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
REPLICAS = 4
CALM_PER_SECOND, BUSY_PER_SECOND = 6.8, 17.0
BUSY_SECONDS, READY_SECONDS, SEEN_SECONDS, STEP_SECONDS = 100.0, 120.0, 60.0, 0.05
# Between scrapes; until a new pod is found.
SETTINGS = ((5.0, 0.0), (5.0, 6.0), (15.0, 0.0), (15.0, 6.0))
DEFAULT_SEEDS = 40
COLUMNS = ("scrapes every", "a new pod is found after", "least", "10th percentile", "mean", "most")


def measured(interval: float, found_after: float, seed: int) -> Iterator[float]:
    """Measured over true rate, at each look of the minute from the first new pod on."""
    rng = np.random.default_rng(seed)
    trace = read_trace(TRACE)
    until = READY_SECONDS + SEEN_SECONDS
    calm = poisson(CALM_PER_SECOND, BUSY_SECONDS, rng)
    busy = BUSY_SECONDS + poisson(BUSY_PER_SECOND, until - BUSY_SECONDS, rng)
    arrivals = np.concatenate((calm, busy))
    chosen = rng.integers(0, len(trace), len(arrivals))
    prompts, outputs = np.array(trace.prompt_tokens), np.array(trace.output_tokens)
    traffic = Traffic(arrivals, prompts[chosen], outputs[chosen])
    fleet = SimulatedFleet(kind=engine_kind("l4-small"), replicas=REPLICAS)
    phase = {name: float(rng.uniform(0.0, interval)) for name in fleet.engines}
    starting = {
        f"new-{number}": READY_SECONDS + float(rng.uniform(0.0, interval))
        for number in range(REPLICAS)
    }
    phase.update((name, float(rng.uniform(0.0, interval))) for name in starting)
    state = EstimatorState()
    for step in range(1, round(until / STEP_SECONDS) + 1):
        now = step * STEP_SECONDS
        for name in [name for name, ready in starting.items() if ready <= now]:
            fleet.add(name, now)
            del starting[name]
        traffic.offer(fleet.service, now)
        fleet.service.advance(now)
        for name, engine in fleet.engines.items():
            scraped = (now - phase[name]) % interval < STEP_SECONDS
            if scraped and now >= fleet.ready_since[name] + found_after:
                fleet.scraped[name] = now, engine_sample(engine)
        if now % interval < 0.5 * STEP_SECONDS or now % interval > interval - 0.5 * STEP_SECONDS:
            state, estimate = update(state, fleet.snapshot(now))
            if now > READY_SECONDS and estimate.offered_rate_per_second is not None:
                yield estimate.offered_rate_per_second / BUSY_PER_SECOND


def main(seeds: int) -> None:
    """Print the table, over seeds."""
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n")
    sys.stdout.write("|---" * len(COLUMNS) + "|\n")
    for interval, found_after in SETTINGS:
        ratios = [each for seed in range(seeds) for each in measured(interval, found_after, seed)]
        figures = min(ratios), np.quantile(ratios, 0.1), np.mean(ratios), max(ratios)
        cells = [f"{interval:g} s", f"{found_after:g} s", *(f"{value:.2f}" for value in figures)]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SEEDS)
