"""A day at three error budgets: does the share come out as asked for, and at what cost?

The day is the Azure conversation hour 24 times, each time begun at another minute and laid over
itself, thinned to a day's wave; so it has the wave of a day, and the bursts of the trace.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.benchmarks.matrix import COLD_START_SECONDS, KEPT, SMALL, TRACE

from servingslo_lab.sim.backtest import run_cell
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.policies import ORACLE, OURS, policy_of
from servingslo_lab.sim.production import benchmark_targets
from servingslo_lab.sim.scenario import Cell, Scenario
from servingslo_lab.sim.traces.trace import Trace, read_trace
from servingslo_lab.sim.traces.trace_files import write_trace
from servingslo_lab.sim.traces.transforms import scaled, superposed
from servingslo_lab.sim.traces.workloads import diurnal

HOURS = 24
# The peak has four times the trace's rate, about eight replicas of the small card.
PEAK_COPIES, TROUGH_RATIO = 4.0, 0.25
PERCENTILES = (95.0, 99.0, 99.9)
DAY_SEEDS = (1, 2)
# Misses over the budget, at most.
BUDGET_FACTOR = 1.3


def day(seed: int) -> Trace:
    """One day of conversation."""
    rng = np.random.default_rng([seed, HOURS])
    hour = read_trace(TRACE)
    hours = [
        _begun_elsewhere(scaled(hour, PEAK_COPIES, rng), place * hour.duration_seconds, rng)
        for place in range(HOURS)
    ]
    whole = superposed(*hours)
    course = diurnal(1.0, TROUGH_RATIO, whole.duration_seconds)
    kept = rng.random(len(whole)) < np.interp(
        whole.arrival_seconds, course.times_seconds, course.rates_per_second
    )
    return replace(
        whole,
        arrival_seconds=whole.arrival_seconds[kept],
        prompt_tokens=whole.prompt_tokens[kept],
        output_tokens=whole.output_tokens[kept],
    )


def _begun_elsewhere(hour: Trace, start_seconds: float, rng: np.random.Generator) -> Trace:
    length = hour.duration_seconds
    moved = np.mod(hour.arrival_seconds + rng.uniform(0.0, length), length)
    order = np.argsort(moved, kind="stable")
    return replace(
        hour,
        arrival_seconds=start_seconds + moved[order],
        prompt_tokens=hour.prompt_tokens[order],
        output_tokens=hour.output_tokens[order],
        duration_seconds=start_seconds + length,
    )


def scenario_of(percentile: float, seed: int, folder: Path = KEPT) -> Scenario:
    """The day on the small card, with both objectives at this percentile."""
    path = folder / f"day-{seed}.csv"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_trace(day(seed), path)
    return Scenario(
        name=f"day, {percentile:g} %",
        fleet=FleetSpec(engine=SMALL, cold_start=ColdStart(mean_seconds=COLD_START_SECONDS)),
        trace_path=str(path),
        targets=benchmark_targets(percentile=percentile),
        warm=True,
    )


def outcomes_of_days(seeds: Sequence[int], folder: Path = KEPT) -> list[Outcome]:
    """The oracle and ours at every budget."""
    return [
        run_cell(
            Cell(
                scenario=scenario_of(percentile, seed, folder),
                policy=policy_of(name),
                seed=seed,
                with_timeline=name == OURS,
            ),
            folder,
        )
        for percentile in PERCENTILES
        for seed in seeds
        for name in (ORACLE, OURS)
    ]


def burn(outcome: Outcome, percentile: float) -> float | None:
    """Share of requests that missed over the share that may."""
    if outcome.score is None:
        return None
    return (1.0 - outcome.score.share_ratio) / (1.0 - percentile / 100.0)
