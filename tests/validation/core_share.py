"""Holds one process of one's own to a share of a core, by stopping and continuing it.

On a shared machine a process that wants a whole core gets a different part of it every second. One
that asks for less than its fair part gets it evenly: it is slow, and equally slow all the time.
Run as `python -m tests.validation.core_share PID SHARE`; it ends with the process or on SIGTERM.
"""

import contextlib
import os
import signal
import sys
import time

TICK_SECONDS = 0.002
# What may be caught up after the process was idle or had no core: less than one engine step.
LARGEST_CREDIT_SECONDS = 0.004
# Debt is not forgiven, but a clock that jumped must not stop the process for long.
LARGEST_DEBT_SECONDS = 0.1
# clock_getcpuclockid(3) of Linux: the complement of the process id, and the scheduler's clock.
_SCHEDULER_CLOCK = 2


def hold(pid: int, share: float) -> None:
    """Keep the process at this share of one core until it ends."""
    clock = (~pid << 3) | _SCHEDULER_CLOCK
    used, at = time.clock_gettime(clock), time.monotonic()
    credit, stopped = 0.0, False
    while True:
        time.sleep(TICK_SECONDS)
        used_now, now = time.clock_gettime(clock), time.monotonic()
        credit += share * (now - at) - (used_now - used)
        credit = max(min(credit, LARGEST_CREDIT_SECONDS), -LARGEST_DEBT_SECONDS)
        used, at = used_now, now
        if (credit < 0) != stopped:
            stopped = not stopped
            os.kill(pid, signal.SIGSTOP if stopped else signal.SIGCONT)


def main() -> None:
    """Hold the process in the arguments."""
    pid, share = int(sys.argv[1]), float(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        with contextlib.suppress(OSError):  # the process has ended
            hold(pid, share)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    main()
