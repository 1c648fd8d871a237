"""The wall clock; the control loop reads it only here."""

import time
from collections.abc import Callable
from threading import Lock

# A larger lead of the wall clock over the stopwatch means that the machine slept.
AHEAD_SECONDS = 30.0
# Other differences are corrected at this share of the elapsed time, so rates and windows have at
# most this error.
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
        """Like elapsed_seconds, but also counts while the machine sleeps, if supported."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime(clock)


class SteadyClock:
    """Seconds since the epoch that never go back, for a loop that stores times.

    If a wall clock is set back by an hour, all stored times would be in the future. For an hour no
    sample would be newer than the last one, and the last values would remain. So time advances by
    the stopwatch and approaches the wall clock slowly; it jumps only if the wall clock is ahead.
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
        """Seconds since the epoch, never less than the last returned value."""
        with self._lock:
            wall, at = self._wall(), self._monotonic()
            passed = max(at - self._told_at, 0.0)
            off = wall - (self._told_seconds + passed)
            most = SLEW_RATIO * passed
            correction = off if off > AHEAD_SECONDS else min(max(off, -most), most)
            self._told_seconds += passed + correction
            self._told_at = at
            return self._told_seconds
