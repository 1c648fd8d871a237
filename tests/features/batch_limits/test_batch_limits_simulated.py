"""The planner's batch limits on a simulated fleet: rolled out, and worth it."""

import math
from functools import cache
from statistics import median

import numpy as np
import pytest
from tests.unit.test_sim_production import (
    COLD_START_SECONDS,
    LARGEST,
    LENGTHS,
    SCRAPE_SECONDS,
    Run,
    Watched,
)

from servingslo.copying import replace
from servingslo.models.engine.service_time import EngineLimits
from servingslo.policy.stages import STAGES, choose_reserve
from servingslo_lab.sim.fleets.cluster import ROLLOUT_SURGE_RATIO, simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.production import Knobs
from servingslo_lab.sim.replicas.backend import compiled_backend
from servingslo_lab.sim.traces.workloads import RateCourse, constant, generated, step

# Five minutes: one scrape of many arrivals moves the count by one.
LAST_TICKS = 20


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
