"""spec.nodes."""

from typing import Annotated, Any

from pydantic import Field

from servingslo.api.constraints import (
    MAX_REPLICAS,
    Between,
    Count,
    DurationBetween,
    cel_rule,
    not_allowed,
)
from servingslo.api.patterns import DNS_NAME
from servingslo.api.spec_base import ApiModel, SpecPart
from servingslo.features.node_buffer.decision import TARGETS, NodeTargets
from servingslo.units import parse_duration_seconds

_NO_POOLS = "none with pools"


class NodeBufferSpec(ApiModel):
    """The CapacityBuffer whose replicas follow the forecast."""

    name: Annotated[str, DNS_NAME] = Field(
        description="Name of a CapacityBuffer (autoscaling.x-k8s.io/v1beta1) in this namespace, "
        'with the label servingslo.dev/managed: "true", replicas, and scalableRef of the target or '
        "podTemplateRef. Its own replicas are the least."
    )
    max: Annotated[Count, Between(1, MAX_REPLICAS)] | None = Field(
        None,
        description="Most replicas of the buffer, 1 to 10000; by default what the administrator "
        "allows.",
    )


class Nodes(ApiModel):
    """Nodes that are ordered before pods need them."""

    buffer: NodeBufferSpec = Field(description="What a node autoscaler keeps free.")
    lead: Annotated[str, DurationBetween("10s", "30m")] | None = Field(
        None,
        description="Time from the order of a node until a pod runs on it, 10s to 30m; by default "
        "measured from pods that waited for one.",
    )


def _targets(stated: Nodes) -> NodeTargets:
    lead = stated.lead
    return NodeTargets(
        buffer=stated.buffer.name,
        max_replicas=stated.buffer.max,
        lead_seconds=None if lead is None else parse_duration_seconds(lead),
    )


def _check(spec: Any) -> None:
    """Refuse one beside pools."""
    if spec.nodes is not None and spec.pools is not None:
        raise not_allowed(_NO_POOLS, path=(TARGETS.name,), value=spec.nodes.buffer.name)


PART = SpecPart(
    key=TARGETS,
    field=(
        Nodes | None,
        Field(
            None,
            description="Nodes that are ordered before pods need them; none by default, and none "
            "with pools.",
        ),
    ),
    targets=_targets,
    rules=(
        cel_rule(
            "!has(self.nodes) || !has(self.pools)",
            allowed=_NO_POOLS,
            got="%s",
            values=("self.nodes.buffer.name",),
            field_path=".nodes",
        ),
    ),
    check=_check,
)
