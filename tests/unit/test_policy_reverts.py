"""Somebody puts the count back each time: it is left alone for a while, told, and tried again."""

from dataclasses import replace

import pytest
from overtaken_world import World
from tests.unit.policy_world import settled_context

from servingslo.policy.replicas.proposal import Proposal
from servingslo.policy.replicas.reverts import (
    CLIENT_REVERTS_BEFORE_PAUSE,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    REVERTS_BEFORE_PAUSE,
    STANDING_SECONDS,
    Reverts,
    count_revert,
    expire_reverts,
)
from servingslo.policy.rules.guards import leave_to_reverter
from servingslo.reasons import Reason

TICK_SECONDS = 15.0


@pytest.fixture
def world() -> World:
    """A resource whose minimum asks for three replicas, on a target with one."""
    world = World()
    world.cluster.create()
    world.sees()
    return world


def _put_back(world: World, *, by: str = "argocd-controller") -> None:
    world.cluster.replicas, world.cluster.set_by = 1, by


async def _fight(world: World, ticks: int) -> None:
    for _ in range(ticks):
        await world.tick(TICK_SECONDS)
        _put_back(world)


async def test_writes_become_rare_while_the_count_is_put_back(world: World) -> None:
    """Of an hour's 240 ticks, each put back at once, a handful are written."""
    await _fight(world, 240)
    assert REVERTS_BEFORE_PAUSE <= len(world.cluster.writes) <= 9


