"""To no replica and back, as a timeline: a gateway tells, or nothing goes."""

from dataclasses import replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import World, reasons, run, stepped
from tests.unit.world_gateway import Gated

from servingslo.explain.conditions.condition import ConditionStatus, ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.text import text
from servingslo.policy.inputs import (
    Actuation,
    FallbackBehavior,
    FallbackTargets,
    Limits,
    Mode,
    ReplicaTargets,
    SignalProblem,
)
from servingslo.reasons import Action, Reason

IDLE_SECONDS = 600.0
TARGETS_TO_ZERO = replace(
    TARGETS, replicas=ReplicaTargets(minimum=0, maximum=12, idle_seconds=IDLE_SECONDS)
)


class Woken(World):
    """A world whose target another scaler brings back from zero."""

    def observe(self, at):
        """As the world shows it, and who wakes the target."""
        return replace(super().observe(at), woken_by_others=True)


def quiet_from(seconds, *later):
    """Traffic that ends, and what comes later."""
    return stepped((0, 3.0), (seconds, 0.0), *later)


def counts(story, start, end):
    """Which counts were ordered from start to end."""
    return {d.replicas_after for d in story.between(start, end)}


def test_the_last_replica_goes_after_the_stated_time_and_requests_bring_it_back():
    """What waits at the gateway wakes it at the next tick, and is told how long that takes."""
    world = Gated(rate=quiet_from(600, (3000, 3.0)), replicas=2)
    story = run(world, TARGETS_TO_ZERO).until(2990)
    slept = next(d for d in story.decisions if d.replicas_after == 0)
    assert slept.time_seconds >= 600 + IDLE_SECONDS
    assert (slept.action, slept.reason) == (Action.SCALE_DOWN, Reason.IDLE)
    end = story.decisions[-1]
    assert (end.action, end.reason, end.replicas_after) == (Action.HOLD, Reason.ASLEEP, 0)
    verdict = verdicts(end)[ConditionType.READY]
    assert verdict.status is ConditionStatus.TRUE
    # A cold start of a minute, a scrape and a tick.
    assert "asleep: the first request waits 1m30s" in verdict.message
    assert "no requests arrive" in text(end)

    story.until(3075)
    woken = next(d for d in story.between(3000, 3075) if d.replicas_after)
    assert woken.time_seconds <= 3030.0
    assert (woken.action, woken.reason) == (Action.SCALE_UP, Reason.WOKEN_BY_REQUESTS)
    story.until(3600)
    first = [r for r in world.records if 3000 <= r.arrival_seconds < 3015]
    assert first
    assert all(r.first_token_seconds is not None for r in first)
    assert max(r.ttft_seconds for r in first) <= 90.0 + 15.0
    assert 0 not in counts(story, 3030, 3600)


def test_a_crowd_that_comes_while_it_sleeps_wakes_as_many_as_it_needs():
    """One at a time would start the second a whole cold start later."""
    world = Gated(rate=quiet_from(600, (3000, 40.0)), replicas=2)
    story = run(world, TARGETS_TO_ZERO).until(3030)
    assert story.decisions[-1].replicas_after > 1


@pytest.mark.parametrize(
    "gateway",
    ["silent", *(pytest.param(g, marks=pytest.mark.acceptance) for g in ("absent", "lies"))],
)
def test_without_a_gateway_that_tells_the_last_replica_stays(gateway):
    """Silence is no quiet, and what a gateway does not count it would not wake for."""
    world = Gated(rate=quiet_from(900), replicas=2)
    world.silent = gateway == "silent"
    if gateway == "absent":
        world = World(rate=quiet_from(900), replicas=2)
    if gateway == "lies":
        world.service.offer = type(world.service).offer.__get__(world.service)
    story = run(world, TARGETS_TO_ZERO).until(900 + 3 * IDLE_SECONDS)
    end = story.decisions[-1]
    assert (end.replicas_after, end.limited_by) == (1, Reason.NO_WAKE_UP_SIGNAL)
    verdict = verdicts(end)[ConditionType.SCALING_LIMITED]
    assert verdict.reason is Reason.NO_WAKE_UP_SIGNAL
    assert "not scaled to zero: no gateway" in verdicts(end)[ConditionType.READY].message


def test_behind_a_gateway_that_would_forget_it_the_last_replica_stays():
    """It counts everything while there is a pod, and nothing without: that is told instead."""
    world = Gated(rate=quiet_from(900), replicas=2)
    world.not_woken = "HTTPRoute/chat is routed to pods' addresses: set routingType"
    story = run(world, TARGETS_TO_ZERO).until(900 + 3 * IDLE_SECONDS)
    end = story.decisions[-1]
    assert (end.replicas_after, end.limited_by) == (1, Reason.NO_WAKE_UP_SIGNAL)
    said = verdicts(end)[ConditionType.READY].message
    assert (
        "it is not scaled to zero: HTTPRoute/chat is routed to pods' addresses: set routingType"
        in said
    )


