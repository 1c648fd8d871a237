"""The production planner on the virtual clock with another knob: queue bounds."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from servingslo.policy.inputs import Observation
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.production import Knobs, Production, benchmark_targets
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.backend import compiled_backend
from servingslo_lab.sim.traces.workloads import (
    generated,
    step,
    uniform_lengths,
)

TTFT_SECONDS, TPOT_SECONDS = 1.0, 0.05
LARGEST = 14
COLD_START_SECONDS, SCRAPE_SECONDS = 45.0, 15.0
LENGTHS = uniform_lengths((100, 3000), (20, 400))


class Watched(Production):
    """The planner, with all that it saw and asked for."""

    def __init__(self, knobs: Knobs, largest: int = LARGEST) -> None:
        targets = benchmark_targets(
            ttft_seconds=TTFT_SECONDS, tpot_seconds=TPOT_SECONDS, max_replicas=largest
        )
        super().__init__(targets, knobs)
        self.seen: list[Observation] = []
        self.asked: list[Wanted] = []

    def decide(self, observation: Observation) -> Wanted:
        """What the planner decides."""
        self.seen.append(observation)
        self.asked.append(super().decide(observation))
        return self.asked[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A planner and what came of it."""

    planner: Watched
    result: RunResult

    @property
    def share(self) -> float:
        """Of requests in SLO."""
        return self.result.share_in_slo(TTFT_SECONDS, TPOT_SECONDS)


@cache
def crowd(knobs: Knobs) -> Run:
    """A small fleet that may not grow, and three times what it can take after four minutes."""
    fleet = FleetSpec(engine="l4-small", initial_replicas=3, max_replicas=3)
    course = step(4.0, 24.0, at_seconds=240.0, duration_seconds=720.0)
    planner = Watched(knobs, largest=3)
    load = generated(course, LENGTHS, np.random.default_rng(2))
    result = simulate(fleet, load, planner, seed=1, backend=compiled_backend())
    return Run(planner=planner, result=result)


def test_queue_bound_of_the_planner_refuses_what_would_miss_anyway():
    """503s in an overload, none before it; engines never hold more than was allowed."""
    run = crowd(Knobs(admission=True))
    rejected = run.result.status == layout.REJECTED
    bounds = [asked.max_queued for asked in run.planner.asked]

    assert all(10 < bound < 64 for bound in bounds if bound is not None)
    assert rejected[run.result.arrival_seconds > 300.0].mean() > 0.3
    assert not rejected[run.result.arrival_seconds < 240.0].any()
    counted = sum(pod.engines[0].rejected_total for pod in run.planner.seen[-1].pods)
    before = run.result.arrival_seconds <= run.planner.seen[-1].time_seconds - 5.0
    assert counted == rejected[before].sum()
    largest = max(bound for bound in bounds if bound is not None)
    assert all(tick.running + tick.waiting <= 3 * largest for tick in run.result.ticks)