async def test_the_revert_is_told_with_how_often_to_what_and_by_whom(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Condition, event and log line name the field manager, the count and the number of times."""
    caplog.set_level("INFO")
    await _fight(world, 8)
    limited = next(
        entry
        for status in reversed(world.cluster.statuses)
        for entry in status.get("conditions", ())
        if entry["type"] == "ScalingLimited"
    )
    assert limited["reason"] == Reason.REPLICAS_REVERTED
    events = [event for event in world.cluster.events if event.reason is Reason.REPLICAS_REVERTED]
    lines = [line for line in caplog.messages if Reason.REPLICAS_REVERTED.value in line]
    assert events
    assert lines
    for said in (limited["message"], events[0].message, lines[0]):
        assert "put back to 1 3 times" in said
        assert "argocd-controller" in said


async def test_it_goes_on_when_the_reverts_stop(world: World) -> None:
    """The pause ends, the next write stands, and after a while the reverts are forgotten."""
    await _fight(world, 8)
    writes = len(world.cluster.writes)
    for _ in range(10):
        await world.tick(TICK_SECONDS)
    assert len(world.cluster.writes) == writes + 1
    assert world.cluster.replicas == 3
    for _ in range(60):
        await world.tick(TICK_SECONDS)
    _put_back(world)
    await world.tick(TICK_SECONDS)
    assert world.cluster.replicas == 3


async def test_a_restart_of_the_operator_does_not_end_the_pause(world: World) -> None:
    """What a new process reads in the status is the revert that began the pause."""
    await _fight(world, 8)
    writes = len(world.cluster.writes)
    world.restarts()
    for _ in range(3):
        await world.tick(TICK_SECONDS)
    assert len(world.cluster.writes) == writes
    await _fight(world, 60)
    assert len(world.cluster.writes) <= writes + 3


async def test_one_edit_by_hand_starts_no_pause(world: World) -> None:
    """A person's single edit is met as ever: below the minimum, the minimum is ordered again."""
    await world.tick()
    _put_back(world, by="kubectl-edit")
    await world.tick()
    assert world.cluster.writes == [(1, 3), (1, 3)]


CLIENTS = ("OpenAPI-Generator", "kubectl-edit", "kubectl", "Lens", "k9s", "curl")


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_person_who_repeats_an_edit_within_minutes_is_no_controller(
    world: World, client: str
) -> None:
    """Three edits, each more than a minute after our write, start no pause; nor do five."""
    for _ in range(CLIENT_REVERTS_BEFORE_PAUSE - 1):
        await world.tick(TICK_SECONDS)
        for _ in range(5):
            await world.tick(TICK_SECONDS)
        _put_back(world, by=client)
    await world.tick(TICK_SECONDS)
    assert world.cluster.writes == [(1, 3)] * CLIENT_REVERTS_BEFORE_PAUSE
    reasons = {event.reason for event in world.cluster.events}
    assert Reason.REPLICAS_REVERTED not in reasons
    assert Reason.REPLICAS_CHANGED_BY_USER in reasons


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_script_that_answers_every_write_is_left_alone_and_named_a_client(
    world: World, client: str
) -> None:
    """Within seconds of each write it is a program, whatever client it is written with."""
    await _fight(world, 12)
    script = World()
    script.cluster.create()
    script.sees()
    for _ in range(12):
        await script.tick(TICK_SECONDS)
        _put_back(script, by=client)
    assert len(script.cluster.writes) == len(world.cluster.writes) < 6
    event = next(e for e in script.cluster.events if e.reason is Reason.REPLICAS_REVERTED)
    assert f"by a client ({client})" in event.message


@pytest.mark.parametrize("controller", ["argocd-controller", "kustomize-controller", "helm", None])
async def test_a_controller_is_one_at_any_pace(world: World, controller: str | None) -> None:
    """A tool that comes round every three minutes is left alone after three reverts."""
    for _ in range(REVERTS_BEFORE_PAUSE):
        for _ in range(12):
            await world.tick(TICK_SECONDS)
        world.cluster.replicas, world.cluster.set_by = 1, controller
    await world.tick(TICK_SECONDS)
    assert world.cluster.replicas == 1
    assert Reason.REPLICAS_REVERTED in {event.reason for event in world.cluster.events}


def _limited(world: World) -> list[str]:
    """Each reason of ScalingLimited as it was written, in order."""
    return [
        condition["reason"]
        for status in world.cluster.statuses
        for condition in status.get("conditions", ())
        if condition["type"] == "ScalingLimited"
    ]


async def test_the_condition_stands_as_long_as_the_pause(world: World) -> None:
    """Whether more is wanted at the moment or not; it is told by one event and written once."""
    await _fight(world, 4)
    before = len(_limited(world))
    assert _limited(world)[-1] == Reason.REPLICAS_REVERTED
    wanted = [1, 3, 1, 4, 1, 2]
    for minimum in wanted:
        world.cluster.edit(replicas={"min": minimum, "max": 8})
        world.sees()
        await world.tick(TICK_SECONDS)
        assert world.cluster.replicas == 1
    assert set(_limited(world)[before:]) <= {Reason.REPLICAS_REVERTED}
    told = [e for e in world.cluster.events if e.reason is Reason.REPLICAS_REVERTED]
    assert len(told) == 1


def test_the_pause_is_the_limit_while_it_holds_and_not_after() -> None:
    """A count that is wanted as it is put back is limited by the pause all the same."""
    memory = Reverts(replicas=1, count=3, at_seconds=0.0, by="argocd-controller")
    context = settled_context()
    state = replace(context.state, reverts=memory)
    paused = replace(context, state=state, current=1, now_seconds=1.0)
    assert leave_to_reverter(paused, Proposal.of(1)).limited_by is Reason.REPLICAS_REVERTED
    after = replace(paused, now_seconds=999.0)
    assert leave_to_reverter(after, Proposal.of(1)) == Proposal.of(1)


def test_pauses_double_up_to_half_an_hour() -> None:
    """The third revert pauses for two minutes, each further one for twice as long."""
    lengths = []
    memory: Reverts | None = None
    for _ in range(12):
        memory = count_revert(memory, replicas=1, by=None, now_seconds=0.0)
        lengths.append(memory.until_seconds)
    assert lengths[:5] == [0.0, 0.0, FIRST_PAUSE_SECONDS, 240.0, 480.0]
    assert lengths[-1] == LONGEST_PAUSE_SECONDS


def test_a_write_must_stand_before_reverts_are_forgotten() -> None:
    """Ten minutes, or the length of the last pause where that was longer."""
    memory = Reverts(replicas=1, count=2, at_seconds=0.0)
    assert expire_reverts(memory, since_seconds=0.0, now_seconds=STANDING_SECONDS - 1.0) is memory
    assert expire_reverts(memory, since_seconds=0.0, now_seconds=STANDING_SECONDS) is None
