"""The replicas of a CapacityBuffer that its owner labelled, and those that the owner stated.

Source: sigs.k8s.io/karpenter v1.15.0, pkg/apis/crds and pkg/controllers/capacitybuffer: the virtual
pods of a buffer are as many as `replicas`, and are those of the workload in `scalableRef` (an empty
group is apps) or of `podTemplateRef`. Of `replicas` and `percentage` the greater counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter

from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.marked_objects import AS_WRITTEN, Count
from servingslo.adapters.kubernetes.api.owned_fields import OwnedValue, OwnedValues
from servingslo.adapters.kubernetes.gateways.services import refuse
from servingslo.policy.inputs import ScaleTarget

BUFFER_ANNOTATION = "servingslo.dev/node-buffer"
KIND = "CapacityBuffer"
_APPS = "apps"


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferOwner:
    """The annotation's content: whose replicas these are, and the former ones."""

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    name: str
    uid: str
    replicas: Count
    former: Count


_OWNER = TypeAdapter(BufferOwner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer(OwnedValue[BufferOwner]):
    """One CapacityBuffer."""

    @property
    def replicas(self) -> int | None:
        """Its replicas; None if it states none."""
        found = self.spec.get("replicas")
        return found if isinstance(found, int) else None

    @property
    def is_ours(self) -> bool:
        """Whether the present replicas are the operator's last written ones."""
        return self.owner is not None and self.replicas == self.owner.replicas

    def written(self, owner: BufferOwner) -> list[KubeObject]:
        """The change that sets the replicas."""
        return _set(owner.replicas)

    def restored(self, owner: BufferOwner) -> list[KubeObject]:
        """The change that sets the owner's."""
        return _set(owner.former)

    def check(self, target: ScaleTarget) -> None:
        """Check that it has the pods of this target. Raises: LimitNotEnforceableError if not."""
        scaled, group = self.spec.get("scalableRef") or {}, target.api_version.rpartition("/")[0]
        found = (scaled.get("apiGroup") or _APPS, scaled.get("kind"), scaled.get("name"))
        of_another = bool(scaled) and found != (group, target.kind, target.name)
        percentage = self.spec.get("percentage") is not None
        refuse(
            (self.replicas is None, "it states no replicas"),
            (percentage, "it states a percentage, of which and of replicas the greater counts"),
            (of_another, f"it is for {found[1]}/{found[2]}, not for {target.kind}/{target.name}"),
        )


Buffers = OwnedValues[Buffer, BufferOwner]


def capacity_buffers(client: KubeClient, *, namespaces: Sequence[str] = ()) -> Buffers:
    """The CapacityBuffers of the watched namespaces; no namespace means all."""
    return OwnedValues(
        client=client,
        api_version="autoscaling.x-k8s.io/v1beta1",
        plural="capacitybuffers",
        annotation=BUFFER_ANNOTATION,
        record=_OWNER,
        make=lambda item, owner: Buffer(kind=KIND, item=item, owner=owner),
        namespaces=namespaces,
    )


def _set(replicas: int) -> list[KubeObject]:
    return [{"op": "add", "path": "/spec/replicas", "value": replicas}]
