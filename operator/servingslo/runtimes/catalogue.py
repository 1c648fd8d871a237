"""The runtimes that are known; an explicit list, open to more, never a default."""

from collections.abc import Iterable

from servingslo.errors import UnknownRuntimeError
from servingslo.runtimes.profile import RuntimeProfile
from servingslo.runtimes.sglang import SGLANG
from servingslo.runtimes.triton import TRITON
from servingslo.runtimes.trtllm import TRTLLM
from servingslo.runtimes.vllm import VLLM

# One row for each runtime.
CATALOGUE: tuple[RuntimeProfile, ...] = (VLLM, SGLANG, TRITON, TRTLLM)
# What a resource says that states none.
AUTO_RUNTIME = "Auto"
# What the administrator added or changed, by name.
_ADDED: dict[str, RuntimeProfile] = {}


def add(profiles: Iterable[RuntimeProfile]) -> None:
    """Know these runtimes too, in place of those that were added before; once, when it starts."""
    _ADDED.clear()
    _ADDED.update((profile.name, profile) for profile in profiles)


def known() -> tuple[RuntimeProfile, ...]:
    """Every runtime: the catalogue's, as the administrator changed them, and those he added."""
    return tuple(({profile.name: profile for profile in CATALOGUE} | _ADDED).values())


def names() -> tuple[str, ...]:
    """What `runtime` may be beside Auto."""
    return tuple(profile.name for profile in known())


def profile(name: str) -> RuntimeProfile:
    """The profile of a runtime, by its name in a ServingSLO's `runtime` field.

    Raises: UnknownRuntimeError when no profile has the name.
    """
    for one in known():
        if one.name == name:
            return one
    raise UnknownRuntimeError("runtime", name, ", ".join(names()))
