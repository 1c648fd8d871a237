"""The known runtimes: an explicit list that can be extended; there is no default."""

from collections.abc import Iterable

from servingslo.errors import UnknownRuntimeError
from servingslo.runtimes.engines.sglang import SGLANG
from servingslo.runtimes.engines.triton import TRITON
from servingslo.runtimes.engines.trtllm import TRTLLM
from servingslo.runtimes.engines.vllm import VLLM
from servingslo.runtimes.profile import RuntimeProfile

# One row for each runtime.
CATALOGUE: tuple[RuntimeProfile, ...] = (VLLM, SGLANG, TRITON, TRTLLM)
# The value of a resource that does not state a runtime.
AUTO_RUNTIME = "Auto"
# Runtimes that the administrator added or changed, by name.
_ADDED: dict[str, RuntimeProfile] = {}


def add(profiles: Iterable[RuntimeProfile]) -> None:
    """Add these runtimes and drop earlier additions; called once, at the start."""
    _ADDED.clear()
    _ADDED.update((profile.name, profile) for profile in profiles)


def known() -> tuple[RuntimeProfile, ...]:
    """Every runtime: the catalogue's, with the administrator's changes and additions."""
    return tuple(({profile.name: profile for profile in CATALOGUE} | _ADDED).values())


def names() -> tuple[str, ...]:
    """The allowed values of `runtime` other than Auto."""
    return tuple(profile.name for profile in known())


def profile(name: str) -> RuntimeProfile:
    """The profile of a runtime, by its name in a ServingSLO's `runtime` field.

    Raises: UnknownRuntimeError if no profile has the name.
    """
    for one in known():
        if one.name == name:
            return one
    raise UnknownRuntimeError("runtime", name, ", ".join(names()))
