"""End the rig's processes after the program that started them has ended in any way.

Run as a separate script, with only the standard library. It reads lines from standard input:
``+PID`` adds a process group, ``-PID`` forgets it, ``directory PATH`` names a folder to remove.
The kernel closes the pipe when the parent ends, even by SIGKILL; that is the signal to clean up.
PR_SET_PDEATHSIG is not used: it fires when the starting *thread* ends, and only Linux has it.
"""

import contextlib
import os
import shutil
import signal
import sys


def main() -> int:
    """Read until the end of input, then kill remaining processes; returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    directory: str | None = None
    for raw_line in sys.stdin:
        line = raw_line.strip()
        if line.startswith("+"):
            groups.add(int(line[1:]))
        elif line.startswith("-"):
            groups.discard(int(line[1:]))
        elif line.startswith("directory "):
            directory = line.removeprefix("directory ")
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
