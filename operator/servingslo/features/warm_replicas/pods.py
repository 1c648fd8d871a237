"""One pod on its way to sleep and back: a label keeps requests away, its engine is asked by HTTP.

Services and pools of a gateway select `servingslo.dev/serving: "true"`, a label of the pod template
that its ReplicaSet does not select. So a pod that starts serves, whether an operator runs or not.
One patch sets it to "false", says who did so, and makes Kubernetes remove this pod first.
"""

from dataclasses import dataclass

from servingslo.adapters.engines.channel import EngineChannel
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.marked_objects import (
    annotated,
    annotations_of,
    patch_unchanged,
    removed_annotation,
)
from servingslo.adapters.kubernetes.api.paths import ApiPath, api_path
from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.errors import (
    ClusterUnavailableError,
    EngineRefusedError,
    NotFoundError,
    WriteConflictError,
)
from servingslo.runtimes.catalogue import known
from servingslo.runtimes.profile import SleepApi

LABEL, SERVING, NOT_SERVING = "servingslo.dev/serving", "true", "false"
OWNER_ANNOTATION = "servingslo.dev/on-call"
# Source: Kubernetes, ReplicaSet, "Pod deletion cost": of pods that are Ready, lower ones go first.
DELETION_COST, FIRST = "controller.kubernetes.io/pod-deletion-cost", "-1"
# An engine without these paths cannot have been put to sleep by them.
_NO_PATH = frozenset({404, 405})


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCall:
    """Who took a pod out of the traffic, and the runtime of its engine."""

    owner: ResourceRef
    runtime: str

    def __str__(self) -> str:
        """'name/uid/runtime', as in the annotation."""
        return f"{self.owner.name}/{self.owner.uid}/{self.runtime}"


def on_call(item: KubeObject) -> OnCall | None:
    """Who took this pod out; None if nobody did, or if that cannot be read."""
    name, _, rest = annotations_of(item).get(OWNER_ANNOTATION, "").partition("/")
    uid, _, runtime = rest.partition("/")
    namespace = str(item["metadata"]["namespace"])
    if not name or not uid or sleep_api(runtime) is None:
        return None
    return OnCall(owner=ResourceRef(namespace=namespace, name=name, uid=uid), runtime=runtime)


def sleep_api(runtime: str | None) -> SleepApi | None:
    """How engines of a runtime are put to sleep; None if they cannot be."""
    return next((one.sleep_api for one in known() if one.name == runtime), None)


@dataclass(frozen=True, slots=True)
class SleepingPods:
    """Takes pods out of the traffic, puts them to sleep and wakes them."""

    client: KubeClient
    channel: EngineChannel
    port: int

    async def read(self, namespace: str, pod: str) -> KubeObject:
        """The pod as it is now. Raises: ClusterError."""
        return await self.client.get(_path(namespace, pod))

    async def take_out(self, ref: ResourceRef, pod: str, runtime: str) -> None:
        """Let it get no requests from now on. Raises: WriteConflictError if it changed."""
        item = await self.read(ref.namespace, pod)
        labels = item["metadata"].get("labels") or {}
        if item["metadata"].get("deletionTimestamp") or labels.get(LABEL) != SERVING:
            raise WriteConflictError(f"{pod} is not as it was read any more")
        said = str(OnCall(owner=ref, runtime=runtime))
        marked = annotated(item, OWNER_ANNOTATION, said)
        # With the annotations there already, none has to be made for the second one.
        cost = list(annotated(item, DELETION_COST, FIRST))[-1:]
        await self._patch(item, [_labelled(NOT_SERVING), *marked, *cost])

    async def put_to_sleep(self, ref: ResourceRef, pod: str) -> None:
        """Put the engine of a pod that is out to sleep. Raises: ClusterError."""
        item = await self.read(ref.namespace, pod)
        found = on_call(item)
        if found is None or found.owner != ref or item["metadata"]["labels"][LABEL] == SERVING:
            raise WriteConflictError(f"{pod} is not as it was read any more")
        await self._ask(item, found, wakes=False)

    async def wake(self, item: KubeObject, found: OnCall) -> int:
        """Wake its engine, then let it get requests again; 1. Raises: ClusterError."""
        try:
            await self._ask(item, found, wakes=True)
        except EngineRefusedError as error:
            if error.status not in _NO_PATH:
                raise
        gone = [key for key in (OWNER_ANNOTATION, DELETION_COST) if key in annotations_of(item)]
        await self._patch(item, [_labelled(SERVING), *map(removed_annotation, gone)])
        return 1

    async def _ask(self, item: KubeObject, found: OnCall, *, wakes: bool) -> None:
        record, api = pod_record(item, None), sleep_api(found.runtime)
        if record.finished or record.deleting:
            # Its address may be another pod's by now.
            raise NotFoundError(f"{record.name} has ended")
        if api is None or record.address is None:
            raise ClusterUnavailableError(f"{record.name} has no address of its own")
        with self.client.permitted(record.namespace) as seconds:
            await self.channel.post(
                record.address,
                self.port,
                api.wake if wakes else api.sleep,
                {},
                namespace=record.namespace,
                timeout_seconds=seconds,
            )

    async def _patch(self, item: KubeObject, changes: list[KubeObject]) -> None:
        metadata = item["metadata"]
        path = _path(metadata["namespace"], metadata["name"])
        await patch_unchanged(self.client, path, item, f"Pod/{metadata['name']}", changes)


def _path(namespace: str, pod: str) -> ApiPath:
    return api_path("v1", "pods", namespace=namespace, name=pod)


def _labelled(value: str) -> KubeObject:
    path = f"/metadata/labels/{LABEL.replace('/', '~1')}"
    return {"op": "replace", "path": path, "value": value}
