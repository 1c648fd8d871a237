"""Writes replica counts through /scale: implements `policy.ports.ReplicaWriter`."""

from servingslo.adapters.kubernetes.api.client import KubeClient, Patch
from servingslo.adapters.kubernetes.api.discovery import Discovery
from servingslo.errors import InvalidObjectError, WriteConflictError
from servingslo.policy.inputs import ScaleTarget


class KubernetesReplicas:
    """JSON Patch with a test of the replica count that the plan started from.

    A resourceVersion precondition is not used: the target's own controller changes it constantly
    while scaling. The test fails only if another writer changed the replica count.
    """

    def __init__(self, client: KubeClient, discovery: Discovery) -> None:
        self._client = client
        self._discovery = discovery

    async def scale(self, namespace: str, target: ScaleTarget, before: int, after: int) -> None:
        """Set the replica count if it is still `before`.

        Raises: WriteConflictError if it is not; ClusterError otherwise.
        """
        resource = await self._discovery.resolve_scalable(target.api_version, target.kind)
        path = resource.path(namespace, target.name, "scale")
        # A Scale's JSON omits a count of zero, and a test of an absent path always fails.
        test = (
            {"op": "test", "path": "/spec/replicas", "value": before}
            if before
            else {"op": "test", "path": "/spec", "value": {}}
        )
        change = {"op": "add", "path": "/spec/replicas", "value": after}
        try:
            await self._client.patch(path, [test, change], Patch.JSON)
        except InvalidObjectError as error:
            found = (await self._client.get(path)).get("spec") or {}
            if found.get("replicas", 0) != before:
                raise WriteConflictError(
                    f"{target.kind}/{target.name}: replicas are {found.get('replicas', 0)}, "
                    f"not {before} any more"
                ) from error
            raise
