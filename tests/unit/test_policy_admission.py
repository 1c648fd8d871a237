"""The admitted rate over time: scaled to the replicas at once, computed a tick after a new mix."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from policy_world import TARGETS, Run, World

from servingslo.policy.admission import LONGEST_DELAY_SECONDS
from servingslo.policy.inputs import AdmissionMode, Limits


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
