"""The first lines of an explanation: why, what holds it, how sure, what would change it."""

from dataclasses import replace

from policy_world import TARGETS, Run, World

from servingslo import explain
from servingslo.policy.inputs import Limits, ReplicaTargets, SignalProblem
from servingslo.reasons import Action, Reason


def told(decision):
    """The lines before the details, by their first word."""
    head = explain.text(decision).split("\nDetails:")[0].splitlines()
    return {line.partition(":")[0]: line.partition(": ")[2] for line in head[1:]}


def test_a_step_up_tells_why_how_sure_and_what_else_there_was():
    """Everything that a person on call asks stands before the details."""
    world = World(rate=lambda seconds: 6.0 if seconds < 300 else 20.0, replicas=3)
    targets = replace(TARGETS, replicas=ReplicaTargets(minimum=3, maximum=12))
    story = Run(world, targets, Limits()).until(345)
    up = next(d for d in story.between(300.0, 345.0) if d.action is Action.SCALE_UP)
    lines = told(up)
    needed = next(n.replicas for n in up.needs if n.constraint is up.binding)
    assert f"asks for {needed} replicas at " in lines["Because"]
    assert "/s now" in lines["Because"]
    assert lines["How sure"].startswith("the model is trusted")
    assert f"{up.replicas_after - 1} would" in lines["Otherwise"]
    assert f"{up.replicas_after + 1} would do" in lines["Otherwise"]
    assert "Held by" not in lines


def test_a_hold_tells_who_holds_it():
    """Blind: the reason stands in words, and nothing is claimed to be sure."""
    world = World(rate=lambda _seconds: 6.0, replicas=3)
    story = Run(world, TARGETS, Limits()).until(60)
    world.problems = (SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail="refused"),)
    lines = told(story.until(75).at(75.0))
    assert lines["Decision"] == "hold, 3 replicas (PrometheusUnavailable)"
    assert lines["Held by"].startswith("Prometheus does not answer")


def test_a_model_that_is_not_trusted_is_said_to_be():
    """In the first minute measured saturation decides, and the text says so."""
    story = Run(World(rate=lambda _seconds: 6.0, replicas=3), TARGETS, Limits()).until(30)
    sure = told(story.at(30.0))["How sure"]
    assert sure.startswith("little; the model is still learning")


def test_counts_that_cannot_be_judged_are_told_by_their_utilization():
    """A law that is not trusted yet: no count is said to do, and none to miss an objective."""
    story = Run(World(rate=lambda _seconds: 6.0, replicas=3), TARGETS, Limits()).until(60)
    unsure = next(d for d in story.decisions if d.outlook and not d.model.trusted)
    lines = told(unsure)
    assert "would run at " in lines["Otherwise"]
    assert "None" not in explain.text(unsure)
