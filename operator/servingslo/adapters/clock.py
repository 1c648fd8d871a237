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
