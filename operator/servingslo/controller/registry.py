"""The ServingSLOs that exist, from the handlers and the authoritative lists."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

from servingslo.adapters.kubernetes.records import group_of
from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.api.convert import targets_from_spec
from servingslo.errors import InvalidSpecError
from servingslo.policy.inputs import ScaleTarget, SignalProblem, Targets
from servingslo.reasons import Reason

Key = tuple[str, str]
_TargetKey = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One ServingSLO: as stored, and its targets, or why there are none."""

    record: ResourceRecord
    targets: Targets | None = None
    invalid: InvalidSpecError | None = None


class Registry:
    """A cache of the resources, and the set of those to reconcile at once.

    kopf's watch has gaps in which a deletion is missed; `replace_all` repairs them.
    """

    def __init__(self) -> None:
        self.resources: dict[Key, Resource] = {}
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
            if same and known.record.deleting == record.deleting:
                # A new leader starts from the state that the leader before it had learnt.
                return self._renew(key, known, record)
            if record.generation < known.record.generation:
                return known  # the watch is behind the resource that was read
        resource = _checked(record)
        self.resources[key] = resource
        self.wake(key)
        return resource

    def wake_loop(self) -> None:
        """Wake the loop though no resource changed."""
        self._wake.set()

    def _renew(self, key: Key, known: Resource, record: ResourceRecord) -> Resource:
        self.resources[key] = renewed = replace(known, record=record)
        return renewed

    def remove(self, key: Key, uid: str | None = None) -> None:
        """Forget a resource that is gone. uid: only if it has this uid, not a later namesake."""
        known = self.resources.get(key)
        if known is not None and uid is not None and known.record.ref.uid != uid:
            return
        self.resources.pop(key, None)
        self.wake(key)

    def replace_all(self, records: Iterable[ResourceRecord]) -> None:
        """Take over an authoritative list: a resource that is not in it is gone."""
        found = {(record.ref.namespace, record.ref.name): record for record in records}
        for key in [key for key in self.resources if key not in found]:
            self.remove(key)
        for key, record in found.items():
            known = self.resources.get(key)
            if known is not None and record.generation < known.record.generation:
                self.remove(key)  # a list is the truth, also of a cluster that was restored
            self.upsert(record)

    def owner_conflict(self, resource: Resource) -> SignalProblem | None:
        """Why an older resource owns this one's target now; None if none does."""
        if resource.targets is None:
            return None
        ref = resource.record.ref
        wanted = _target_key(ref.namespace, resource.targets.target)
        # If it was read again in the middle of a tick, it is another object, but no rival of
        # itself.
        rivals = (
            entry
            for entry in self.resources.values()
            if entry.targets is not None
            and entry.record.ref.uid != ref.uid
            and _target_key(entry.record.ref.namespace, entry.targets.target) == wanted
        )
        return target_conflicts((resource, *rivals)).get(ref.uid)

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


def target_conflicts(resources: Iterable[Resource]) -> dict[str, SignalProblem]:
    """By uid, the resources that must not act on a target because an older one owns it.

    The older by creation time wins, and the lower uid among equals, so that all agree.
    """
    owners: dict[_TargetKey, Resource] = {}
    conflicts: dict[str, SignalProblem] = {}
    valid = (entry for entry in resources if entry.targets is not None)
    for resource in sorted(valid, key=lambda entry: _seniority(entry.record)):
        assert resource.targets is not None  # noqa: S101  filtered above
        ref = resource.record.ref
        owner = owners.setdefault(_target_key(ref.namespace, resource.targets.target), resource)
        if owner is not resource:
            target = resource.targets.target
            conflicts[ref.uid] = SignalProblem(
                reason=Reason.TARGET_CONFLICT,
                detail=f"ServingSLO {owner.record.ref.name} is older and scales "
                f"{target.kind}/{target.name} already",
            )
    return conflicts


def _checked(record: ResourceRecord) -> Resource:
    try:
        return Resource(record=record, targets=targets_from_spec(record.spec))
    except InvalidSpecError as error:
        return Resource(record=record, invalid=error)


def _seniority(record: ResourceRecord) -> tuple[float, str]:
    return record.created_seconds, record.ref.uid


def _target_key(namespace: str, target: ScaleTarget) -> _TargetKey:
    return namespace, group_of(target.api_version), target.kind, target.name
