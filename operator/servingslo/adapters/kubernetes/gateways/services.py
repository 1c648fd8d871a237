"""Check that a Service behind a gateway selects one workload only."""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Protocol

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.adapters.kubernetes.gateways.limits import LimitHolder
from servingslo.adapters.kubernetes.pods.records import FINISHED_PHASES
from servingslo.errors import LimitNotEnforceableError, NotFoundError
from servingslo.units import seconds_from_timestamp

_PODS_LIMIT = "1000"
# An evicted pod is kept, and no Service leads to it. Source: Kubernetes, "Field Selectors".
_UNFINISHED = ",".join(f"status.phase!={phase}" for phase in sorted(FINISHED_PHASES))
# The longest delay until a watch reports a new pod.
_SEEN_SECONDS = 30.0


class LimitReach(Protocol):
    """Checks which pods the bound in an object applies to."""

    async def check(
        self,
        policy: LimitHolder,
        others: Sequence[LimitHolder],
        pods: Collection[str],
        fallback: str | None = None,
    ) -> None:
        """Check that the object's bound applies to exactly these pods.

        others: every object of its kind in its namespace. fallback: a Service that the gateway may
        lead to as well, if it counts it apart.
        Raises: LimitNotEnforceableError if it does not; ClusterError if that cannot be determined.
        """
        ...


class GatewayServices:
    """Reads Services and the pods that they select."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def check_serves(self, namespace: str, name: str) -> None:
        """Check that the Service exists and, if it selects pods, that one of them is Ready.

        Raises: LimitNotEnforceableError if not; ClusterError if that cannot be determined.
        """
        selector = await self._selector(namespace, name)
        pods = await self._pods(namespace, selector) if selector else ()
        if selector and not any(map(_is_ready, pods)):
            raise LimitNotEnforceableError(f"Service/{name} has no Ready pod")

    async def check(self, namespace: str, name: str, pods: Collection[str]) -> None:
        """Check that the Service selects exactly these pods; of a target at zero, none of others.

        Raises: LimitNotEnforceableError if it does not; ClusterError if that cannot be determined.
        """
        selector = await self._selector(namespace, name)
        if not selector:
            raise LimitNotEnforceableError(f"Service/{name} selects no pods")
        found = await self._pods(namespace, selector)
        if pods and {item["metadata"]["name"] for item in found}.isdisjoint(pods):
            raise LimitNotEnforceableError(f"Service/{name} selects none of this workload's pods")
        settled = {item["metadata"]["name"] for item in found if _is_settled(item)}
        for strange in sorted(settled.difference(pods)):
            raise LimitNotEnforceableError(
                f"Service/{name} selects pods of others as well, such as {strange}"
            )

    async def _selector(self, namespace: str, name: str) -> Mapping[str, str] | None:
        path = api_path("v1", "services", namespace=namespace, name=name)
        missing = f"Service/{name} is not in this namespace"
        found = await found_or(missing, self._client.get(path))
        selector: Mapping[str, str] | None = found["spec"].get("selector")
        return selector

    async def _pods(self, namespace: str, selector: Mapping[str, str]) -> Sequence[KubeObject]:
        labels = ",".join(f"{key}={value}" for key, value in selector.items())
        query = {"labelSelector": labels, "fieldSelector": _UNFINISHED, "limit": _PODS_LIMIT}
        answer = await self._client.get(api_path("v1", "pods", namespace=namespace), query)
        found: Sequence[KubeObject] = answer["items"]
        return found


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


def _is_ready(pod: KubeObject) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _is_settled(pod: KubeObject) -> bool:
    """Whether the pod may get requests, and the watch, which is delayed, must have reported it."""
    metadata = pod["metadata"]
    made = seconds_from_timestamp(metadata.get("creationTimestamp")) or 0.0
    age_seconds = SystemClock.now_seconds() - made
    return not metadata.get("deletionTimestamp") and age_seconds >= _SEEN_SECONDS
