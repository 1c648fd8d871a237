"""Pods that wait behind a scheduling gate: no capacity on its way, and nothing is ordered more."""

from policy_world import World, reasons, run, stepped

from servingslo.explain.conditions.derived import conditions
from servingslo.explain.events import events
from servingslo.explain.text import text
from servingslo.reasons import Reason

GATE = "scheduling gate kueue.x-k8s.io/admission, queue team-a"


def test_nothing_is_ordered_beyond_pods_that_wait_in_a_queue():
    """Once pods are gated the count stays, by name and in the gate's words; down it goes on."""
    world = World(
        rate=stepped((0, 6.0), (600, 20.0), (900, 60.0), (1200, 4.0)), replicas=3, room=5, gate=GATE
    )
    story = run(world).until(3000)
    ordered = {d.replicas_after for d in story.between(720.0, 1200.0)}
    assert len(ordered) == 1
    assert ordered.pop() > 5
    short = story.at(1140.0)
    assert short.replicas.ready == 5
    assert short.limited_by is Reason.QUEUED
    found = {c.type: c for c in conditions(short, generation=1, now_seconds=0.0)}
    assert found["ScalingLimited"].reason is Reason.QUEUED
    assert found["ScalingLimited"].message.endswith(GATE)
    assert GATE in text(short)
    assert Reason.UNSCHEDULABLE_PODS not in reasons(short)
    pairs = zip(story.decisions[1:], story.decisions, strict=False)
    told = [e for now, last in pairs for e in events(now, last) if e.reason is Reason.QUEUED]
    assert told
    assert GATE in told[0].message
    assert story.at(3000.0).replicas_after <= 4
