"""The admitted rate over time: of replicas that serve, and of the mix of now."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import Run, World, stepped

from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import AdmissionMode, Limits, ReplicaTargets
from servingslo.policy.replicas.demand import DEFAULT_WAIT_BUDGET_SECONDS, wait_budget_seconds


def test_the_admitted_rate_is_of_the_replicas_and_the_mix_of_the_same_tick():
    """While demand swings by half: what the frontier says, no more than utilization allows."""
    targets = replace(TARGETS, admission_mode=AdmissionMode.RECOMMEND)
    world = World(rate=lambda at: 12.0 + 6.0 * math.sin(at / 120.0), replicas=4)
    story = Run(world, targets, Limits())
    compared = 0
    while story.world.now < 900.0:
        decision = story.tick()
        sized = story.state.sized
        if decision.admission.admitted_rate_per_second is None or sized is None:
            continue
        serving = decision.replicas.ready
        rates = [
            sized.case.greatest_rate_per_second(objective, serving)
            for objective in sized.case.objectives
        ]
        ceiling = sized.case.utilization_target_ratio * sized.case.saturation_per_second * serving
        assert decision.admission.admitted_rate_per_second == min(ceiling, *rates)
        compared += 1
    assert compared > 30


def _story(cold_start=120.0):
    """A step from 6/s to 14/s on three replicas that takes several more, far from ready."""
    targets = replace(
        TARGETS,
        admission_mode=AdmissionMode.RECOMMEND,
        replicas=ReplicaTargets(minimum=1, maximum=40),
    )
    world = World(rate=stepped((0, 6.0), (600, 14.0)), replicas=3, cold_start=cold_start)
    return Run(world, targets, Limits()).until(705)


def test_bounds_are_of_replicas_that_serve_and_not_of_those_on_their_way():
    """While many come the admitted rate stays that of the few; what is beyond it is shed."""
    story = _story()
    before, coming = story.at(600.0), story.at(690.0)
    assert coming.replicas.ready == before.replicas.ready
    assert coming.replicas.pending >= 3
    admitted = coming.admission.admitted_rate_per_second
    assert admitted == pytest.approx(before.admission.admitted_rate_per_second, rel=0.15)
    arriving = coming.demand.arrival_rate_per_second
    assert coming.admission.shed_ratio == pytest.approx(1.0 - admitted / arriving, abs=0.05)
    assert coming.admission.shed_ratio > 0.2
    story.until(900)
    there = story.at(900.0)
    assert there.replicas.ready > before.replicas.ready
    assert there.admission.admitted_rate_per_second > 1.5 * admitted
    assert there.admission.shed_ratio == 0.0


def test_the_queue_bound_of_a_replica_is_what_it_serves_within_the_wait_budget():
    """Q = μ·w, whatever the number of replicas."""
    story = _story()
    decision, prepared = story.at(690.0), story.state.prepared
    budget = wait_budget_seconds(story.targets, prepared)
    expected = prepared.model.saturation_rate_per_second * budget
    assert decision.admission.queue_limit == max(1, math.floor(expected))
    assert decision.admission.in_flight_limit > decision.admission.queue_limit


def _objective(metric, threshold_seconds, percentile=95.0):
    return Objective(metric=metric, percentile=percentile, threshold_seconds=threshold_seconds)


@pytest.mark.parametrize(
    ("objectives", "alone", "budget"),
    [
        pytest.param((), {}, DEFAULT_WAIT_BUDGET_SECONDS, id="none"),
        pytest.param((("tpot", 0.05),), {}, DEFAULT_WAIT_BUDGET_SECONDS, id="tpot-says-nothing"),
        pytest.param((("ttft", 1.0),), {"ttft": 0.3}, 0.7, id="ttft-less-what-it-takes-alone"),
        pytest.param((("ttft", 0.2),), {"ttft": 0.3}, 0.0, id="no-time-left"),
        pytest.param((("queueTime", 0.25), ("ttft", 1.0)), {"ttft": 0.3}, 0.25, id="the-least"),
        pytest.param((("latency", 9.0), ("ttft", 1.0)), {"latency": 8.5}, 0.5, id="end-to-end"),
    ],
)
def test_a_request_may_wait_for_what_the_objectives_leave(objectives, alone, budget):
    """The least over objectives of threshold less the time of a request by itself."""
    goals = tuple(_objective(LatencyMetric(name), seconds) for name, seconds in objectives)
    frontier = SimpleNamespace(unloaded_seconds=lambda metric, _percentile: alone.get(metric, 0.0))
    mix = SimpleNamespace(frontier=frontier)
    targets = replace(TARGETS, objectives=goals)
    assert wait_budget_seconds(targets, mix) == pytest.approx(budget)
