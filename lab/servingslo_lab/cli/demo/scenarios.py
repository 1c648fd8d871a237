"""What the demo can show, and what is built for it."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from servingslo_lab.rig.programs.downloads import TRITON_WHEELS, UPSTREAM_CRDS, Download
from servingslo_lab.rig.programs.versions import DEFAULT_TOOLS, GATEWAY_TOOLS, LLM_D_SIM, Tool


class Scenario(StrEnum):
    """What happens in the demo."""

    SURGE = "surge"
    FLASH_CROWD = "flash-crowd"
    BATCH_LIMITS = "batch-limits"
    TRITON = "triton"
    DISAGGREGATED = "disaggregated"
    CLASSES = "classes"


class DemoEngine(StrEnum):
    """What answers in the demo of a surge."""

    SIMULATED = "simulated"
    LLM_D_SIM = "llm-d-sim"


_BEHIND_ENVOY = ((*DEFAULT_TOOLS, *GATEWAY_TOOLS), (UPSTREAM_CRDS,))
# What is built and fetched for a scenario, if it is more than the control plane.
NEEDS: Mapping[Scenario | DemoEngine, tuple[Sequence[Tool], Sequence[Download]]] = {
    Scenario.FLASH_CROWD: _BEHIND_ENVOY,
    Scenario.BATCH_LIMITS: _BEHIND_ENVOY,
    Scenario.CLASSES: _BEHIND_ENVOY,
    Scenario.TRITON: (DEFAULT_TOOLS, (TRITON_WHEELS,)),
    DemoEngine.LLM_D_SIM: ((*DEFAULT_TOOLS, LLM_D_SIM), ()),
}
