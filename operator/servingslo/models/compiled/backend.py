"""Turns the compiled form of the laws on and off. numba is the optional extra `compiled`.

Compiling takes half a minute of one core at first, and less than a second from the cache, which
needs a home directory, or XDG_CACHE_HOME, that can be written to.
"""

from functools import cache, partial
from pathlib import Path

from servingslo.compiling import cache_directory, compiler_installed, writable
from servingslo.models.kernel import Maker, choose_kernels


def use_compiled_laws() -> bool:
    """Let models prepared from now on be evaluated by compiled code; whether numba is there."""
    if not compiler_installed():
        return False
    choose_kernels(_maker())
    return True


def use_numpy_laws() -> None:
    """Let models prepared from now on be evaluated by numpy."""
    choose_kernels(None)


@cache
def _maker() -> Maker:
    from servingslo.models.compiled.engine import CompiledKernel  # noqa: PLC0415 - optional, slow
    from servingslo.models.compiled.entry import compile_entries  # noqa: PLC0415 - optional, slow

    directory = cache_directory(_sources())
    entries = compile_entries(str(directory) if writable(directory) else None)
    return partial(CompiledKernel, entries=entries)


def _sources() -> list[Path]:
    """All modules of the laws, any of which may be compiled."""
    return sorted(Path(__file__).parent.parent.rglob("*.py"))
