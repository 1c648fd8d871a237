"""The operator's cached view of the cluster: pods, their owners, targets and other scalers.

There is one list and watch for each collection, for the whole cluster or for each watched
namespace. The number of requests does not grow with the number of ServingSLOs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from servingslo.adapters.kubernetes.api.cache import Absent, Caches, ObjectCache, listed
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.adapters.kubernetes.api.selectors import Selector, matches
from servingslo.adapters.kubernetes.pods.groups import as_group
from servingslo.adapters.kubernetes.pods.parents import PartOf
from servingslo.adapters.kubernetes.pods.records import (
    OwnerRecord,
    PodRecord,
    ScalerRecord,
    TargetRecord,
    autoscaler_record,
    deployment_record,
    pod_record,
    replica_set_record,
    scaled_object_record,
    stateful_set_record,
)
from servingslo.errors import ClusterError, NotFoundError, PermissionDeniedError
from servingslo.policy.inputs import ScaleTarget

T = TypeVar("T")

# Deployment → ReplicaSet → Pod has two levels; a few more for operators that own such workloads.
_DEEPEST_OWNERSHIP = 5
_START_TIMEOUT_SECONDS = 30.0
ALL_NAMESPACES = ""
# What a cluster may lack, by group and version.
_ABSENT: Mapping[str, Absent] = {
    "keda.sh/v1alpha1": {NotFoundError: "KEDA is not installed"},
}


class Collection(Generic[T]):
    """One kind of object, in one cache for the cluster or one for each watched namespace."""

    def __init__(
        self,
        client: KubeClient,
        base: str,
        plural: str,
        parse: Callable[[KubeObject, T | None], T],
        *,
        namespaces: Sequence[str],
        on_change: Callable[[T | None, T | None], None] | None = None,
    ) -> None:
        self._client, self._parse = client, parse
        self._base, self._plural = base, plural
        self.caches: dict[str, ObjectCache[T]] = {
            namespace: ObjectCache(
                client,
                api_path(base, plural, namespace=namespace or None),
                parse,
                on_change=on_change,
                absent=_ABSENT.get(base, {}),
            )
            for namespace in (namespaces or (ALL_NAMESPACES,))
        }

    def get(self, namespace: str, name: str) -> T | None:
        """The object, None if it does not exist or its namespace is not watched."""
        cache = self._cache(namespace)
        return cache.items.get((namespace, name)) if cache is not None else None

    async def read(self, namespace: str) -> list[T]:
        """Read the objects of one namespace from the API server; the result is not cached.

        Empty if the kind is not installed, or the operator is known to have no right to read it.
        Raises: ClusterError.
        """
        path = api_path(self._base, self._plural, namespace=namespace)
        try:
            found = await listed(self._client, path)
        except NotFoundError:
            return []
        except PermissionDeniedError:
            if isinstance(self.problem(namespace), PermissionDeniedError):
                return []
            raise
        return [self._parse(item, None) for item in found.items]

    def problem(self, namespace: str) -> ClusterError | None:
        """Why the objects of a namespace are not known; None if they are."""
        cache = self._cache(namespace)
        if cache is None:
            return NotFoundError(f"namespace {namespace} is not watched")
        if cache.problem is None and not cache.listed.is_set():
            return ClusterError(f"{cache.path} was not listed yet")
        return cache.problem

    def _cache(self, namespace: str) -> ObjectCache[T] | None:
        return self.caches.get(namespace) or self.caches.get(ALL_NAMESPACES)


class Inventory:
    """All cached collections, with the indexes that make a tick cheap."""

    def __init__(self, client: KubeClient, *, namespaces: Sequence[str] = ()) -> None:
        self._tasks = Caches()
        # By namespace and owner: what a tenant writes names no owner of another namespace.
        self._children: dict[tuple[str, str], set[str]] = {}
        self._owned_pods: dict[str, dict[str, PodRecord]] = {}
        self._namespace_pods: dict[str, dict[str, PodRecord]] = {}
        # The controlling owner of each watched workload, by its own uid.
        self._owner_of: dict[str, str | None] = {}
        self._replica_sets_by_uid: dict[str, OwnerRecord] = {}
        # The uids of Deployments and StatefulSets with pods of an older template.
        self._rolling: set[str] = set()
        # Desired replicas of each watched workload.
        self._replicas_of: dict[str, int] = {}
        self._scalers: dict[tuple[str, str, str, str], set[str]] = {}
        # Names of Deployments, by their namespace and the part of another object that they are.
        self._parts: dict[tuple[str, PartOf], set[str]] = {}

        def collection(
            base: str,
            plural: str,
            parse: Callable[[KubeObject, T | None], T],
            on_change: Callable[[T | None, T | None], None],
        ) -> Collection[T]:
            return Collection(
                client, base, plural, parse, namespaces=namespaces, on_change=on_change
            )

        self.pods = collection("v1", "pods", pod_record, self._pod_changed)
        self.replica_sets = collection(
            "apps/v1", "replicasets", replica_set_record, self._owner_changed
        )
        self.deployments = collection(
            "apps/v1", "deployments", deployment_record, self._deployment_changed
        )
        self.stateful_sets = collection(
            "apps/v1", "statefulsets", stateful_set_record, self._owner_changed
        )
        self.autoscalers = collection(
            "autoscaling/v2",
            "horizontalpodautoscalers",
            autoscaler_record,
            self._scaler_changed("HorizontalPodAutoscaler"),
        )
        self.scaled_objects = collection(
            "keda.sh/v1alpha1",
            "scaledobjects",
            scaled_object_record,
            self._scaler_changed("ScaledObject"),
        )

    async def start(self) -> None:
        """Start watching and wait for the first lists, at most half a minute."""
        targets = (*self.deployments.caches.values(), *self.stateful_sets.caches.values())
        await self._tasks.start(targets, timeout_seconds=_START_TIMEOUT_SECONDS)
        await self._tasks.start(
            self.replica_sets.caches.values(), timeout_seconds=_START_TIMEOUT_SECONDS
        )
        await self._tasks.start(self.pods.caches.values(), timeout_seconds=_START_TIMEOUT_SECONDS)
        scalers = (*self.autoscalers.caches.values(), *self.scaled_objects.caches.values())
        await self._tasks.start(scalers, timeout_seconds=_START_TIMEOUT_SECONDS)

    async def stop(self) -> None:
        """Stop watching."""
        await self._tasks.stop()

    def target_collection(self, target: ScaleTarget) -> Collection[TargetRecord] | None:
        """The collection of targets of this kind; None for kinds that are read one by one."""
        collections = {"Deployment": self.deployments, "StatefulSet": self.stateful_sets}
        return collections.get(target.kind) if target.api_version == "apps/v1" else None

    def workload_pods(
        self, namespace: str, *, target_uid: str | None, selector: Selector, strict: bool
    ) -> tuple[PodRecord, ...]:
        """The running pods that the selector matches and that the target owns, by name.

        strict: only pods whose chain of owners leads to the target. If not strict and there are no
        such pods: the matching pods whose chain ends at a kind not watched here. So an adapter
        with a /scale finds the pods of the workload behind it, and no pods of a plain Deployment.
        A pod that leads others is ready when they are.
        """
        owned = list(self._descendants(namespace, target_uid)) if target_uid is not None else []
        if not owned and not strict:
            owned = [
                pod
                for pod in self._namespace_pods.get(namespace, {}).values()
                if self._is_of_another_kind(pod)
            ]
        return tuple(
            sorted(
                (
                    self._with_workers(pod)
                    for pod in owned
                    if pod.namespace == namespace
                    and not pod.finished
                    and matches(selector, pod.labels)
                ),
                key=lambda pod: pod.name,
            )
        )

    async def scalers_now(
        self, namespace: str, group: str, kind: str, name: str
    ) -> tuple[str, ...]:
        """Like `scalers_of`, but read from the API server. Raises: ClusterError."""
        wanted = namespace, group, kind, name
        found = [
            f"{scaler}/{record.name}"
            for scaler, collection in (
                ("HorizontalPodAutoscaler", self.autoscalers),
                ("ScaledObject", self.scaled_objects),
            )
            for record in await collection.read(namespace)
            if _target_key(record) == wanted
        ]
        return tuple(sorted(found))

    def rolls_out(self, namespace: str, target_uid: str) -> bool:
        """Whether a target, or a workload that it owns, has pods of more than one template.

        So for a kind that owns ReplicaSets, as a Rollout does, or that makes other workloads.
        """
        level = {target_uid}
        for _ in range(_DEEPEST_OWNERSHIP):
            if not level.isdisjoint(self._rolling):
                return True
            owned = [self._children.get((namespace, owner), ()) for owner in level]
            if any(self._templates(uids) > 1 for uids in owned):
                return True
            level = {uid for uids in owned for uid in uids}
        return False

    def _templates(self, uids: Iterable[str]) -> int:
        """How many of these are ReplicaSets that want pods: each has a template of its own."""
        found = (self._replica_sets_by_uid.get(uid) for uid in uids)
        return sum(record is not None and record.replicas > 0 for record in found)

    def scalers_of(self, namespace: str, group: str, kind: str, name: str) -> tuple[str, ...]:
        """Other controllers of the target's replica count, as 'Kind/name'."""
        return tuple(sorted(self._scalers.get((namespace, group, kind, name), ())))

    def unasking(self, namespace: str, group: str, kind: str, name: str) -> frozenset[str]:
        """Those of `scalers_of` that ask no external scaler for the count."""
        collections = {
            "HorizontalPodAutoscaler": self.autoscalers,
            "ScaledObject": self.scaled_objects,
        }
        found = set()
        for scaler in self.scalers_of(namespace, group, kind, name):
            scaler_kind, _, scaler_name = scaler.partition("/")
            record = collections[scaler_kind].get(namespace, scaler_name)
            if record is not None and not record.asks:
                found.add(scaler)
        return frozenset(found)

    def parts(self, namespace: str, part: PartOf) -> tuple[str, ...]:
        """The Deployments of a namespace that are this part of another object."""
        return tuple(sorted(self._parts.get((namespace, part), ())))

    def woken_by_keda(self, namespace: str, group: str, kind: str, name: str) -> bool:
        """Whether a ScaledObject scales the target up from zero by a trigger of its own."""
        records = (
            self.scaled_objects.get(namespace, scaler.partition("/")[2])
            for scaler in self.scalers_of(namespace, group, kind, name)
            if scaler.startswith("ScaledObject/")
        )
        return any(record is not None and record.wakes for record in records)

    def _descendants(self, namespace: str, uid: str) -> Iterator[PodRecord]:
        """Pods below an owner, to any depth that occurs in practice."""
        level = {uid}
        for _ in range(_DEEPEST_OWNERSHIP):
            for owner in level:
                yield from self._owned_pods.get(owner, {}).values()
            level = {
                child for owner in level for child in self._children.get((namespace, owner), ())
            }
            if not level:
                return

    def _with_workers(self, pod: PodRecord) -> PodRecord:
        """The pod; if it owns the workload of others, as the leader of a group."""
        below = self._children.get((pod.namespace, pod.uid), ())
        if not below:
            return pod
        workers = [one for uid in below for one in self._owned_pods.get(uid, {}).values()]
        return as_group(pod, workers, sum(self._replicas_of[uid] for uid in below))

    def _is_of_another_kind(self, pod: PodRecord) -> bool:
        """Whether the first of the pod's owners is of a kind not watched here."""
        owner = pod.owner_uid
        for _ in range(_DEEPEST_OWNERSHIP):
            if owner is None or owner not in self._owner_of:
                break
            owner = self._owner_of[owner]
        return owner is not None and owner not in self._owner_of

    def _pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        if old is not None:
            _discard(self._namespace_pods, old.namespace, old.uid)
            if old.owner_uid is not None:
                _discard(self._owned_pods, old.owner_uid, old.uid)
        if new is not None:
            self._namespace_pods.setdefault(new.namespace, {})[new.uid] = new
            if new.owner_uid is not None:
                self._owned_pods.setdefault(new.owner_uid, {})[new.uid] = new

    def _owner_changed(
        self, old: OwnerRecord | TargetRecord | None, new: OwnerRecord | TargetRecord | None
    ) -> None:
        if old is not None:
            self._owner_of.pop(old.uid, None)
            self._replicas_of.pop(old.uid, None)
            self._replica_sets_by_uid.pop(old.uid, None)
            self._rolling.discard(old.uid)
            if old.owner_uid is not None:
                owner = old.namespace, old.owner_uid
                children = self._children.get(owner, set())
                children.discard(old.uid)
                if not children:
                    self._children.pop(owner, None)
        if new is not None:
            self._owner_of[new.uid] = new.owner_uid
            self._replicas_of[new.uid] = 1 if new.replicas is None else new.replicas
            if isinstance(new, OwnerRecord):
                self._replica_sets_by_uid[new.uid] = new
            elif new.rollout_in_progress:
                self._rolling.add(new.uid)
            if new.owner_uid is not None:
                self._children.setdefault((new.namespace, new.owner_uid), set()).add(new.uid)

    def _deployment_changed(self, old: TargetRecord | None, new: TargetRecord | None) -> None:
        self._owner_changed(old, new)
        if old is not None and old.part_of is not None:
            names = self._parts.get((old.namespace, old.part_of), set())
            names.discard(old.name)
            if not names:
                self._parts.pop((old.namespace, old.part_of), None)
        if new is not None and new.part_of is not None:
            self._parts.setdefault((new.namespace, new.part_of), set()).add(new.name)

    def _scaler_changed(
        self, kind: str
    ) -> Callable[[ScalerRecord | None, ScalerRecord | None], None]:
        def changed(old: ScalerRecord | None, new: ScalerRecord | None) -> None:
            if old is not None:
                names = self._scalers.get(_target_key(old), set())
                names.discard(f"{kind}/{old.name}")
                if not names:
                    self._scalers.pop(_target_key(old), None)
            if new is not None:
                self._scalers.setdefault(_target_key(new), set()).add(f"{kind}/{new.name}")

        return changed


def _discard(index: dict[str, dict[str, PodRecord]], key: str, uid: str) -> None:
    entries: Mapping[str, PodRecord] = index.get(key, {})
    if uid in entries:
        del index[key][uid]
    if key in index and not index[key]:
        del index[key]


def _target_key(record: ScalerRecord) -> tuple[str, str, str, str]:
    return record.namespace, record.group, record.target_kind, record.target_name
