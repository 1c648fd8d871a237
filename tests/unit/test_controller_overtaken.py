"""What changes between a plan and its write: nothing is written by a spec that is no more."""

import pytest
from overtaken_world import KEY, World

from servingslo.reasons import Reason


@pytest.fixture
def world() -> World:
    """A resource whose minimum asks for three replicas, on a target with one."""
    world = World()
    world.cluster.create()
    world.sees()
    return world


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"mode": "Paused"}, id="paused"),
        pytest.param({"mode": "Recommend"}, id="recommend"),
        pytest.param({"replicas": {"min": 1, "max": 2}}, id="bounds"),
        pytest.param({"targetRef": {"kind": "Deployment", "name": "other"}}, id="target"),
    ],
)
async def test_nothing_is_written_by_a_spec_that_was_changed(
    world: World, change: dict[str, object]
) -> None:
    """A change that the API server took before the write stands, though no watch told of it."""
    world.cluster.meanwhile = lambda: world.cluster.edit(**change)
    await world.tick()
    assert world.cluster.writes == []
    assert world.registry.resources[KEY].record.generation == 2
    assert KEY in world.registry.take_woken()


async def test_nothing_is_written_for_a_deleted_resource(world: World) -> None:
    """A resource that is gone scales nothing more, and is forgotten."""
    world.cluster.meanwhile = world.cluster.delete
    await world.tick()
    assert world.cluster.writes == []
    assert KEY not in world.registry.resources


async def test_a_namesake_made_anew_is_decided_for_by_its_own_spec(world: World) -> None:
    """Deleted and made again with the same generation, it is another resource all the same."""
    world.cluster.meanwhile = lambda: world.cluster.create("two", replicas={"min": 5, "max": 8})
    await world.tick()
    assert world.cluster.writes == []
    await world.tick()
    assert world.cluster.writes == [(1, 5)]


async def test_an_autoscaler_made_meanwhile_keeps_the_count(world: World) -> None:
    """An HPA that the watch has not brought yet is named, and the count stays its own."""
    name = "HorizontalPodAutoscaler/new"
    world.cluster.meanwhile = lambda: world.cluster.others.append(name)
    await world.tick()
    assert world.cluster.writes == []
    ready = _conditions(world)["Ready"]
    assert (ready["status"], ready["reason"]) == ("False", Reason.SCALER_CONFLICT)
    assert name in ready["message"]


async def test_an_older_resource_that_turns_to_the_target_keeps_the_count(world: World) -> None:
    """The registry is asked again at the write: another resource may have come to own it."""
    older = world.cluster.create("zero")
    mine = world.cluster.create("one")
    other = older.__class__(
        ref=older.ref.__class__(namespace="inference", name="older", uid="zero"),
        generation=1,
        created_seconds=older.created_seconds - 100.0,
        deleting=False,
        spec=older.spec,
        status={},
    )
    world.registry.upsert(mine)
    world.cluster.meanwhile = lambda: world.registry.upsert(other) and None
    await world.tick()
    assert world.cluster.writes == []
    assert _conditions(world)["Ready"]["reason"] == Reason.TARGET_CONFLICT


async def test_an_unanswered_look_writes_nothing(world: World) -> None:
    """Where the resource cannot be looked up again, its write is left for later."""

    def leave() -> None:
        world.cluster.away = True

    world.cluster.meanwhile = leave
    await world.tick()
    assert world.cluster.writes == []
    world.cluster.away = False
    await world.tick()
    assert world.cluster.writes == [(1, 3)]


async def test_a_late_event_of_the_watch_does_not_bring_an_old_spec_back(world: World) -> None:
    """What was looked up is newer than what a slow watch still has to tell."""
    old = world.cluster.record
    assert old is not None
    world.cluster.meanwhile = lambda: world.cluster.edit(mode="Paused")
    await world.tick()
    world.registry.upsert(old)
    await world.tick()
    assert world.cluster.writes == []


async def test_a_tick_without_an_order_looks_nothing_up(world: World) -> None:
    """Only a write costs a look at the resource."""
    world.cluster.replicas = 3
    await world.tick()
    assert world.cluster.looks == 0


def _conditions(world: World) -> dict[str, dict[str, str]]:
    written = [status["conditions"] for status in world.cluster.statuses if "conditions" in status]
    return {entry["type"]: entry for entry in written[-1]}


async def test_a_process_that_stood_still_after_its_last_look_looks_again(world: World) -> None:
    """What it was told before is of the past; it writes by what is in force when it goes on."""
    world.cluster.stopped_seconds = 120.0
    await world.tick()
    assert world.cluster.writes == []
    world.cluster.edit(mode="Recommend")
    world.sees()
    await world.tick()
    assert world.cluster.writes == []
    world.cluster.edit(mode="Auto")
    world.sees()
    await world.tick()
    assert world.cluster.writes == [(1, 3)]


@pytest.mark.parametrize("change", ["scaler", "mode"])
async def test_what_changes_in_a_slow_look_is_looked_at_once_more(
    world: World, change: str
) -> None:
    """A pause of seconds in the look itself hides neither another scaler nor another spec."""
    world.cluster.stopped_seconds = 5.0
    world.cluster.while_stopped = (
        (lambda: world.cluster.others.append("HorizontalPodAutoscaler/new"))
        if change == "scaler"
        else (lambda: world.cluster.edit(mode="Recommend"))
    )
    await world.tick()
    assert world.cluster.writes == []
    assert world.cluster.looks == 2


async def test_a_slow_look_that_finds_the_same_again_is_followed_by_the_write(
    world: World,
) -> None:
    """An API server that takes seconds to answer keeps nobody from scaling."""
    world.cluster.stopped_seconds = 5.0
    await world.tick()
    assert world.cluster.writes == [(1, 3)]
