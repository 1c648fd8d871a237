"""The guard of a budget in whole ticks: bounded growth, a donor's step, unknown GPUs, outages."""

from dataclasses import dataclass, field, replace

import pytest
from tests.unit.policy_world import World, run, stepped

from servingslo.explain.changes import change_event, change_line, replica_count_change
from servingslo.explain.conditions.derived import conditions
from servingslo.explain.events import events
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.policy.inputs import Grant, ScaleTarget, SignalProblem
from servingslo.reasons import Reason

GROWING = stepped((0, 6.0), (900, 60.0))

pytestmark = pytest.mark.slow("servingslo.policy", "servingslo.estimation", "servingslo.models")


@dataclass
class GrantedWorld(World):
    """A world within a grant, by time as rates are."""

    grant: object = None
    blind_from: float = float("inf")
    lost: tuple = field(default=(SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE),))

    def observe(self, at):
        """What a world shows, and the grant at that time."""
        self.problems = self.lost if at >= self.blind_from else ()
        return replace(super().observe(at), grant=self.grant(at))


def granted(gpus: int, each: int = 1, **stated) -> Grant:
    """A grant of this many GPUs, of `each` a replica."""
    return Grant(budget="inference", gpus=gpus, gpus_per_replica=each, **stated)


def test_growth_ends_at_the_grant_and_says_what_lacks():
    """The count, the condition, the event, the log and the text name the budget and the cost."""
    grant = granted(8, 2, kept_per_gpu=1.5, holders="n/chat has them")
    story = run(GrantedWorld(rate=GROWING, replicas=3, grant=lambda _: grant)).until(1500)
    short = story.at(1500.0)
    assert max(d.replicas_after for d in story.decisions) == 4
    assert (short.limited_by, short.replicas_after) == (Reason.BUDGET_REACHED, 4)
    (step,) = (one for one in short.steps if one.reason is Reason.BUDGET_REACHED)
    assert step.inputs["granted_gpus"] == 8
    assert step.inputs["wanted_gpus"] == 2 * step.before
    assert step.inputs["lost_per_second"] == 1.5 * 2 * (step.before - 4)
    found = {c.type: c for c in conditions(short, generation=1, now_seconds=0.0)}
    said = found["ScalingLimited"]
    assert said.reason is Reason.BUDGET_REACHED
    assert "budget inference grants 8 of" in said.message
    assert said.message.endswith("requests/s; n/chat has them")
    assert "inference grants 8" in text(short)
    assert "BudgetReached" in log_line(short)
    pairs = zip(story.decisions[1:], story.decisions, strict=False)
    told = [e for now, last in pairs for e in events(now, last)]
    assert Reason.BUDGET_REACHED in {event.reason for event in told}


def test_a_donor_steps_down_by_its_grant_though_it_needs_more():
    """Neither the stabilization window nor the check of a step down keeps what is granted away."""

    def grant(at):
        return granted(12 if at < 1500 else 5)

    story = run(GrantedWorld(rate=stepped((0, 40.0)), replicas=6, grant=grant)).until(1515)
    assert story.at(1485.0).replicas_after > 5
    after = story.at(1500.0)
    assert (after.replicas_after, after.reason) == (5, Reason.BUDGET_MOVED)


def test_a_donor_that_would_step_down_later_anyway_is_told_why_it_does_now():
    """Not that the demand is met: a budget took the replicas, and who received them is named."""

    def grant(at):
        return granted(12) if at < 1500 else granted(1, holders="n/chat gets them")

    rate = stepped((0, 40.0), (1425, 2.0))
    story = run(GrantedWorld(rate=rate, replicas=6, grant=grant)).until(1515)
    assert story.at(1485.0).replicas_after > 1
    after = story.at(1500.0)
    assert (after.replicas_after, after.reason) == (1, Reason.BUDGET_MOVED)
    change = replica_count_change(
        after, ScaleTarget(api_version="apps/v1", kind="Deployment", name="batch")
    )
    line = change_line(change)
    assert "saves" not in line
    assert "reason=BudgetMoved" in line
    assert 'n/chat gets them"' in line
    assert change_event(change).message.endswith("n/chat gets them")


def test_nothing_grows_while_gpus_of_a_replica_are_unknown():
    """The count stays where it was, with the reason; it still goes down."""
    grant = Grant(budget="inference", unknown="the pod template requests no GPU")
    rate = stepped((0, 6.0), (900, 30.0), (1080, 0.5))
    story = run(GrantedWorld(rate=rate, replicas=3, grant=lambda _: grant)).until(3000)
    assert max(d.replicas_after for d in story.decisions) == 3
    assert Reason.GPUS_UNKNOWN in {d.limited_by for d in story.between(900.0, 1200.0)}
    assert story.at(3000.0).replicas_after < 3
