"""Virtual time for asyncio: a sleep of an hour ends at once, and takes exactly an hour.

A test that sleeps by the wall clock is slow on a quiet machine and fails on a busy one. The loop
here has a clock of its own. While a task can run, the clock stands still. When all tasks wait, it
jumps to the moment of the next timer. Sockets and threads are real and know nothing of this clock,
so a test marked `virtual_time` uses neither.
"""

import asyncio
import selectors
from typing import Any


class VirtualClock:
    """Seconds since the start of the loop, which pass only while every task waits."""

    def __init__(self) -> None:
        self.now_seconds = 0.0


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that lets virtual time pass instead of waiting."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        """What is ready now. Raises: RuntimeError where nothing would ever wake the loop."""
        ready = super().select(0.0)
        if not ready:
            if timeout is None:
                raise RuntimeError("every task waits, and no timer will wake one")
            self._clock.now_seconds += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on a virtual clock."""

    def __init__(self) -> None:
        self._virtual_clock = VirtualClock()
        super().__init__(_JumpingSelector(self._virtual_clock))
        # A timer counts as due within one step of the clock: else rounding leaves it one short.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Virtual seconds since the start of the loop."""
        return self._virtual_clock.now_seconds
