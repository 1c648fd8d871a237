"""The ServingSLOs that exist, from the handlers and the authoritative lists."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from servingslo.adapters.kubernetes.pods.records import group_of
from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.api.convert import fleet_from_spec
from servingslo.controller.place import Place, place_of
from servingslo.errors import InvalidSpecError
from servingslo.policy.inputs import ScaleTarget, SignalProblem, Targets
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.reasons import Reason

Key = tuple[str, str]
_TargetKey = tuple[str, str, str, str, str]
# The workload that a target of that namespace stands for: itself, or one that another object made.
StandsFor = Callable[[str, ScaleTarget], ScaleTarget]


def itself(_namespace: str, target: ScaleTarget) -> ScaleTarget:
    """A target that stands for no other one."""
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One ServingSLO: as stored, and its pools, or why there are none."""

    record: ResourceRecord
    fleet: FleetTargets | None = None
    invalid: InvalidSpecError | None = None

    @property
    def targets(self) -> Targets | None:
        """Of its first pool, for what all have in common: mode, actuation, objectives."""
        return None if self.fleet is None else self.fleet.pools[0].targets

    @property
    def place(self) -> Place:
        """The Lease whose holder decides it."""
        return place_of(self.record.status)

    @property
    def pools(self) -> Mapping[str, Targets]:
        """Targets by pool; of a single target under ''. Empty while the spec is invalid."""
        pools = () if self.fleet is None else self.fleet.pools
        return {pool.name: pool.targets for pool in pools}


class Registry:
    """A cache of the resources, and the set of those to reconcile at once.

    kopf's watch has gaps in which a deletion is missed; `replace_all` repairs them. stands_for: of
    the cluster, as soon as it is read.
    """

    def __init__(self) -> None:
        self.resources: dict[Key, Resource] = {}
        # Namespaces that refused the last list: which resources they have is not known.
        self.unread: frozenset[str] = frozenset()
        # Of deleted resources, by uid: under this Lease what was written for them is put back.
        self.last_leases: dict[str, int] = {}
        self._older: set[Key] = set()
        self.stands_for: StandsFor = itself
        self._woken: set[Key] = set()
        self._wake = asyncio.Event()

    def upsert(self, record: ResourceRecord) -> Resource:
        """Remember a resource; wake the loop if it is new or its spec changed.

        A change of status or labels alone wakes no loop: the loop writes status itself.
        """
        key = record.ref.namespace, record.ref.name
        known = self.resources.get(key)
        if known is not None and known.record.ref == record.ref:
            same = known.record.generation == record.generation
            if same and place_of(record.status).moves < known.place.moves:
                return known  # the watch is behind a move that was made here
            if same:
                # A new leader starts from the state that the leader before it had learnt.
                return self._renew(key, known, record)
            if record.generation < known.record.generation:
                return known  # the watch is behind the resource that was read
        resource = checked(record)
        self.resources[key] = resource
        self.wake(key)
        return resource

    def wake_loop(self) -> None:
        """Wake the loop though no resource changed."""
        self._wake.set()

    def _renew(self, key: Key, known: Resource, record: ResourceRecord) -> Resource:
        self.resources[key] = renewed = replace(known, record=record)
        if renewed.place != known.place:
            self.wake(key)
        return renewed

    def remove(self, key: Key, uid: str | None = None) -> None:
        """Forget a resource that is gone. uid: only if it has this uid, not a later namesake."""
        known = self.resources.get(key)
        if known is not None and uid is not None and known.record.ref.uid != uid:
            return
        gone = self.resources.pop(key, None)
        if gone is not None and gone.place.lease:
            self.last_leases[gone.record.ref.uid] = gone.place.lease
        self.wake(key)

    def replace_all(
        self, records: Iterable[ResourceRecord], unread: frozenset[str] = frozenset()
    ) -> None:
        """Take over an authoritative list: a resource that is not in it, or is deleted, is gone.

        A finalizer of another client may keep a deleted one in the list for any time. unread:
        namespaces that refused it; their resources stay as they are known.
        """
        self.unread = unread
        found = {
            (record.ref.namespace, record.ref.name): record
            for record in records
            if not record.deleting
        }
        for key in [key for key in self.resources if key not in found and key[0] not in unread]:
            self.remove(key)
        doubted, self._older = self._older, set()
        for key, record in found.items():
            known = self.resources.get(key)
            if known is not None and record.generation < known.record.generation:
                self.remove(key)  # a list is the truth, also of a cluster that was restored
            elif known is not None and place_of(record.status).moves < known.place.moves:
                # It was moved while this was listed; twice, and the cluster was restored.
                self._older.add(key)
                if key in doubted:
                    self.remove(key)
            self.upsert(record)

    def owner_conflict(self, resource: Resource) -> SignalProblem | None:
        """Why an older resource owns this one's target now; None if none does."""
        if resource.targets is None:
            return None
        ref = resource.record.ref
        wanted = self._target_keys(resource)
        # If it was read again in the middle of a tick, it is another object, but no rival of
        # itself.
        rivals = (
            entry
            for entry in self.resources.values()
            if entry.record.ref.uid != ref.uid and self._target_keys(entry) & wanted
        )
        return target_conflicts((resource, *rivals), self.stands_for).get(ref.uid)

    def conflicts(self) -> dict[str, SignalProblem]:
        """By uid, the resources that must not act on a target because an older one owns it."""
        return target_conflicts(self.resources.values(), self.stands_for)

    def _target_keys(self, resource: Resource) -> set[_TargetKey]:
        namespace = resource.record.ref.namespace
        return {
            _target_key(namespace, self.stands_for(namespace, targets.target))
            for targets in resource.pools.values()
        }

    def wake(self, key: Key) -> None:
        """Ask the loop to reconcile this resource at once."""
        self._woken.add(key)
        self._wake.set()

    async def woken(self) -> None:
        """Return when a resource has to be reconciled."""
        await self._wake.wait()

    def take_woken(self) -> frozenset[Key]:
        """The resources to reconcile; from now on they count as done."""
        woken = frozenset(self._woken)
        self._woken.clear()
        self._wake.clear()
        return woken


