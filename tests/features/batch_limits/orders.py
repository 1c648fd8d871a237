"""What begins a canary."""

from typing import Any

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.features.batch_limits.decision import TemplateDecision
from servingslo.reasons import Reason


def canary_order(
    before: tuple[int, int], after: tuple[int, int], runtime: str = "vllm", **decided: Any
) -> tuple[ResourceRef, int, TemplateDecision, str]:
    """What begins a canary, behind its target. decided: further fields of the decision."""
    batching = TemplateDecision(
        reason=Reason.BATCHING_CANARY_STARTED,
        current_max_num_seqs=before[0],
        current_max_num_batched_tokens=before[1],
        recommended_max_num_seqs=after[0],
        recommended_max_num_batched_tokens=after[1],
        **decided,
    )
    return ResourceRef(namespace="a", name="chat", uid="u-1"), 1000, batching, runtime
