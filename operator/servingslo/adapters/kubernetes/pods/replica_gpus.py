"""GPUs of one replica, from the devices that its pod template requests.

Whole cards are counted by the resource names of their device plugins. Slices and shares of a card,
and claims of dynamic resource allocation, have no number of GPUs in the template: they are refused
with a reason, and `gpusPerReplica` states the number.

Source: the device plugins of NVIDIA, AMD, Intel, Habana, Google and AWS; core/v1 PodSpec.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from servingslo.adapters.kubernetes.pods.container_fields import (
    asked,
    is_card,
    native_sidecars,
)
from servingslo.policy.inputs import ReplicaGpus

_STATE_IT = "state gpusPerReplica"
# Resources that are one whole card each.
_WHOLE_CARDS = frozenset(
    {
        "nvidia.com/gpu",
        "amd.com/gpu",
        "gpu.intel.com/i915",
        "gpu.intel.com/xe",
        "habana.ai/gaudi",
        "google.com/tpu",
        "aws.amazon.com/neuron",
    }
)


def replica_gpus(template: Mapping[str, Any]) -> ReplicaGpus:
    """GPUs of a pod of this template; unknown, with the reason, if they cannot be counted."""
    spec: Mapping[str, Any] = template.get("spec") or {}
    running: Sequence[Mapping[str, Any]] = [*(spec.get("containers") or ()), *native_sidecars(spec)]
    if spec.get("resourceClaims") or any(
        (one.get("resources") or {}).get("claims") for one in running
    ):
        return ReplicaGpus(refused=f"the pod template claims devices (resourceClaims); {_STATE_IT}")
    total = 0
    for container in running:
        for name, quantity in asked(container.get("resources") or {}).items():
            if not is_card(name):
                continue
            if name not in _WHOLE_CARDS or not str(quantity).isdecimal():
                return ReplicaGpus(
                    refused=f"{name} of the pod template is not counted in whole GPUs; {_STATE_IT}"
                )
            total += int(quantity)
    if not total:
        return ReplicaGpus(refused=f"the pod template requests no GPU; {_STATE_IT}")
    return ReplicaGpus(gpus=total)


def not_read(kind: str) -> ReplicaGpus:
    """Of a kind whose pod template is not read."""
    return ReplicaGpus(refused=f"the pod template of a {kind} is not read; {_STATE_IT}")
