"""The wall clock, and the only place that reads it for the control loop."""

import time


class SystemClock:
    """Seconds since the epoch, and a monotonic stopwatch for durations."""

    @staticmethod
    def now_seconds() -> float:
        """Seconds since the epoch."""
        return time.time()  # noqa: TID251  this is the clock

    @staticmethod
    def elapsed_seconds() -> float:
        """Seconds on a clock that never jumps, for differences only."""
        return time.monotonic()

    @staticmethod
    def boot_seconds() -> float:
        """As elapsed_seconds, and it goes on while the machine sleeps, where the system has it."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime(clock)
