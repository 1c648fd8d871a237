"""The production planner on the virtual clock with its other knobs: batch limits, queue bounds."""

import math
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
import pytest

from servingslo.copying import replace
from servingslo.models.engine.service_time import EngineLimits
from servingslo.policy.inputs import Observation
from servingslo.policy.stages import STAGES, choose_reserve
from servingslo_lab.sim.fleets.cluster import ROLLOUT_SURGE_RATIO, Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.production import Knobs, Production, benchmark_targets
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.backend import compiled_backend
from servingslo_lab.sim.traces.workloads import (
    RateCourse,
    constant,
    generated,
    step,
    uniform_lengths,
)

TTFT_SECONDS, TPOT_SECONDS = 1.0, 0.05
LARGEST = 14
COLD_START_SECONDS, SCRAPE_SECONDS = 45.0, 15.0
# Five minutes: one scrape of many arrivals moves the count by one.
LAST_TICKS = 20
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
def few_sequences(
    knobs: Knobs,
    course: RateCourse = constant(8.0, 1500.0),  # noqa: B008
    *,
    reserve: bool = True,
) -> Run:
    """Twenty-five minutes of a small card whose batch limit is far below what its memory holds."""
    limits = EngineLimits(max_num_seqs=8, max_num_batched_tokens=2048, kv_capacity_tokens=60_000)
    fleet = FleetSpec(
        engine="l4-small", limits=limits, initial_replicas=14, max_replicas=LARGEST,
        cold_start=ColdStart(mean_seconds=COLD_START_SECONDS, variation_ratio=0.0),
    )  # fmt: skip
    load = generated(course, LENGTHS, np.random.default_rng(1))
    planner = Watched(knobs)
    if not reserve:
        learners = tuple(one for one in STAGES.learners if one is not choose_reserve)
        planner.stages = replace(STAGES, learners=learners)
    result = simulate(fleet, load, planner, seed=1, backend=compiled_backend())
    return Run(planner=planner, result=result)


def test_batch_limits_of_the_planner_are_rolled_out_to_every_pod():
    """One change, a quarter of the pods at a time, each a cold start long; none keeps the old ones.

    It waits until the fleet, begun too large, has shrunk: pods that go need no restart.
    """
    run = few_sequences(Knobs(batching=True))
    changes = [
        (seen.time_seconds, asked.limits)
        for seen, asked in zip(run.planner.seen, run.planner.asked, strict=True)
        if asked.limits is not None
    ]
    rolling = [seen.time_seconds for seen in run.planner.seen if seen.rollout_in_progress]
    last = [pod for pod in run.planner.seen[-1].pods if pod.ready and not pod.deleting]

    (at, limits) = changes[0]
    assert limits.max_num_seqs > 8
    assert limits.kv_capacity_tokens == 60_000
    assert len({asked for _, asked in changes}) == 1
    assert rolling[0] == pytest.approx(at + SCRAPE_SECONDS)
    count = next(seen.current_replicas for seen in run.planner.seen if seen.time_seconds == at)
    assert count < 14
    at_a_time = math.ceil(ROLLOUT_SURGE_RATIO * count)
    turns = math.ceil(count / at_a_time)
    assert rolling[-1] - at == pytest.approx(turns * COLD_START_SECONDS, abs=SCRAPE_SECONDS)
    scraped = {engine.max_num_seqs for pod in last for engine in pod.engines}
    assert scraped == {limits.max_num_seqs}
    during = [tick for tick in run.result.ticks if at < tick.time_seconds < rolling[-1]]
    assert all(min(count, tick.desired) <= tick.ready <= count + at_a_time for tick in during)


def test_replicas_are_given_back_while_the_planners_own_change_is_rolled_out():
    """Demand falls to a quarter just after the change: no cold start of every pod is waited for."""
    run = few_sequences(
        Knobs(batching=True),
        step(8.0, 2.0, at_seconds=360.0, duration_seconds=1200.0),
        reserve=False,  # seven minutes of past ask for what they had
    )
    asked = [wanted.limits is not None for wanted in run.planner.asked]
    before = run.planner.seen[asked.index(True)].desired_replicas
    rolling = [seen for seen in run.planner.seen if seen.rollout_in_progress]
    limits = run.planner.asked[asked.index(True)].limits

    assert rolling[-1].time_seconds > 360.0
    assert min(seen.desired_replicas for seen in rolling) < before
    assert not run.planner.seen[-1].rollout_in_progress
    last = [pod for pod in run.planner.seen[-1].pods if pod.ready and not pod.deleting]
    assert {e.max_num_seqs for pod in last for e in pod.engines} == {limits.max_num_seqs}
    assert run.share > 0.99


def test_better_batch_limits_save_replicas_at_the_same_objectives():
    """What the knob is for: after the rollout fewer replicas carry the same load."""
    without, with_batching = few_sequences(Knobs()), few_sequences(Knobs(batching=True))

    fewer, more = (
        median(seen.desired_replicas for seen in run.planner.seen[-LAST_TICKS:])
        for run in (with_batching, without)
    )
    assert fewer < 0.7 * more
    assert min(without.share, with_batching.share) > 0.99


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
