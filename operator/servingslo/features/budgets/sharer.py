"""Shares the budgets of the cluster, at each tick, among the resources that they select.

Shares follow from the last decisions. A resource is granted its share, and what nobody holds or
waits for at the moment of its own plan; what it orders of that is no longer spare for the next.
"""

import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from servingslo.adapters.kubernetes.api.fence import under_lease
from servingslo.controller.grants import Grants, gpus_of, priority_of
from servingslo.controller.looking import PoolLook
from servingslo.controller.registry import Resource, foreign_targets
from servingslo.errors import ClusterError
from servingslo.explain.events import Event
from servingslo.features.budgets.claims import (
    is_gone,
    left_behind,
    pods_of,
    standing,
    undecided,
    unreadable,
    wants_of,
)
from servingslo.features.budgets.kind import KIND
from servingslo.features.budgets.report import GAUGES, budget_status, shortage_line
from servingslo.features.budgets.sharing import (
    Claim,
    Quota,
    Share,
    Sharing,
    Wants,
    share_gpus,
    steady_quota,
    with_drawn,
)
from servingslo.features.budgets.store import BudgetRecord, KubernetesServingBudgets
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Grant, Mode, ReplicaGpus, ScaleTarget
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.reasons import Reason

_LOG = logging.getLogger(__name__)
_UNREAD = "the ServingBudgets of the cluster are not read yet"


@dataclass(frozen=True, slots=True)
class _Claimant:
    """What is remembered of a resource. unknown: why GPUs of a replica are unknown, if they are.

    targets: that hold them.
    """

    wants: Wants
    unknown: str
    targets: frozenset[ScaleTarget]


@dataclass(slots=True)
class _Shared:
    """What is remembered of a budget: its quota without noise, members by uid, the last sharing."""

    record: BudgetRecord
    quota: Quota | None = None
    sharing: Sharing | None = None
    members: dict[str, Resource] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""


