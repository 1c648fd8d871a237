"""The workload and the spec that tenants of the tests begin with."""

from collections.abc import Mapping, Sequence
from typing import Any

from servingslo_lab.rig.kubernetes.kwok import GPU_RESOURCE, READY_DELAY_ANNOTATION
from servingslo_lab.rig.simulated.engine_pods import ENGINE_LABEL, KIND_ANNOTATION

OBJECTIVES = (
    {"metric": "ttft", "percentile": 95, "threshold": "2s"},
    {"metric": "tpot", "percentile": 95, "threshold": "100ms"},
)


def slo_spec(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a ServingSLO on a Deployment, with these fields changed."""
    spec: dict[str, Any] = {
        "targetRef": {"kind": "Deployment", "name": name},
        "objectives": [dict(objective) for objective in OBJECTIVES],
        "replicas": {"min": 1, "max": 4},
        "coldStart": "5s",
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}},
    }
    return {**spec, **changes}


def workload(
    name: str, *, replicas: int, args: Sequence[str] = (), ready_delay: str = "500ms"
) -> dict[str, Any]:
    """A Deployment or StatefulSet of simulated engines of a small card."""
    flags = ["--model=tiny", "--max-num-seqs=64", "--max-num-batched-tokens=2048", *args]
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {
                    "labels": {"app": name, ENGINE_LABEL: "vllm"},
                    "annotations": {
                        KIND_ANNOTATION: "l4-small",
                        READY_DELAY_ANNOTATION: ready_delay,
                    },
                },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [
                        {
                            "name": "vllm",
                            "image": "vllm/vllm-openai:v0.32.0",
                            "args": flags,
                            "resources": {"limits": {GPU_RESOURCE: "1"}},
                        }
                    ],
                },
            },
        },
    }
