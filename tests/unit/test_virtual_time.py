"""Virtual time: hours pass at once and to the second, and a wait without end is an error."""

import asyncio

import pytest
from tests.virtual_time import VirtualTimeLoop

from servingslo.adapters.clock import SystemClock


@pytest.mark.virtual_time
async def test_an_hour_of_sleep_is_an_hour_of_the_stopwatch() -> None:
    """Neither more, however slow the machine is, nor less."""
    began = SystemClock.elapsed_seconds()
    await asyncio.sleep(3600.0)
    assert SystemClock.elapsed_seconds() - began == pytest.approx(3600.0, abs=1e-3)


@pytest.mark.virtual_time
async def test_timers_fire_in_order_and_a_timeout_at_its_moment() -> None:
    """The clock jumps to the next timer, not beyond it."""
    loop, fired = asyncio.get_running_loop(), []
    for seconds in (3.0, 1.0, 2.0):
        loop.call_later(seconds, lambda seconds=seconds: fired.append((seconds, loop.time())))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5):
            await asyncio.Event().wait()
    assert fired == [(1.0, pytest.approx(1.0)), (2.0, pytest.approx(2.0))]


async def test_without_the_mark_time_is_real() -> None:
    """The stopwatch is that of the machine."""
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    assert SystemClock.elapsed_seconds() == pytest.approx(asyncio.get_running_loop().time(), abs=60)


def test_a_wait_that_nothing_ends_is_an_error() -> None:
    """Instead of a test that hangs."""
    loop = VirtualTimeLoop()
    waiting = loop.create_task(asyncio.Event().wait())
    with pytest.raises(RuntimeError, match="every task waits"):
        loop.run_until_complete(waiting)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiting)
    loop.close()