@dataclass(slots=True)
class BudgetSharer(Grants):
    """Without any budget it does nothing."""

    store: KubernetesServingBudgets
    _known: dict[str, _Claimant] = field(default_factory=dict)
    _budgets: dict[str, _Shared] = field(default_factory=dict)
    _unread: bool = True

    async def share(
        self,
        resources: Sequence[Resource],
        every: Collection[Resource],
        held: Collection[int],
        /,
    ) -> list[tuple[Resource, Event]]:
        """A budget is shared only once no member is of another process; one of them reports it."""
        records = self.store.read()
        self._unread = records is None
        if records is None:
            return []
        outside: list[tuple[Resource, Event]] = []
        self._forget({record.uid for record in records}, resources)
        now_seconds = self.adapters.clock.now_seconds()
        foreign = {
            uid: {target for target, _ in found}
            for uid, found in foreign_targets(resources, self.stands_for).items()
        }
        acting = {entry.record.ref.uid for entry in resources}
        # GPUs of a resource that smaller budgets leave for it, by uid.
        most: dict[str, int] = {}
        for record in sorted(records, key=lambda one: (one.gpus, one.name)):
            shared = self._budgets.setdefault(record.uid, _Shared(record=record))
            shared.record = record
            selected = [entry for entry in every if self._selects(record, entry)]
            before, shared.members = shared.members, {}
            for entry in selected:
                uid = entry.record.ref.uid
                if uid in acting and (entry.targets is not None or uid in self._known):
                    shared.members[uid] = entry
            for uid in before.keys() - {entry.record.ref.uid for entry in every}:
                gone = before[uid]
                outside += [(gone, event) async for event in self._left_behind(gone, shared)]
            for entry in shared.members.values():
                await self._look_if_unknown(entry, foreign.get(entry.record.ref.uid, set()))
            others = [entry for entry in selected if entry.place.lease not in held]
            if not record.refused:
                self._share_one(shared, most, now_seconds, complete=not others)
            reporting = (entry.place.lease for entry in (*shared.members.values(), *others))
            if (lease := min(reporting, default=0)) not in held:
                self._forget_gauges(record.name)
                shared.written, shared.said = {}, ""
                continue
            with under_lease(lease):
                await self._report(shared, selected, now_seconds)
        return outside

    def shared(self, resource: Resource, each: ReplicaGpus, /) -> Grant | None:
        """The least of its budgets; unknown while they are not read."""
        if self._unread:
            return Grant(budget="", unknown=_UNREAD)
        found = [
            self._grant_of(shared, resource, each)
            for shared in self._budgets.values()
            if resource.record.ref.uid in shared.members
        ]
        return min(found, key=lambda one: (not one.unknown, one.gpus), default=None)

    def joined(self, resources: Sequence[Resource], /) -> Mapping[str, Sequence[str]] | None:
        """The budgets of each resource, because one process shares a budget."""
        records = self.store.read()
        if records is None:
            return None
        return {
            entry.record.ref.uid: [one.uid for one in records if self._selects(one, entry)]
            for entry in resources
        }

    def _selects(self, record: BudgetRecord, entry: Resource) -> bool:
        return self.store.selects(record, entry.record.ref.namespace, entry.record.labels)

    def decided(
        self,
        resource: Resource,
        looks: Sequence[PoolLook],
        targets: FleetTargets,
        fleet: FleetDecision,
        state: FleetState,
        /,
    ) -> None:
        """Take note of what it wants. A target that is not read keeps what it had."""
        uid = resource.record.ref.uid
        budgets = [one for one in self._budgets.values() if uid in one.members]
        known = self._known.get(uid)
        if not all(_is_read(decision) for decision in fleet.pools.values()):
            if known is not None:
                kept = replace(known.wants, wanted_gpus=known.wants.ordered_gpus, acts=False)
                self._known[uid] = replace(known, wants=kept)
            return
        if not budgets:
            self._known.pop(uid, None)
            return
        each = {one.observation.pool: gpus_of(one.targets, one.view.replica_gpus) for one in looks}
        pods = {one.observation.pool: pods_of(one.view) for one in looks}
        pools = tuple(
            replace(pool, gpus=each[pool.name].gpus or pool.gpus) for pool in targets.pools
        )
        wants = wants_of(fleet, replace(targets, pools=pools), self.limits, pods, state)
        unknown = next((one.refused for one in each.values() if one.refused), "")
        self._known[uid] = _Claimant(wants, unknown, _targets_of(resource))
        for one in () if unknown else budgets:
            if one.sharing is not None and uid in one.sharing.shares:
                one.sharing = with_drawn(one.sharing, uid, wants.after_gpus)

    async def _look_if_unknown(self, resource: Resource, foreign: Collection[ScaleTarget]) -> None:
        """Read what a resource holds if it does not decide: a new one, a paused one, a second one.

        With another target it is a new one. foreign: targets of an older ServingSLO, whose GPUs
        count once.
        """
        uid, first = resource.record.ref.uid, resource.targets
        known = self._known.get(uid)
        if first is not None and known is not None and known.targets != _targets_of(resource):
            del self._known[uid]
        decides = uid in self._known and not foreign
        if first is None or (decides and first.mode is not Mode.PAUSED):
            return
        found, unknown = [], ""
        for targets in resource.pools.values():
            if targets.target in foreign:
                continue
            view = await undecided(self.adapters.workloads, resource.record.ref.namespace, targets)
            denied = unreadable(view)
            if view.desired_replicas is None and not is_gone(view) and not denied:
                return
            each = gpus_of(targets, view.replica_gpus)
            unknown = unknown or denied or each.refused
            found.append(standing(view.desired_replicas or 0, pods_of(view), each.gpus or 1))
        ordered, held = (
            sum(getattr(one, name) for one in found) for name in ("ordered_gpus", "held_gpus")
        )
        step = min((one.gpus_per_replica for one in found), default=1)
        wants = replace(standing(ordered, held, 1), gpus_per_replica=step)
        self._known[uid] = _Claimant(wants, unknown, _targets_of(resource))

    def _share_one(
        self, shared: _Shared, most: dict[str, int], now_seconds: float, *, complete: bool
    ) -> None:
        """Share a budget. most: what smaller budgets leave for a resource, which this one adds to.

        What a smaller budget does not grant would lie idle in this one. complete: whether this
        process decides on all members.
        """
        before = {} if shared.sharing is None else shared.sharing.shares
        claims = [
            self._claim(entry, known, before.get(uid), most.get(uid))
            for uid, entry in shared.members.items()
            if (known := self._known.get(uid)) is not None
        ]
        hold = max((claim.hold_seconds for claim in claims), default=0.0)
        shared.quota = steady_quota(shared.quota, shared.record.gpus, hold, now_seconds)
        gpus = shared.quota.gpus
        if len(claims) < len(shared.members) or not complete:
            # What some member holds is not known: nothing is free.
            gpus = min(gpus, sum(claim.ordered_gpus + claim.ending_gpus for claim in claims))
        shared.sharing = sharing = share_gpus(gpus, claims, now_seconds)
        for uid, share in sharing.shares.items():
            left = share.share_gpus + sharing.spare_gpus
            most[uid] = min(most.get(uid, left), left)

    def _claim(
        self, resource: Resource, known: _Claimant, before: Share | None, most: int | None
    ) -> Claim:
        ref, wants = resource.record.ref, known.wants.within(most)
        stated = {one.name: getattr(wants, one.name) for one in fields(Wants)}
        acts = wants.acts and resource.targets is not None and not known.unknown
        return Claim(
            **{**stated, "acts": acts},
            uid=ref.uid,
            name=f"{ref.namespace}/{ref.name}",
            priority=priority_of(resource, self.limits),
            shared_gpus=None if before is None else before.share_gpus,
            needed_seconds=None if before is None else before.needed_seconds,
        )

    def _grant_of(self, shared: _Shared, resource: Resource, each: ReplicaGpus) -> Grant:
        uid, name = resource.record.ref.uid, shared.record.name
        sharing = shared.sharing
        known = self._known.get(uid)
        unknown = each.refused or shared.record.refused or (known.unknown if known else "")
        if unknown or sharing is None or uid not in sharing.shares:
            return Grant(budget=name, kind=KIND, unknown=unknown or _UNREAD)
        share = sharing.shares[uid]
        stated = 0 if resource.targets is None else resource.targets.priority
        return Grant(
            budget=name,
            kind=KIND,
            gpus=share.granted_gpus + sharing.spare_gpus,
            gpus_per_replica=each.gpus or 1,
            kept_per_gpu=share.claim.kept_per_gpu,
            holders=shortage_line(share, resource.record.ref.namespace),
            priority_bounded=stated > priority_of(resource, self.limits),
        )

    async def _report(
        self, shared: _Shared, selected: Sequence[Resource], now_seconds: float
    ) -> None:
        """Status, gauges and log of a budget, where they are news."""
        priorities = {one.record.ref.uid: priority_of(one, self.limits) for one in selected}
        unknown = {
            uid: known.unknown for uid in priorities if (known := self._known.get(uid)) is not None
        }
        told = budget_status(
            shared.record,
            shared.sharing,
            priorities,
            unknown,
            previous=shared.written or shared.record.status,
            now_seconds=now_seconds,
        )
        name, sharing = shared.record.name, shared.sharing
        if sharing is not None:
            for key, gauge in _gauges(self.adapters.exporter.registry).items():
                gauge.labels(name).set(GAUGES[key].value(shared.record, sharing))
        if told.line != shared.said:
            _LOG.info(
                "shared budget=%s generation=%d %s", name, shared.record.generation, told.line
            )
            shared.said = told.line
        if told.fields == shared.written:
            return
        try:
            await self.store.patch_status(shared.record, told.fields)
        except ClusterError as error:
            self.adapters.exporter.count_failure("status")
            _LOG.warning("status not written budget=%s detail=%r", name, str(error))
            return
        shared.written = told.fields

    async def _left_behind(self, gone: Resource, shared: _Shared) -> AsyncIterator[Event]:
        """What a deleted resource leaves outside of a budget, unless another one has its target."""
        for targets in gone.pools.values():
            ref = gone.record.ref
            taken = any(
                targets.target == own.target
                for one in shared.members.values()
                for own in one.pools.values()
                if one.record.ref.namespace == ref.namespace
            )
            view = await undecided(self.adapters.workloads, ref.namespace, targets)
            event = left_behind(gone, targets, view, shared.record.name)
            if event is not None and not taken:
                _LOG.warning("outside budget=%s detail=%r", shared.record.name, event.message)
                yield event

    def _forget(self, budgets: set[str], resources: Iterable[Resource]) -> None:
        """Drop what is remembered of budgets and resources that are gone."""
        for uid in [uid for uid in self._budgets if uid not in budgets]:
            gone = self._budgets.pop(uid)
            self._forget_gauges(gone.record.name)
        uids = {entry.record.ref.uid for entry in resources}
        for uid in [uid for uid in self._known if uid not in uids]:
            del self._known[uid]

    def _forget_gauges(self, budget: str) -> None:
        for gauge in _gauges(self.adapters.exporter.registry).values():
            with suppress(KeyError):
                gauge.remove(budget)


@cache
def _gauges(registry: CollectorRegistry) -> Mapping[str, Gauge]:
    """The gauges of a registry, by name without the prefix."""
    return {
        name: Gauge(f"servingslo_budget_{name}", row.help, ("budget",), registry=registry)
        for name, row in GAUGES.items()
    }


def _targets_of(resource: Resource) -> frozenset[ScaleTarget]:
    return frozenset(one.target for one in resource.pools.values())


def _is_read(decision: Decision) -> bool:
    """Whether the count of the target is known; a target that is gone holds nothing."""
    gone = Reason.TARGET_NOT_FOUND in {decision.reason, decision.limited_by}
    return gone or decision.replicas_before is not None
