"""The cache folder of the rig's programs, one for each user, and its lock for builders."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path


def cache_directory() -> Path:
    """The folder of built programs: ``$XDG_CACHE_HOME`` or ``~/.cache``, then servingslo/rig."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "servingslo" / "rig"


@contextlib.contextmanager
def cache_lock() -> Iterator[None]:
    """Hold the lock of the cache; the kernel releases it even if this program is killed."""
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build of the rig", file=sys.stderr)  # noqa: T201
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
