"""Chooses the form of the laws: numpy, or code compiled by numba, the optional extra `compiled`.

Compiling takes half a minute of one core at first, and less than a second from the cache, which
needs a home directory, or XDG_CACHE_HOME, that can be written to.
"""

from enum import StrEnum
from functools import cache
from pathlib import Path

from servingslo.compiling import cache_directory, compiler_installed, writable
from servingslo.errors import InvalidInputError
from servingslo.models.kernel import Maker, choose_kernels, chosen_kernels


class LawForm(StrEnum):
    """Who evaluates the laws. Both agree to 1e-5 as a rule, and not to the last bit."""

    NUMPY = "numpy"
    COMPILED = "compiled"


def use_laws(form: LawForm) -> None:
    """Let models prepared from now on be evaluated in this form.

    Raises: InvalidInputError for the compiled form without the extra.
    """
    if form is LawForm.COMPILED and not compiler_installed():
        allowed = "numpy; compiled needs the extra servingslo[compiled]"
        raise InvalidInputError("laws", form.value, allowed)
    choose_kernels(_maker() if form is LawForm.COMPILED else None)


def laws_in_use() -> LawForm:
    """The form that models prepared now are evaluated in."""
    return LawForm.NUMPY if chosen_kernels() is None else LawForm.COMPILED


@cache
def _maker() -> Maker:
    from servingslo.models.compiled.engine import CompiledMaker  # noqa: PLC0415 - optional, slow
    from servingslo.models.compiled.entry import compile_entries  # noqa: PLC0415 - optional, slow

    directory = cache_directory(_sources())
    entries = compile_entries(str(directory) if writable(directory) else None)
    return CompiledMaker(entries)


def _sources() -> list[Path]:
    """All modules of the laws, any of which may be compiled."""
    return sorted(Path(__file__).parent.parent.rglob("*.py"))
