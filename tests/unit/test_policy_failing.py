"""Pods that fail are no capacity on its way, and what is ordered on top of them has an end."""

from dataclasses import replace

import pytest
from policy_world import TARGETS, World, reasons, run, steady, stepped

from servingslo.explain.conditions.derived import conditions
from servingslo.policy.inputs import ReplicaTargets
from servingslo.reasons import Reason

MOST = 100
CRASH = "CrashLoopBackOff after exit code 1"


def test_pods_that_crash_are_no_capacity_and_no_more_are_ordered_onto_them():
    """Three serve and every further one crashes: the order ends once half of the pods fail."""
    world = World(rate=stepped((0, 6.0), (600, 30.0)), replicas=3, room=3, crash=CRASH)
    targets = replace(TARGETS, replicas=ReplicaTargets(minimum=1, maximum=MOST))
    story = run(world, targets).until(1800)
    last = story.at(1800.0)
    ordered = {d.replicas_after for d in story.between(900.0, 1800.0)}
    assert len(ordered) == 1
    assert last.replicas.ready == 3
    assert 6 <= last.replicas_after < MOST
    assert last.recommended_replicas == last.replicas_after
    assert last.limited_by is Reason.PODS_FAILING
    assert Reason.PENDING_PODS not in reasons(last)
    found = {c.type: c for c in conditions(last, generation=1, now_seconds=0.0)}
    assert found["ScalingLimited"].reason is Reason.PODS_FAILING
    assert (found["Ready"].status, found["Ready"].reason) == ("False", Reason.PODS_FAILING)


@pytest.mark.parametrize("crash", ["", CRASH])
def test_a_crashing_pod_is_counted_like_one_without_a_place(crash):
    """Both are ordered and neither will serve: the same backlog is planned for, the same count."""
    story = run(World(rate=steady(20.0), replicas=4, room=3, crash=crash)).until(400)
    plain = run(World(rate=steady(20.0), replicas=4, room=3)).until(400)
    found, expected = ([d.replicas_after for d in one.decisions] for one in (story, plain))
    assert found == expected
