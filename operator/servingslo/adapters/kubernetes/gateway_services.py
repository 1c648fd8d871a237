"""Check that a Service behind a gateway selects one workload only."""

from collections.abc import Awaitable, Collection, Sequence
from typing import Protocol

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.gateway_limits import LimitHolder
from servingslo.adapters.kubernetes.timestamps import seconds_from_timestamp
from servingslo.errors import LimitNotEnforceableError, NotFoundError

_PODS_LIMIT = "1000"
# The longest delay until a watch reports a new pod.
_SEEN_SECONDS = 30.0


class LimitReach(Protocol):
    """Checks which pods the bound in an object applies to."""

    async def check(
        self, policy: LimitHolder, others: Sequence[LimitHolder], pods: Collection[str]
    ) -> None:
        """Check that the object's bound applies to exactly these pods.

        others: every object of its kind in its namespace.
        Raises: LimitNotEnforceableError if it does not; ClusterError if that cannot be determined.
        """
        ...


class GatewayServices:
    """Reads Services and the pods that they select."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def check(self, namespace: str, name: str, pods: Collection[str]) -> None:
        """Check that the Service selects exactly these pods.

        Raises: LimitNotEnforceableError if it does not; ClusterError if that cannot be determined.
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
    """Raises: LimitNotEnforceableError with the sentence of the first problem that holds."""
    for is_so, problem in problems:
        if is_so:
            raise LimitNotEnforceableError(problem)


async def found_or(missing: str, reading: Awaitable[KubeObject]) -> KubeObject:
    """Await a read. Raises: LimitNotEnforceableError that names a missing object; ClusterError."""
    try:
        return await reading
    except NotFoundError as error:
        raise LimitNotEnforceableError(missing) from error


def _is_settled(pod: KubeObject) -> bool:
    """Whether the watch must have reported the pod by now; watches are delayed."""
    metadata = pod["metadata"]
    made = seconds_from_timestamp(metadata.get("creationTimestamp")) or 0.0
    age_seconds = SystemClock.now_seconds() - made
    return not metadata.get("deletionTimestamp") and age_seconds >= _SEEN_SECONDS
