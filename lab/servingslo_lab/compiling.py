"""Where machine code that numba made is kept, and whether numba is there at all."""

import hashlib
import importlib.util
import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path


def compiler_installed() -> bool:
    """Whether the extra `compiled` is there."""
    return importlib.util.find_spec("numba") is not None


def cache_directory(sources: Iterable[Path]) -> Path:
    """Where machine code is kept: by all of its sources, of which numba would watch one alone."""
    digest = hashlib.sha256(version("numba").encode())
    for source in sources:
        digest.update(source.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "servingslo" / "compiled" / digest.hexdigest()[:16]
