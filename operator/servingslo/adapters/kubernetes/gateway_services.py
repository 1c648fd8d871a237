"""Whether a Service that a gateway sends requests to leads to a workload, and to it alone."""

from collections.abc import Awaitable, Collection, Sequence
from typing import Protocol

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.gateway_limits import LimitHolder
from servingslo.adapters.kubernetes.timestamps import seconds_from_timestamp
from servingslo.errors import LimitNotEnforceableError, NotFoundError

_PODS_LIMIT = "1000"
# How late a watch may tell of a new pod.
_SEEN_SECONDS = 30.0


class LimitReach(Protocol):
    """Finds out whom the bound in an object is for."""

    async def check(
        self, policy: LimitHolder, others: Sequence[LimitHolder], pods: Collection[str]
    ) -> None:
        """Whether the object's bound is that of these pods, and of no others.

        others: every object of its kind in its namespace.
        Raises: LimitNotEnforceableError where it is not; ClusterError where that cannot be told.
        """
        ...


class GatewayServices:
    """Reads Services and the pods that they select."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def check(self, namespace: str, name: str, pods: Collection[str]) -> None:
        """Whether the Service selects these pods, and no others.

        Raises: LimitNotEnforceableError where it does not; ClusterError where that cannot be told.
        """
        path = f"/api/v1/namespaces/{namespace}/services/{name}"
        missing = f"Service/{name} is not in this namespace"
        selector = (await found_or(missing, self._client.get(path)))["spec"].get("selector")
        if not selector:
            raise LimitNotEnforceableError(f"Service/{name} selects no pods")
        labels = ",".join(f"{key}={value}" for key, value in selector.items())
        query = {"labelSelector": labels, "limit": _PODS_LIMIT}
        found = (await self._client.get(f"/api/v1/namespaces/{namespace}/pods", query))["items"]
        if {item["metadata"]["name"] for item in found}.isdisjoint(pods):
            raise LimitNotEnforceableError(f"Service/{name} selects none of this workload's pods")
        settled = {item["metadata"]["name"] for item in found if _is_settled(item)}
        for strange in sorted(settled.difference(pods)):
            raise LimitNotEnforceableError(
                f"Service/{name} selects pods of others as well, such as {strange}"
            )


def refuse(*problems: tuple[object, str]) -> None:
    """Raises: LimitNotEnforceableError with the first of these sentences that is so."""
    for is_so, problem in problems:
        if is_so:
            raise LimitNotEnforceableError(problem)


async def found_or(missing: str, reading: Awaitable[KubeObject]) -> KubeObject:
    """What is read. Raises: LimitNotEnforceableError that says what is missing; ClusterError."""
    try:
        return await reading
    except NotFoundError as error:
        raise LimitNotEnforceableError(missing) from error


def _is_settled(pod: KubeObject) -> bool:
    """Whether the view of the workload must know the pod by now; a watch tells late."""
    metadata = pod["metadata"]
    made = seconds_from_timestamp(metadata.get("creationTimestamp")) or 0.0
    age_seconds = SystemClock.now_seconds() - made
    return not metadata.get("deletionTimestamp") and age_seconds >= _SEEN_SECONDS
