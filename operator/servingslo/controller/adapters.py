"""What the controller needs from adapters, bundled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from servingslo.adapters.kubernetes.resources import ResourceRecord, ResourceRef
from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.controller.actuators.protocol import Actuator
from servingslo.explain.events import Event
from servingslo.policy.ports import (
    Clock,
    FeatureReader,
    HistorySource,
    MetricsSource,
    RereadableWorkloads,
)


class ResourceStore(Protocol):
    """The ServingSLO resources on the cluster."""

    async def read_all(self) -> Sequence[ResourceRecord]:
        """Every resource of the watched namespaces.

        Raises: PartlyListedError with the others if some namespaces refuse; ClusterError.
        """
        ...

    async def read(self, ref: ResourceRef) -> ResourceRecord:
        """The resource of that name as it is now. Raises: NotFoundError, ClusterError."""
        ...

    async def patch_status(self, ref: ResourceRef, changed: Mapping[str, Any]) -> None:
        """Merge the changed fields of the status. Raises: ClusterError."""
        ...

    async def hand_over(self, known: ResourceRecord, changed: Mapping[str, Any]) -> ResourceRecord:
        """The same, only if the resource is as known. Raises: WriteConflictError, ClusterError."""
        ...


class EventSink(Protocol):
    """Events about resources."""

    async def post(self, ref: ResourceRef, event: Event, now_seconds: float) -> None:
        """Write, count or suppress the event. Raises: ClusterError."""
        ...

    def forget(self, ref: ResourceRef) -> None:
        """Drop what is remembered of a deleted resource."""
        ...


class Routing(Protocol):
    """How a gateway routes to workloads."""

    async def not_kept(self, namespace: str, name: str) -> str:
        """Why requests to a route would not be counted without a pod; '' if they would."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The outside world of one operator.

    actuators: in the order in which a decision is carried out. history: None if the past is not
    read. readers: of features. routing: None if no gateway is read that may count no requests for a
    workload without pods.
    """

    clock: Clock
    metrics: MetricsSource
    workloads: RereadableWorkloads
    actuators: tuple[Actuator, ...]
    resources: ResourceStore
    events: EventSink
    exporter: OperatorMetrics
    history: HistorySource | None = None
    readers: tuple[FeatureReader, ...] = ()
    routing: Routing | None = None
