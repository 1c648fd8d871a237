"""The runtimes that are known; an explicit list, open to more, never a default."""

from servingslo.errors import UnknownRuntimeError
from servingslo.runtimes.profile import RuntimeProfile
from servingslo.runtimes.sglang import SGLANG
from servingslo.runtimes.triton import TRITON
from servingslo.runtimes.vllm import VLLM

# One row for each runtime.
CATALOGUE: tuple[RuntimeProfile, ...] = (VLLM, SGLANG, TRITON)
RUNTIME_NAMES = tuple(runtime.name for runtime in CATALOGUE)
# What a resource says that states none.
AUTO_RUNTIME = "Auto"


def profile(name: str) -> RuntimeProfile:
    """The profile of a runtime, by its name in a ServingSLO's `runtime` field.

    Raises: UnknownRuntimeError when no profile has the name.
    """
    for known in CATALOGUE:
        if known.name == name:
            return known
    raise UnknownRuntimeError("runtime", name, ", ".join(RUNTIME_NAMES))
