"""The loop: every resource once a tick, woken ones at once, and no fault of one stops another."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.unit.controller_fakes import NAME, NAMESPACE, SPEC, Operator, record_of

from servingslo.cli.decision_document import last_document
from servingslo.errors import ClusterUnavailableError
from servingslo.reasons import Reason

pytestmark = pytest.mark.virtual_time
TICK_SECONDS = 15.0
DOWN = ClusterUnavailableError("no answer within 5 s")


def named(name: str, **changed):
    """A further resource, on a target of its own that is not there."""
    return record_of(
        name=name, uid=f"uid-{name}", targetRef={**SPEC["targetRef"], "name": name}, **changed
    )


async def test_one_reading_of_metrics_serves_all():
    """Prometheus is asked once a tick, however many resources there are."""
    operator = Operator()
    operator.apply(record_of())
    for name in ("a", "b", "c"):
        operator.apply(named(name))
    await operator.ticks(2)
    assert operator.fleet.readings == 2
    assert all("conditions" in operator.resources.status(name) for name in (NAME, "a", "b", "c"))


async def test_a_fault_of_one_resource_stops_no_other(caplog):
    """It is told in the status of its own, counted and logged; the others are decided."""
    operator = Operator()
    operator.apply(record_of())
    operator.apply(named("broken"))
    read = operator.adapters.workloads.read

    async def faulty(namespace, target, container, recognize):
        if target.name == "broken":
            raise ZeroDivisionError("a fault")
        return await read(namespace, target, container, recognize)

    operator.adapters.workloads.read = faulty
    await operator.ticks(2)
    assert operator.resources.condition("Ready", "broken") == ("False", Reason.INTERNAL_ERROR)
    assert operator.counted("servingslo_failures_total", part="controller") == 2
    assert "failed namespace=inference name=broken" in caplog.text
    assert last_document(operator.resources.status())["replicasBefore"] == 2


async def test_what_is_deleted_is_forgotten():
    """Its numbers are exported no more, and its events are forgotten."""
    operator = Operator()
    operator.apply(record_of())
    await operator.tick()
    labels = {"namespace": NAMESPACE, "name": NAME}
    assert operator.counted("servingslo_desired_replicas", **labels) == 2
    operator.delete()
    await operator.tick()
    assert (
        operator.exporter.registry.get_sample_value("servingslo_desired_replicas", labels) is None
    )
    assert [ref.name for ref in operator.events.forgotten] == [NAME]


async def running(operator: Operator, done: Callable[[], bool]) -> None:
    """The loop itself, until that is so."""
    task = asyncio.create_task(operator.controller.run())
    try:
        async with asyncio.timeout(20.0 * TICK_SECONDS):
            while not done():  # noqa: ASYNC110  the fakes tell no event
                await asyncio.sleep(0.1)
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_the_list_repairs_what_the_watch_missed():
    """Resources that no watch told of are found, those that are gone are dropped."""
    operator = Operator()
    operator.resources.put(record_of())
    operator.registry.upsert(named("ghost"))
    operator.fleet.tick()
    await running(
        operator,
        lambda: (
            operator.exporter.health(TICK_SECONDS).ready
            and "conditions" in operator.resources.status()
        ),
    )
    assert [key[1] for key in operator.registry.resources] == [NAME]


async def test_an_api_server_that_is_down_is_not_readiness():
    """The loop lives, is not ready, and counts the failure."""
    operator = Operator()
    operator.resources.down = DOWN
    operator.controller._listed = False  # as a process that has just started
    operator.fleet.tick()
    await running(
        operator, lambda: operator.counted("servingslo_failures_total", part="kubernetes") >= 2
    )
    health = operator.exporter.health(TICK_SECONDS)
    assert health.alive
    assert not health.ready


async def test_a_change_is_looked_at_before_the_next_tick():
    """A resource that is applied between ticks does not wait for the next."""
    operator = Operator(tick_seconds=60.0)
    operator.fleet.tick()
    task = asyncio.create_task(operator.controller.run())
    await asyncio.sleep(1.0)
    operator.apply(record_of())
    await asyncio.sleep(1.0)
    task.cancel()
    assert operator.resources.patches
    assert operator.resources.condition("Ready")[0] == "True"


async def test_edits_without_end_take_a_fifth_of_the_loop_at_most():
    """Who edits again and again has all metrics read for it: not more often than the loop bears."""
    operator = Operator(tick_seconds=60.0)
    operator.fleet.tick()
    read = operator.adapters.metrics.read
    reading_seconds, edited_seconds = 0.2, 50.0

    async def slow(_pods=None):
        await asyncio.sleep(reading_seconds)
        return await read()

    operator.adapters.metrics.read = slow
    task = asyncio.create_task(operator.controller.run())
    await asyncio.sleep(0.0)
    for edits in range(int(edited_seconds / 0.02)):
        operator.apply(record_of(generation=1 + edits))
        await asyncio.sleep(0.02)
    task.cancel()
    # Five times what one reading takes lies between the beginnings of two; the first is at once.
    most = edited_seconds / (5.0 * reading_seconds)
    assert most - 1.0 <= operator.fleet.readings <= most + 1.0


async def test_a_conflict_wakes_the_resource():
    """A write that somebody was before is planned again without waiting for the tick."""
    operator = Operator()
    operator.apply(record_of())
    await operator.tick()
    operator.apply(record_of(generation=2, replicas={"min": 4, "max": 12}))
    resource = operator.registry.resources[NAMESPACE, NAME]
    recognize = (await operator.fleet.read_metrics()).recognize(NAMESPACE, None)
    await operator.fleet.read_workload(NAMESPACE, resource.targets.target, None, recognize)
    operator.world.desired = 3  # behind the cache
    operator.registry.take_woken()
    await operator.look()
    assert operator.registry.take_woken() == {(NAMESPACE, NAME)}
    await operator.look()
    assert operator.fleet.scaled == [(3, 4)]


async def test_deleting_and_namesake_in_one_gap():
    """A namesake that came while nobody looked is planned for, the old one forgotten."""
    operator = Operator()
    operator.apply(record_of())
    await operator.tick()
    operator.resources.put(replace(record_of(uid="uid-2"), created_seconds=9.0))
    operator.registry.replace_all(operator.resources.records.values())
    await operator.tick()
    assert [ref.uid for ref in operator.events.forgotten] == ["uid-1"]
    assert "conditions" in operator.resources.status()


async def test_probes_are_answered_between_two_plans():
    """A tick of many resources hands the event loop back after each of them."""
    operator = Operator()
    operator.apply(record_of())
    names = [f"r{number}" for number in range(40)]
    for name in names:
        operator.apply(named(name))
    seen = []

    async def beat():
        while True:
            seen.append(sum("conditions" in operator.resources.status(name) for name in names))
            await asyncio.sleep(0)

    beating = asyncio.ensure_future(beat())
    await operator.tick()
    beating.cancel()
    assert seen[-1] >= len(names) - 1
    assert max(after - before for before, after in pairwise(seen)) <= 2


async def test_ticks_that_take_too_long_are_told_once_and_with_how_many(caplog):
    """The first says so, the next few nothing, and the end how many there were."""
    caplog.set_level("INFO")
    controller = Operator().controller
    for _ in range(5):
        controller.note_duration(2.0 * controller.tick_seconds)
    controller.note_duration(0.1)
    controller.note_duration(0.1)
    told = [record.getMessage() for record in caplog.records if "tick" in record.getMessage()]
    assert len(told) == 2
    assert "tick overran" in told[0]
    assert "overran=5" in told[1]


async def test_ticks_that_take_too_long_stand_in_readyz():
    """How many in a row, and the last one's length, until one is in time again; still ready."""
    operator = Operator()
    controller, exporter = operator.controller, operator.exporter
    exporter.observe_tick(0.1)
    for _ in range(3):
        controller.note_duration(2.0 * controller.tick_seconds)
    health = exporter.health(controller.tick_seconds)
    assert health.ready
    assert health.detail == "ok; 3 rounds in a row took longer than 15 s, the last 30.0 s"
    controller.note_duration(0.1)
    assert exporter.health(controller.tick_seconds).detail == "ok"