def test_a_target_at_zero_that_the_gateway_forgets_is_told_and_what_is_heard_all_the_same_wakes():
    """Silence says nothing there; a request does."""
    world = Gated(rate=quiet_from(600, (3000, 3.0)), replicas=2)
    story = run(world, TARGETS_TO_ZERO).until(2000)
    assert story.decisions[-1].replicas_after == 0
    world.not_woken = "routed to pods' addresses"
    story.until(2900)
    end = story.decisions[-1]
    assert (end.reason, end.replicas_after) == (Reason.NO_WAKE_UP_SIGNAL, 0)
    verdict = verdicts(end)[ConditionType.READY]
    assert verdict.status is ConditionStatus.FALSE
    assert "routed to pods' addresses; nothing would wake it" in verdict.message
    story.until(3060)
    assert story.decisions[-1].replicas_after >= 1


def test_an_outage_is_no_quiet():
    """The idle time begins anew after every gap of metrics, and a gap itself takes nothing."""
    world = Gated(rate=quiet_from(600), replicas=1)
    story = run(world, TARGETS_TO_ZERO).until(1080)
    world.problems = (SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail="refused"),)
    story.until(3000)
    world.problems = ()
    story.until(3500)
    assert 0 not in counts(story, 0, 3500)
    story.until(3700)
    assert story.decisions[-1].replicas_after == 0


def test_a_sleeping_target_that_nobody_hears_of_stays_as_it_is_or_has_its_floor():
    """A gateway that falls silent wakes nothing by itself; the floor is what the user stated."""
    for behavior, expected in ((FallbackBehavior.HOLD, 0), (FallbackBehavior.FLOOR, 2)):
        fallback = FallbackTargets(
            behavior=behavior, replicas=2 if expected else None, stale_after_seconds=120.0
        )
        world = Gated(rate=quiet_from(60), replicas=1)
        story = run(world, replace(TARGETS_TO_ZERO, fallback=fallback)).until(1500)
        assert story.decisions[-1].replicas_after == 0
        world.silent = True
        story.until(1800)
        blind = story.at(1515.0)
        assert blind.limited_by is Reason.NO_WAKE_UP_SIGNAL
        assert verdicts(blind)[ConditionType.READY].status is ConditionStatus.FALSE
        assert max(counts(story, 1515, 1800)) == expected


def test_a_target_that_somebody_set_to_zero_sleeps_where_it_may():
    """With a minimum of 0 requests wake it, whoever put it there; Paused keeps it off."""
    for mode, woken in ((Mode.AUTO, True), (Mode.PAUSED, False)):
        world = Gated(rate=stepped((0, 3.0)), replicas=2)
        story = run(world, replace(TARGETS_TO_ZERO, mode=mode)).until(300)
        world.scale(0)
        story.until(400)
        assert (max(counts(story, 330, 400)) > 0) is woken


def test_a_target_first_seen_asleep_sleeps_again_after_it_was_woken():
    """What was fresh before was the gateway's alone: pods are watched from their first metrics."""
    fallback = FallbackTargets(stale_after_seconds=300.0)
    world = Gated(rate=stepped((0, 0.0), (300, 3.0), (330, 0.0)), replicas=0)
    story = run(world, replace(TARGETS_TO_ZERO, fallback=fallback)).until(2400)
    assert max(counts(story, 300, 400)) > 0
    assert story.decisions[-1].replicas_after == 0


def test_the_administrators_step_holds_for_waking_too():
    """No decision orders more than it allows."""
    world = Gated(rate=quiet_from(600, (3000, 60.0)), replicas=1)
    story = run(world, TARGETS_TO_ZERO, Limits(max_step=1)).until(3030)
    assert story.decisions[-1].replicas_after == 1


def test_one_replica_that_serves_never_goes():
    """Requests now and then, each within the idle time, keep it."""
    world = Gated(rate=lambda seconds: 1.0 if seconds % 500 < 20 else 0.0, replicas=1)
    story = run(world, TARGETS_TO_ZERO).until(4000)
    assert 0 not in counts(story, 0, 4000)
    assert Reason.ASLEEP not in set().union(*map(reasons, story.decisions))


def test_a_trigger_of_kedas_own_that_wakes_the_target_is_a_signal_too():
    """Without a gateway: it goes after the idle time, and KEDA alone brings it back."""
    world = Woken(rate=quiet_from(60), replicas=1)
    world.problems = (SignalProblem(reason=Reason.SCALER_CONFLICT, detail="ScaledObject/chat"),)
    story = run(world, replace(TARGETS_TO_ZERO, actuation=Actuation.KEDA)).until(1000)
    assert story.decisions[-1].handed_over.replicas == 0
    world.scale(0)
    story.until(1500)
    assert story.decisions[-1].handed_over.replicas == 0
    assert story.decisions[-1].reason is Reason.ASLEEP
    world.scale(1)
    story.until(1580)
    assert {d.handed_over.replicas for d in story.between(1515, 1580)} == {1}
