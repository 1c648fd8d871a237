"""The wall clock, and the only place that reads it for the control loop."""

import time
from collections.abc import Callable
from threading import Lock

# A wall clock that is further ahead has seen time that the stopwatch has not: the machine slept.
AHEAD_SECONDS = 30.0
# What is left between the two is made up by so much of the time that passes: rates and windows are
# wrong by no more.
SLEW_RATIO = 0.02


def _wall_seconds() -> float:
    return time.time()  # noqa: TID251  this is the clock


class SystemClock:
    """Seconds since the epoch, and a monotonic stopwatch for durations."""

    @staticmethod
    def now_seconds() -> float:
        """Seconds since the epoch."""
        return _wall_seconds()

    @staticmethod
    def elapsed_seconds() -> float:
        """Seconds on a clock that never jumps, for differences only."""
        return time.monotonic()

    @staticmethod
    def boot_seconds() -> float:
        """As elapsed_seconds, and it goes on while the machine sleeps, where the system has it."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime(clock)


class SteadyClock:
    """Seconds since the epoch that never go back, for a loop that remembers moments.

    A wall clock that is set back by an hour would leave all that is remembered in the future: no
    sample would be newer than the last for an hour, and what was seen last would stand. So time
    goes on by the stopwatch, and nears the wall clock slowly; at once only where that is ahead.
    """

    def __init__(
        self,
        wall: Callable[[], float] = _wall_seconds,
        monotonic: Callable[[], float] = SystemClock.boot_seconds,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._told_seconds, self._told_at = wall(), monotonic()
        self._lock = Lock()

    def now_seconds(self) -> float:
        """Seconds since the epoch, no earlier than told before."""
        with self._lock:
            wall, at = self._wall(), self._monotonic()
            passed = max(at - self._told_at, 0.0)
            off = wall - (self._told_seconds + passed)
            most = SLEW_RATIO * passed
            correction = off if off > AHEAD_SECONDS else min(max(off, -most), most)
            self._told_seconds += passed + correction
            self._told_at = at
            return self._told_seconds
