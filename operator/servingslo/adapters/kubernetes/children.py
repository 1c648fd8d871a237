"""The workload that a target stands for, if the target is an object that makes workloads.

KServe's resources have no /scale: what is scaled is the Deployment or LeaderWorkerSet that its
controller makes. It is found by its owner and its labels, because names are cut and hashed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.cache import listed
from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.adapters.kubernetes.api.discovery import Discovery
from servingslo.adapters.kubernetes.pods.inventory import Inventory
from servingslo.adapters.kubernetes.pods.parents import PartOf, part_wanted, parts_in
from servingslo.errors import ClusterError, NotFoundError, PermissionDeniedError
from servingslo.policy.inputs import ScaleTarget

_SETS = "leaderworkerset.x-k8s.io/v1"
_SET_KIND = "LeaderWorkerSet"
# LeaderWorkerSets are not watched; an object seldom changes the kind of its workload.
_SETS_KNOWN_SECONDS = 60.0
_REMEMBERED_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The child of a target. at_seconds: when it was last found, on the monotonic clock."""

    child: ScaleTarget
    at_seconds: float


class Children:
    """Finds children, and remembers those that were asked for in the last minutes."""

    def __init__(self, client: KubeClient, discovery: Discovery, inventory: Inventory) -> None:
        self._client = client
        self._discovery = discovery
        self._inventory = inventory
        self._known: dict[tuple[str, ScaleTarget], _Known] = {}

    def stands_for(self, namespace: str, target: ScaleTarget) -> ScaleTarget:
        """The workload that was found last for a target; the target itself if none was."""
        known = self._known.get((namespace, target))
        return target if known is None else known.child

    async def find(self, namespace: str, target: ScaleTarget) -> ScaleTarget:
        """The workload that a target stands for, itself for most kinds.

        Raises: NotFoundError if there is none; ClusterError if there are several, or no answer.
        """
        wanted = part_wanted(target)
        if wanted is None:
            return target
        now = SystemClock.elapsed_seconds()
        key = namespace, target
        names = self._inventory.parts(namespace, wanted)
        if names:
            child = ScaleTarget(
                api_version="apps/v1", kind="Deployment", name=_only(namespace, wanted, names)
            )
        else:
            known = self._known.get(key)
            recent = known is not None and now - known.at_seconds < _SETS_KNOWN_SECONDS
            if known is not None and recent and known.child.kind == _SET_KIND:
                return known.child
            names = await self._sets(namespace, wanted)
            child = ScaleTarget(
                api_version=_SETS, kind=_SET_KIND, name=_only(namespace, wanted, names)
            )
        if key not in self._known:
            oldest = now - _REMEMBERED_SECONDS
            self._known = {k: v for k, v in self._known.items() if v.at_seconds > oldest}
        self._known[key] = _Known(child=child, at_seconds=now)
        return child

    async def _sets(self, namespace: str, wanted: PartOf) -> tuple[str, ...]:
        try:
            resource = await self._discovery.resolve(_SETS, _SET_KIND)
        except NotFoundError:
            return ()
        path = resource.collection(namespace)
        try:
            return parts_in((await listed(self._client, path)).items, wanted)
        except PermissionDeniedError as error:
            raise PermissionDeniedError(
                f"{_named(namespace, wanted)} has no Deployment, and its LeaderWorkerSet cannot be "
                f"looked for (chart value extraScalableKinds): {error}"
            ) from error


def _only(namespace: str, wanted: PartOf, names: Sequence[str]) -> str:
    if not names:
        raise NotFoundError(
            f"{_named(namespace, wanted)} has no Deployment or LeaderWorkerSet of its own"
        )
    if len(names) > 1:
        raise ClusterError(
            f"{_named(namespace, wanted)} has several workloads, one is needed: "
            f"{', '.join(sorted(names))}"
        )
    return names[0]


def _named(namespace: str, wanted: PartOf) -> str:
    part = f" ({wanted.part})" if wanted.part else ""
    return f"{wanted.kind}/{wanted.name}{part} in namespace {namespace}"
