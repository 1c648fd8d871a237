"""What the controller needs from adapters, bundled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from servingslo.adapters.kubernetes.resources import ResourceRecord, ResourceRef
from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.explain.events import Event
from servingslo.policy.inputs import ScaleTarget, SignalProblem
from servingslo.policy.ports import (
    BatchingWriter,
    Clock,
    HistorySource,
    MetricsSource,
    ReplicaWriter,
    WorkloadSource,
)


class RereadableWorkloads(WorkloadSource, Protocol):
    """A workload source with a memory that can be passed over."""

    def distrust(self, namespace: str, target: ScaleTarget) -> None:
        """Read this target from the API server itself the next time."""
        ...

    async def other_scalers(self, namespace: str, target: ScaleTarget) -> Sequence[SignalProblem]:
        """Who else scales the target, as the API server has it now. Raises: ClusterError."""
        ...


class ResourceStore(Protocol):
    """The ServingSLO resources."""

    async def read_all(self) -> Sequence[ResourceRecord]:
        """Every resource of the watched namespaces. Raises: ClusterError."""
        ...

    async def read(self, ref: ResourceRef) -> ResourceRecord:
        """The resource of that name as it is now. Raises: NotFoundError, ClusterError."""
        ...

    async def patch_status(self, ref: ResourceRef, changed: Mapping[str, Any]) -> None:
        """Merge the changed fields of the status. Raises: ClusterError."""
        ...


class EventSink(Protocol):
    """Events about resources."""

    async def post(self, ref: ResourceRef, event: Event, now_seconds: float) -> None:
        """Write, count or suppress the event. Raises: ClusterError."""
        ...

    def forget(self, ref: ResourceRef) -> None:
        """Drop what is remembered of a deleted resource."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The outside world of one operator. history: None where the past is not asked for."""

    clock: Clock
    metrics: MetricsSource
    workloads: RereadableWorkloads
    replicas: ReplicaWriter
    batching: BatchingWriter
    resources: ResourceStore
    events: EventSink
    exporter: OperatorMetrics
    history: HistorySource | None = None
