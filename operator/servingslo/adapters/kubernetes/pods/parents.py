"""Objects that make a workload and own it: which of their workloads one is, by its labels.

Source: github.com/kserve/kserve v0.20.0, pkg/controller/v1alpha2/llmisvc (singleNodeLabels,
expectedPrefillMainDeployment, expectedMainMultiNodeLWS, expectedPrefillMultiNodeLWS) and
pkg/controller/v1beta1/inferenceservice/components/predictor.go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from servingslo.adapters.kubernetes.api.client import KubeObject
from servingslo.policy.inputs import ScaleTarget

KSERVE = "serving.kserve.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOf:
    """The object that made a workload. part: '' for its main one, or which of the others."""

    kind: str
    name: str
    part: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parent:
    """Of one kind: the label that separates its workloads, and the part by the label's value."""

    label: str
    parts: Mapping[str, str]


_PARENTS = MappingProxyType(
    {
        # The router and the endpoint picker have other components, and are no part.
        "LLMInferenceService": _Parent(
            label="app.kubernetes.io/component",
            parts={
                "llminferenceservice-workload": "",
                "llminferenceservice-workload-worker": "",
                "llminferenceservice-workload-prefill": "prefill",
                "llminferenceservice-workload-worker-prefill": "prefill",
            },
        ),
        "InferenceService": _Parent(label="component", parts={"predictor": ""}),
    }
)


def part_of(metadata: Mapping[str, Any]) -> PartOf | None:
    """Whose part a workload is; None if its controller is no such object."""
    owners: Sequence[Mapping[str, Any]] = metadata.get("ownerReferences") or ()
    owner = next((one for one in owners if one.get("controller")), None)
    if owner is None or not str(owner.get("apiVersion")).startswith(f"{KSERVE}/"):
        return None
    parent = _PARENTS.get(str(owner.get("kind")))
    if parent is None:
        return None
    part = parent.parts.get((metadata.get("labels") or {}).get(parent.label, ""))
    return None if part is None else PartOf(kind=owner["kind"], name=owner["name"], part=part)


def part_wanted(target: ScaleTarget) -> PartOf | None:
    """The part that a target stands for; None if it stands for itself."""
    if target.api_version.partition("/")[0] != KSERVE or target.kind not in _PARENTS:
        return None
    return PartOf(kind=target.kind, name=target.name, part=target.part)


def parts_in(items: Sequence[KubeObject], wanted: PartOf) -> tuple[str, ...]:
    """The names of those objects that are this part."""
    found = (one["metadata"] for one in items)
    return tuple(one["name"] for one in found if part_of(one) == wanted)
