"""A rise that may be a crowd: ordered for at its first scrape, and given back where it is none."""

from dataclasses import replace

import pytest
from policy_world import TARGETS, World, reasons, run

from servingslo.policy.behavior import Behavior, PolicyType, ScalingPolicy, ScalingRules
from servingslo.policy.inputs import ReplicaTargets
from servingslo.reasons import Action, Reason

ROOM = replace(TARGETS, replicas=ReplicaTargets(minimum=1, maximum=40))
# The pods are scraped 2 s before a tick, every 15 s.
BEGUN = 900.0


def _crowd(seconds: float) -> float:
    """6/s, and six times that within half a minute."""
    return 6.0 + 30.0 * min(max((seconds - BEGUN) / 30.0, 0.0), 1.0)


def _wave(seconds: float) -> float:
    """6/s, with 20/s for the six seconds before the scrape."""
    return 20.0 if BEGUN + 7.0 <= seconds < BEGUN + 13.1 else 6.0


@pytest.fixture(scope="module")
def crowd():
    """A crowd that begins in the middle of a window."""
    return run(World(rate=_crowd, replicas=3, cold_start=90.0), ROOM).until(1050)


def test_a_crowd_is_ordered_for_at_its_first_scrape(crowd):
    """Two thirds of all that it takes, and the decision says that it may be one."""
    first = crowd.at(BEGUN + 15.0)
    step = next(s for s in first.steps if s.reason is Reason.SURGE_POSSIBLE)
    assert step.after == 0.5
    assert step.inputs["rate_if_surge_per_second"] > 1.5 * first.demand.arrival_rate_per_second
    most = max(d.replicas_after for d in crowd.decisions)
    assert first.action is Action.SCALE_UP
    assert first.replicas_after >= 2 * most / 3
    assert not any(Reason.SURGE_REFUTED in reasons(d) for d in crowd.between(BEGUN, BEGUN + 150.0))


def test_what_was_ordered_for_a_crowd_that_is_none_goes_at_the_next_scrape():
    """No stabilization holds it, and no backlog."""
    story = run(World(rate=_wave, replicas=3, cold_start=90.0), ROOM).until(BEGUN + 45.0)
    first, second = story.at(BEGUN + 15.0), story.at(BEGUN + 30.0)
    assert Reason.SURGE_POSSIBLE in reasons(first)
    assert first.replicas_after > 8
    step = next(s for s in second.steps if s.reason is Reason.SURGE_REFUTED)
    assert (step.before, step.after) == (0.5, 0.0)
    assert second.action is Action.SCALE_DOWN
    assert second.replicas_after <= 5


def _step(seconds: float) -> float:
    """6/s, then 20/s, which two replicas of the small card cannot carry."""
    return 6.0 if seconds < BEGUN else 20.0


@pytest.mark.parametrize("cold_start", [60.0, 90.0])
def test_a_step_that_overloads_is_ordered_for_as_a_crowd_and_given_back_within_two_minutes(
    cold_start,
):
    """In its first window it cannot be told from one; with room the order is large and short."""
    wide = replace(TARGETS, replicas=ReplicaTargets(minimum=1, maximum=100))
    story = run(World(rate=_step, replicas=3, cold_start=cold_start), wide).until(BEGUN + 300.0)
    assert Reason.SURGE_POSSIBLE in reasons(story.at(BEGUN + 15.0))
    settled = story.between(BEGUN + 120.0, BEGUN + 300.0)
    assert max(d.replicas_after for d in settled) <= 12
    assert story.share_within(1.0, 0.05, BEGUN + 180.0) > 0.95


def test_a_policy_of_scale_up_bounds_what_a_crowd_may_order():
    """Four times what is there in one scrape, and the decision says what held it."""
    policy = ScalingPolicy(type=PolicyType.PERCENT, value=300, period_seconds=15)
    bounded = replace(
        TARGETS,
        replicas=ReplicaTargets(minimum=1, maximum=100),
        behavior=Behavior(scale_up=ScalingRules(policies=(policy,))),
    )
    story = run(World(rate=_step, replicas=3, cold_start=60.0), bounded).until(BEGUN + 300.0)
    first = story.at(BEGUN + 15.0)
    assert first.replicas_after == 4 * first.replicas_before
    assert first.limited_by is Reason.SCALE_UP_POLICY
    assert max(d.replicas_after for d in story.decisions) <= 16
    assert story.share_within(1.0, 0.05, BEGUN + 180.0) > 0.95
