"""The admitted rate over time: scaled to the replicas at once, computed a tick after a new mix."""

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from policy_world import TARGETS, Run, World, stepped

from servingslo.models.latency import LatencyMetric, Objective
from servingslo.policy.admission import LONGEST_DELAY_SECONDS
from servingslo.policy.demand import DEFAULT_WAIT_BUDGET_SECONDS, wait_budget_seconds
from servingslo.policy.inputs import AdmissionMode, Limits, ReplicaTargets


@pytest.fixture(scope="module")
def memories():
    """(time, mix, memory of admission) of every tick of a demand that swings by half."""
    targets = replace(TARGETS, admission_mode=AdmissionMode.RECOMMEND)
    world = World(rate=lambda at: 12.0 + 6.0 * math.sin(at / 120.0), replicas=4)
    story = Run(world, targets, Limits())
    found = []
    while story.world.now < 1500.0:
        decision = story.tick()
        state = story.state
        if state.admission is not None and state.mix is not None:
            assert decision.replicas.ready == state.admission.serving
            found.append((decision.time_seconds, state.mix, state.admission))
    return found


def test_only_the_tick_that_renews_a_mix_tells_a_rate_of_before(memories):
    """At the next tick it is computed; while the mix is renewed at every tick, once a minute."""
    outdated = [(at, mix, memory) for at, mix, memory in memories if memory.outdated_seconds]
    assert len(outdated) > 3
    for at, mix, memory in outdated:
        assert mix.at_seconds == at
        assert at - memory.outdated_seconds < LONGEST_DELAY_SECONDS
    for _, mix, memory in memories:
        assert (memory.outdated_seconds is None) == (memory.mix_at_seconds == mix.at_seconds)


def test_until_then_it_is_scaled_to_the_replicas_that_serve(memories):
    """A bound relaxes as soon as capacity is there, and tightens as soon as it is not."""
    scaled = 0
    for (_, _, before), (_, _, after) in pairwise(memories):
        if after.outdated_seconds is None:
            continue
        scaled += after.serving != before.serving
        assert after.admitted_rate_per_second / after.serving == pytest.approx(
            before.admitted_rate_per_second / before.serving
        )
    assert scaled >= 1


def test_the_full_batch_is_renewed_at_another_tick_than_the_rate(memories):
    """The tick after a rate: what both take together would be most of the longest tick."""
    rates = batches = behind = 0
    for (_, _, before), (_, mix, after) in pairwise(memories):
        rate = after.mix_at_seconds != before.mix_at_seconds
        batch = after.full_batch.mix_at_seconds != before.full_batch.mix_at_seconds
        assert not (rate and batch)
        if batch:
            assert before.full_batch.mix_at_seconds < before.mix_at_seconds
            assert after.full_batch.mix_at_seconds == mix.at_seconds
        behind = behind + 1 if after.full_batch.mix_at_seconds < after.mix_at_seconds else 0
        assert behind <= 2  # a rate computed again for other replicas goes first
        rates, batches = rates + rate, batches + batch
    assert rates > 3
    assert batches > 3
    assert {memory.full_batch.sequences for _, _, memory in memories} - {None}


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
    assert admitted == pytest.approx(before.admission.admitted_rate_per_second, rel=0.1)
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
    decision, mix = story.at(690.0), story.state.mix
    budget = wait_budget_seconds(story.targets, mix)
    expected = mix.model.saturation_rate_per_second * budget
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
    keys = {goal.metric.value: goal.key for goal in goals}
    mix = SimpleNamespace(alone_seconds={keys[name]: value for name, value in alone.items()})
    targets = replace(TARGETS, objectives=goals)
    assert wait_budget_seconds(targets, mix) == pytest.approx(budget)
