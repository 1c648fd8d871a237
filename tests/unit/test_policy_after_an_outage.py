"""What a fleet that was not watched for a while may do."""

from policy_world import World, run, stepped

from servingslo.policy.rules.step_down import LEAST_WARM_UP_SECONDS
from servingslo.reasons import Action, Reason


def test_a_count_that_was_not_watched_is_watched_anew_before_it_is_lowered():
    """A first glance after an outage shows less than the load: a fleet is not halved on it."""
    world = World(rate=stepped((0.0, 14.0), (600.0, 2.0)), replicas=6)
    story = run(world).until(600)
    world.frozen_at = 600.0
    story.until(900)
    world.frozen_at = None
    story.until(1500)
    back = next(
        d.time_seconds for d in story.between(915.0, 1500.0) if d.metrics is Reason.METRICS_FRESH
    )
    downs = [d for d in story.between(900.0, 1500.0) if d.action is Action.SCALE_DOWN]
    assert downs[0].time_seconds >= back + LEAST_WARM_UP_SECONDS
    held = story.at(back + 60.0)
    assert Reason.WARMING_UP in {step.reason for step in held.steps}