def target_conflicts(
    resources: Iterable[Resource], stands_for: StandsFor = itself
) -> dict[str, SignalProblem]:
    """By uid, the resources that must not act on a target because an older one owns it."""
    return {
        uid: SignalProblem(
            reason=Reason.TARGET_CONFLICT,
            detail=f"ServingSLO {owner.record.ref.name} is older and scales "
            f"{target.kind}/{target.name} already",
        )
        for uid, foreign in foreign_targets(resources, stands_for).items()
        for target, owner in foreign[:1]
    }


def foreign_targets(
    resources: Iterable[Resource], stands_for: StandsFor = itself
) -> dict[str, list[tuple[ScaleTarget, Resource]]]:
    """By uid, targets that an older resource owns, each with its owner.

    The older by creation time wins, and the lower uid among equals, so that all agree.
    """
    owners: dict[_TargetKey, Resource] = {}
    found: dict[str, list[tuple[ScaleTarget, Resource]]] = {}
    for resource in sorted(resources, key=lambda entry: _seniority(entry.record)):
        ref = resource.record.ref
        for targets in resource.pools.values():
            target = targets.target
            scaled = stands_for(ref.namespace, target)
            owner = owners.setdefault(_target_key(ref.namespace, scaled), resource)
            if owner is not resource:
                found.setdefault(ref.uid, []).append((target, owner))
    return found


def checked(record: ResourceRecord) -> Resource:
    """The resource of a record, with its pools or why it has none."""
    try:
        return Resource(record=record, fleet=fleet_from_spec(record.spec))
    except InvalidSpecError as error:
        return Resource(record=record, invalid=error)


def _seniority(record: ResourceRecord) -> tuple[float, str]:
    return record.created_seconds, record.ref.uid


def _target_key(namespace: str, target: ScaleTarget) -> _TargetKey:
    return namespace, group_of(target.api_version), target.kind, target.name, target.part
