"""What scrapes tell of the time from a pod's readiness to its first token, beside the truth.

Run as `python -m tests.benchmarks.first_tokens [seeds]`: a table of
docs/lab/findings.md.
Simulated engines that serve from the moment at which they are ready, least-loaded routing, Azure
conversation lengths, scrapes of 15 s at a moment of each pod's own; two pods are there, and one
becomes ready every half minute. 'At most' is the first scrape with a token in it. 'By steps' goes
back from there by steps times mean inter-token latency, the time that the engine has been busy.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tests.unit.estimation_fleet import SimulatedFleet, Traffic, engine_sample, poisson

from servingslo.estimation.sample import EngineSample
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
SCRAPE_SECONDS, STEP_SECONDS, BETWEEN_STARTS_SECONDS = 15.0, 0.05, 30.0
STARTS = 8
DEFAULT_SEEDS = 3
# Of all pods together, so that each has less with every start.
LOADS = (("h100-8b", 2.0), ("h100-8b", 20.0), ("l4-small", 0.5), ("l4-small", 5.0))
COLUMNS = ("card, rate", "truth", "of it prefill", "at most", "by steps")


def starts(name: str, rate: float, seed: int) -> Iterator[tuple[float, float, float, float]]:
    """Of each start in seconds since readiness: the first token, its prefill, and both guesses."""
    rng = np.random.default_rng(seed)
    trace = read_trace(TRACE)
    until = BETWEEN_STARTS_SECONDS * (STARTS + 2)
    arrivals = poisson(rate, until, rng)
    chosen = rng.integers(0, len(trace), len(arrivals))
    prompts, outputs = np.array(trace.prompt_tokens), np.array(trace.output_tokens)
    traffic = Traffic(arrivals, prompts[chosen], outputs[chosen])
    fleet = SimulatedFleet(kind=engine_kind(name), replicas=2)
    ready: dict[str, float] = {}
    phase: dict[str, float] = {}
    truth: dict[str, tuple[float, float]] = {}
    told: set[str] = set()
    for tick in range(1, int(until / STEP_SECONDS)):
        now = tick * STEP_SECONDS
        if len(ready) < STARTS and now >= BETWEEN_STARTS_SECONDS * (len(ready) + 1):
            pod = f"new-{len(ready)}"
            fleet.add(pod, now)
            ready[pod], phase[pod] = now, float(rng.uniform(0.0, SCRAPE_SECONDS))
        traffic.offer(fleet.service, now)
        fleet.service.advance(now)
        for pod, since in ready.items():
            engine = fleet.engines[pod]
            if pod not in truth and engine.histogram(layout.TTFT).count:
                first = engine.histogram(layout.TTFT)
                truth[pod] = now - since, first.sum / first.count
            scraped = (now - phase[pod]) % SCRAPE_SECONDS < STEP_SECONDS
            if scraped and pod not in told and engine.counter(layout.GENERATED_TOKENS):
                told.add(pod)
                bound = now - since
                yield *truth[pod], bound, bound - _busy_seconds(engine_sample(engine))


def _busy_seconds(sample: EngineSample) -> float:
    """Steps since the start times the mean inter-token latency."""
    steps, gaps = sample.iteration_tokens, sample.inter_token_seconds
    if steps is None or gaps is None or not gaps.count:
        return 0.0
    return steps.count * gaps.sum / gaps.count


def main(seeds: int) -> None:
    """Print the table: means over starts, in seconds."""
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n")
    sys.stdout.write("| --- " * len(COLUMNS) + "|\n")
    for name, rate in LOADS:
        found = [each for seed in range(seeds) for each in starts(name, rate, seed)]
        means = np.array(found).mean(axis=0)
        cells = [f"{name} {rate:g}/s", *(f"{value:.2f} s" for value in means)]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SEEDS)
