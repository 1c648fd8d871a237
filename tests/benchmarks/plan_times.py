"""What a plan costs: CPU time of `plan()` and of its estimate, and loads whose laws are evaluated.

    python -m tests.benchmarks.plan_times [--pods 10,44] [--minutes 40] [--seed 1]

The planner scales a simulated fleet under requests of the Azure trace's lengths. The rate swings a
little around what this many pods serve, so that counts and lengths drift as they do in production.

On 27 pods in the mean (`--pods 44`), on two cores: median 4.9 ms, of which the estimate takes 2.6;
99th percentile 11 ms, at ticks that search for batch limits (23 loads at most). On 41 pods
(`--pods 72`): 6.2, 3.5 and 12 ms. At 51 and 44 of 120 ticks no load is evaluated.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.benchmarks.matrix import COLD_START_SECONDS, SMALL, TRACE
from tests.benchmarks.matrix_blind_cases import points

from servingslo.estimation import estimator
from servingslo.models.fleet.latency import LatencyModel
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits, Observation
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Action
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.production import benchmark_targets
from servingslo_lab.sim.traces.trace import Trace, read_trace
from servingslo_lab.sim.traces.workloads import generated, lengths_of

# Requests per second that a pod serves within the objectives of the benchmark.
POD_RATE_PER_SECOND = 1.5
SWING_RATIO = 0.15
# Until lengths, law and calibration are known.
WARM_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What one tick took. loads: whose laws were evaluated. holds: no count is changed."""

    plan_seconds: float
    estimate_seconds: float
    loads: int
    holds: bool
    pods: int


@dataclass
class Meter:
    """Seconds and loads of the functions that it stands around."""

    seconds: float = 0.0
    loads: int = 0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its CPU time added."""

        def called(*arguments: Any) -> Any:
            began = time.thread_time()
            found = function(*arguments)
            self.seconds += time.thread_time() - began
            return found

        return called

    def counted(self, predict_many: Callable[..., Any]) -> Callable[..., Any]:
        """The method, its loads added."""

        def called(model: LatencyModel, rates: Sequence[float], *others: Any) -> Any:
            self.loads += len(rates)
            return predict_many(model, rates, *others)

        return called


@dataclass
class Measured:
    """The planner as an autoscaler of the simulator, measured."""

    meter: Meter
    max_replicas: int
    state: PlannerState = field(default_factory=PlannerState)
    ticks: list[Tick] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def decide(self, observation: Observation) -> Wanted:
        """Plan and measure."""
        targets = benchmark_targets(max_replicas=self.max_replicas)
        self.meter.seconds, self.meter.loads = 0.0, 0
        now, began = observation.time_seconds, time.thread_time()
        decision, self.state = plan(observation, targets, Limits(), self.state, now)
        seconds = time.thread_time() - began
        self.decisions.append(decision)
        if now >= WARM_SECONDS:
            self.ticks.append(
                Tick(
                    plan_seconds=seconds,
                    estimate_seconds=self.meter.seconds,
                    loads=self.meter.loads,
                    holds=decision.action is Action.HOLD,
                    pods=len(observation.pods),
                )
            )
        return Wanted(replicas=decision.replicas_after if decision.apply_replicas else None)


def traffic(pods: int, minutes: int, seed: int) -> Trace:
    """Requests for about this many pods; the rate moves to another value every five minutes."""
    rng = np.random.default_rng([pods, seed])
    rates = pods * POD_RATE_PER_SECOND * (1.0 + SWING_RATIO * rng.uniform(-1, 1, minutes // 5 + 1))
    course = points(*((5.0 * place, float(rate)) for place, rate in enumerate(rates)))
    return generated(course, lengths_of(read_trace(TRACE)), rng)


def measured(pods: int, minutes: int, seed: int) -> Measured:
    """The planner after a run."""
    meter = Meter()
    fleet = FleetSpec(
        engine=SMALL,
        initial_replicas=pods,
        max_replicas=2 * pods,
        cold_start=ColdStart(mean_seconds=COLD_START_SECONDS),
    )
    planner = Measured(meter=meter, max_replicas=2 * pods)
    update, predict_many = estimator.update, LatencyModel.predict_many
    estimator.update = meter.timed(update)
    LatencyModel.predict_many = meter.counted(predict_many)  # type: ignore[method-assign]
    try:
        simulate(fleet, traffic(pods, minutes, seed), planner, seed=seed)
    finally:
        estimator.update = update
        LatencyModel.predict_many = predict_many  # type: ignore[method-assign]
    return planner


def row(name: str, ticks: Sequence[Tick]) -> str:
    """Median and 99th percentile of a group of ticks."""
    plans, estimates, loads = (
        np.percentile([getattr(tick, part) for tick in ticks], [50, 99, 100])
        for part in ("plan_seconds", "estimate_seconds", "loads")
    )
    return (
        f"{name:>24} {len(ticks):6d}"
        f" {1e3 * plans[0]:9.2f} {1e3 * plans[1]:8.2f}"
        f" {1e3 * estimates[0]:9.2f} {1e3 * estimates[1]:8.2f}"
        f" {loads[0]:9.0f} {loads[2]:8.0f} {sum(tick.loads == 0 for tick in ticks):6d}"
    )


def main() -> None:
    """Print a table: all ticks of each run, and those that hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", default="10,44")
    parser.add_argument("--minutes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    sys.stdout.write(
        f"{'':>24} {'ticks':>6} {'plan p50':>9} {'p99, ms':>8} {'est. p50':>9} {'p99, ms':>8}"
        f" {'loads p50':>9} {'most':>8} {'none':>6}\n"
    )
    for pods in map(int, chosen.pods.split(",")):
        ticks = measured(pods, chosen.minutes, chosen.seed).ticks
        counts = [tick.pods for tick in ticks]
        name = f"{min(counts)}-{max(counts)} pods"
        sys.stdout.write(f"{row(name, ticks)}\n")
        sys.stdout.write(f"{row('of those hold', [tick for tick in ticks if tick.holds])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
