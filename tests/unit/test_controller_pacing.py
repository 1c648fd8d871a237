"""Statuses are written behind the loop: urgent ones first, the others spread; no tick waits."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.unit.controller_fakes import NAME, Operator, record_of

from servingslo.cli.decision_document import last_document
from servingslo.controller.reporting.pacing import PacedQueue
from servingslo.policy.inputs import SignalProblem
from servingslo.reasons import Reason

pytestmark = pytest.mark.virtual_time
REFUSED = SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail="refused")


async def test_what_is_urgent_goes_first_and_each_key_once() -> None:
    """A key that waits already is not taken twice, and may become urgent."""
    queue = PacedQueue(0.01)
    for key in ("a", "b", "c", "a"):
        queue.put(key, urgent=False)
    queue.put("c", urgent=True)
    queue.put("c", urgent=False)
    assert [await queue.take() for _ in range(3)] == ["c", "a", "b"]
    assert len(queue) == 0


async def test_what_has_drifted_is_spread_over_most_of_a_tick() -> None:
    """Sixteen in a tick of two seconds take four fifths of it, in equal steps."""
    queue = PacedQueue(2.0)
    for number in range(16):
        queue.put(str(number), urgent=False)
    loop = asyncio.get_running_loop()
    taken_at = []
    for _ in range(16):
        await queue.take()
        taken_at.append(loop.time())
    assert taken_at == pytest.approx([0.1 * (1 + number) for number in range(16)], abs=1e-3)


async def test_urgent_ones_do_not_wait_for_the_pause_of_the_others() -> None:
    """What comes while the queue pauses is taken at once."""
    queue = PacedQueue(1000.0)
    queue.put("calm", urgent=False)
    taking = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.put("urgent", urgent=True)
    async with asyncio.timeout(5.0):
        assert await taking == "urgent"


@asynccontextmanager
async def _behind(operator: Operator) -> AsyncIterator[None]:
    writing = asyncio.create_task(operator.reporter.write_behind(1.0))
    await asyncio.sleep(0)
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _until_written(operator: Operator, name: str = NAME) -> None:
    async with asyncio.timeout(10.0):
        while "conditions" not in operator.resources.status(name):  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)


async def test_a_tick_does_not_wait_for_the_api_server_to_take_a_status() -> None:
    """It ends while the write of its status hangs; the next tick's words are written once."""
    operator = Operator()
    operator.apply(record_of())
    answers, asked = asyncio.Event(), asyncio.Event()
    patch = operator.resources.patch_status

    async def hanging(*arguments: object) -> None:
        asked.set()
        await answers.wait()
        await patch(*arguments)

    operator.resources.patch_status = hanging
    async with _behind(operator):
        async with asyncio.timeout(30.0):
            await operator.tick()
        async with asyncio.timeout(10.0):
            await asked.wait()
        async with asyncio.timeout(30.0):
            await operator.tick()
        assert operator.resources.patches == []
        answers.set()
        await _until_written(operator)
    assert last_document(operator.resources.status())["replicasBefore"] == 2


async def test_an_operator_that_ends_writes_what_somebody_may_wait_for() -> None:
    """The last decision stands in the status, though the end came at once."""
    operator = Operator()
    operator.apply(record_of())
    async with _behind(operator):
        await operator.tick()
    assert "lastDecision" in operator.resources.status()


async def test_a_failed_reading_is_one_event_however_many_resources_there_are() -> None:
    """So is its end; each resource's own conditions tell it as well."""
    operator = Operator()
    operator.apply(record_of())
    names = [f"other-{number}" for number in range(5)]
    for name in names:
        operator.apply(record_of(name=name, uid=name))
    operator.fleet.metrics_down = REFUSED
    await operator.ticks(2)
    reasons = operator.events.reasons()
    assert reasons.count(Reason.PROMETHEUS_UNAVAILABLE) == 1
    for name in (NAME, *names):
        assert operator.resources.condition("MetricsFresh", name)[0] == "False"
    operator.fleet.metrics_down = None
    await operator.ticks(3)
    assert operator.events.reasons().count(Reason.METRICS_FRESH) <= 1
    operator.fleet.metrics_down = REFUSED
    await operator.tick()
    assert operator.events.reasons().count(Reason.PROMETHEUS_UNAVAILABLE) == 2


async def test_what_lasts_is_kept_from_the_collector_once_there_are_resources() -> None:
    """A tick of nobody freezes nothing; the first of somebody does."""
    operator, thresholds = Operator(), gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700)
    try:
        operator.controller._spare_collector()
        assert gc.get_freeze_count() == 0
        operator.apply(record_of())
        operator.controller._spare_collector()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > 700
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
