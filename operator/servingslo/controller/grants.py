"""Grants of GPUs: each tick, the budgets of the cluster shared among the resources they select.

Shares follow from the last decisions. A resource is granted its share, and what nobody holds or
waits for at the moment of its own plan; what it orders of that is no longer spare for the next.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from servingslo.adapters.kubernetes.api.fence import in_shard
from servingslo.adapters.kubernetes.serving_budgets import BudgetRecord
from servingslo.controller.adapters import Adapters
from servingslo.controller.held_gpus import (
    gpus_of,
    is_gone,
    left_behind,
    pods_of,
    undecided,
    unreadable,
)
from servingslo.controller.looking import PoolLook
from servingslo.controller.registry import Resource, StandsFor, foreign_targets, itself
from servingslo.controller.reporting.budget_status import budget_status, shortage_line
from servingslo.errors import ClusterError
from servingslo.explain.events import Event
from servingslo.policy.budget.claims import Wants, standing, wants_of
from servingslo.policy.budget.sharing import (
    Claim,
    Quota,
    Share,
    Sharing,
    share_gpus,
    steady_quota,
    with_drawn,
)
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Grant, Limits, Mode, ReplicaGpus, ScaleTarget
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.reasons import Reason

_LOG = logging.getLogger(__name__)
_UNREAD = "the ServingBudgets of the cluster are not read yet"


@dataclass(slots=True)
class _Claimant:
    """What is remembered of a resource. unknown: why GPUs of a replica are unknown, if they are.

    decided: makes what its last decision wants, once a budget needs it.
    """

    found: Wants | None = None
    unknown: str = ""
    decided: Callable[[], Wants] | None = None

    @property
    def wants(self) -> Wants | None:
        """What it wants; None while that is not known."""
        if self.decided is not None:
            self.found, self.decided = self.decided(), None
        return self.found


@dataclass(slots=True)
class _Shared:
    """What is remembered of a budget: its quota without noise, members by uid, the last sharing."""

    record: BudgetRecord
    quota: Quota | None = None
    sharing: Sharing | None = None
    members: dict[str, Resource] = field(default_factory=dict)
    shard: int = 0
    written: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""


@dataclass(slots=True)
class Grants:
    """Shares budgets among resources; without any budget it does nothing."""

    adapters: Adapters
    limits: Limits
    stands_for: StandsFor = itself
    _known: dict[str, _Claimant] = field(default_factory=dict)
    _budgets: dict[str, _Shared] = field(default_factory=dict)
    _unread: bool = True

    async def share(
        self,
        resources: Sequence[Resource],
        every: Collection[Resource],
        held: Collection[int],
    ) -> list[tuple[Resource, Event]]:
        """The shares of this tick; returns events about deleted resources.

        resources: all that this process decides on. every: of the cluster. held: the shards of this
        process. A budget is shared only once no member is of another, and one process reports it.
        """
        store = self.adapters.serving_budgets
        records = None if store is None else store.read()
        self._unread = records is None
        if store is None or records is None:
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
            selected = [
                entry
                for entry in every
                if store.selects(record, entry.record.ref.namespace, entry.record.labels)
            ]
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
            others = [entry for entry in selected if entry.place.shard not in held]
            if not record.refused:
                self._share_one(shared, most, now_seconds, complete=not others)
            shared.shard = min(
                (entry.place.shard for entry in (*shared.members.values(), *others)), default=0
            )
            if shared.shard not in held:
                self.adapters.exporter.forget_budget(record.name)
                shared.written, shared.said = {}, ""
                continue
            with in_shard(shared.shard):
                await self._report(shared, selected, now_seconds)
        return outside

    def grant(self, resource: Resource, look: PoolLook) -> Grant | None:
        """What a resource may order in this plan; None if no budget and no own number bounds it."""
        uid, each = resource.record.ref.uid, gpus_of(look.targets, look.view.replica_gpus)
        fleet = resource.fleet
        found = []
        if fleet is not None and fleet.gpus_max is not None:
            per_replica = each.gpus or 1
            own = Grant(budget="", gpus=fleet.gpus_max, gpus_per_replica=per_replica)
            found = [replace(own, unknown=each.refused)]
        if self.adapters.serving_budgets is None:
            return next(iter(found), None)
        if self._unread:
            return Grant(budget="", unknown=_UNREAD)
        found += [
            self._grant_of(shared, resource, each)
            for shared in self._budgets.values()
            if uid in shared.members
        ]
        return min(found, key=lambda one: (not one.unknown, one.gpus), default=None)

    def decided(
        self,
        resource: Resource,
        looks: Sequence[PoolLook],
        targets: FleetTargets,
        fleet: FleetDecision,
        state: FleetState,
    ) -> None:
        """Take note of a decision. state: after it."""
        if self.adapters.serving_budgets is None:
            return
        if not all(_is_read(decision) for decision in fleet.pools.values()):
            self._note_unread(resource)
            return
        each = {one.observation.pool: gpus_of(one.targets, one.view.replica_gpus) for one in looks}
        pods = {one.observation.pool: pods_of(one.view) for one in looks}
        pools = tuple(
            replace(pool, gpus=each[pool.name].gpus or pool.gpus) for pool in targets.pools
        )
        wants = partial(wants_of, fleet, replace(targets, pools=pools), self.limits, pods, state)
        self._note(resource, wants, next((one.refused for one in each.values() if one.refused), ""))

    def priority(self, resource: Resource) -> int:
        """The priority that counts: as stated, within the administrator's bound."""
        stated = 0 if resource.targets is None else resource.targets.priority
        most = self.limits.max_priority
        return stated if most is None else min(stated, most)

    def _note(self, resource: Resource, wants: Callable[[], Wants], unknown: str) -> None:
        uid = resource.record.ref.uid
        known = self._known[uid] = _Claimant(decided=wants, unknown=unknown)
        if unknown:
            return
        for shared in self._budgets.values():
            if shared.sharing is not None and uid in shared.sharing.shares and known.wants:
                shared.sharing = with_drawn(shared.sharing, uid, known.wants.after_gpus)

    def _note_unread(self, resource: Resource) -> None:
        """A target that cannot be read keeps what it had: its pods may still hold GPUs."""
        known = self._known.get(resource.record.ref.uid)
        if known is not None and known.wants is not None:
            kept = replace(known.wants, wanted_gpus=known.wants.ordered_gpus, acts=False)
            known.found = kept

    async def _look_if_unknown(self, resource: Resource, foreign: Collection[ScaleTarget]) -> None:
        """Read what a resource holds if it does not decide: a new one, a paused one, a second one.

        foreign: targets of an older ServingSLO, whose GPUs count once.
        """
        uid = resource.record.ref.uid
        decides = uid in self._known and not _is_paused(resource) and not foreign
        if resource.targets is None or decides:
            return
        ordered = held = step = 0
        unknown = ""
        for targets in resource.pools.values():
            if targets.target in foreign:
                continue
            view = await undecided(self.adapters.workloads, resource.record.ref.namespace, targets)
            denied = unreadable(view)
            if view.desired_replicas is None and not is_gone(view) and not denied:
                return
            each = gpus_of(targets, view.replica_gpus)
            unknown = unknown or denied or each.refused
            found = standing(view.desired_replicas or 0, pods_of(view), each.gpus or 1)
            ordered, held = ordered + found.ordered_gpus, held + found.held_gpus
            step = min(step or found.gpus_per_replica, found.gpus_per_replica)
        wants = replace(standing(ordered, held, 1), gpus_per_replica=max(step, 1))
        self._known[uid] = _Claimant(found=wants, unknown=unknown)

    def _share_one(
        self, shared: _Shared, most: dict[str, int], now_seconds: float, *, complete: bool
    ) -> None:
        """Share a budget. most: what smaller budgets leave for a resource, which this one adds to.

        What a smaller budget does not grant would lie idle in this one. complete: whether this
        process decides on all members.
        """
        before = {} if shared.sharing is None else shared.sharing.shares
        claims = [
            self._claim(
                entry,
                known.wants.within(most.get(entry.record.ref.uid)),
                before.get(entry.record.ref.uid),
            )
            for entry in shared.members.values()
            if (known := self._known.get(entry.record.ref.uid)) is not None
            and known.wants is not None
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

    def _claim(self, resource: Resource, wants: Wants, before: Share | None) -> Claim:
        ref = resource.record.ref
        return Claim(
            uid=ref.uid,
            name=f"{ref.namespace}/{ref.name}",
            priority=self.priority(resource),
            minimum_gpus=wants.minimum_gpus,
            wanted_gpus=wants.wanted_gpus,
            ordered_gpus=wants.ordered_gpus,
            held_gpus=wants.held_gpus,
            gpus_per_replica=wants.gpus_per_replica,
            kept_per_gpu=wants.kept_per_gpu,
            hold_seconds=wants.hold_seconds,
            shared_gpus=None if before is None else before.share_gpus,
            needed_seconds=None if before is None else before.needed_seconds,
            acts=wants.acts and resource.targets is not None and not self._known[ref.uid].unknown,
        )

    def _grant_of(self, shared: _Shared, resource: Resource, each: ReplicaGpus) -> Grant:
        uid, name = resource.record.ref.uid, shared.record.name
        sharing = shared.sharing
        known = self._known.get(uid)
        unknown = each.refused or shared.record.refused or (known.unknown if known else "")
        if unknown or sharing is None or uid not in sharing.shares:
            return Grant(budget=name, unknown=unknown or _UNREAD)
        share = sharing.shares[uid]
        stated = 0 if resource.targets is None else resource.targets.priority
        return Grant(
            budget=name,
            gpus=share.granted_gpus + sharing.spare_gpus,
            gpus_per_replica=each.gpus or 1,
            kept_per_gpu=share.kept_per_gpu,
            holders=shortage_line(share, resource.record.ref.namespace),
            priority_bounded=stated > self.priority(resource),
        )

    async def _report(
        self, shared: _Shared, selected: Sequence[Resource], now_seconds: float
    ) -> None:
        """Status, gauges and log of a budget, where they are news."""
        priorities = {one.record.ref.uid: self.priority(one) for one in selected}
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
            self.adapters.exporter.observe_budget(name, shared.record.gpus, sharing)
        if told.line != shared.said:
            _LOG.info(
                "shared budget=%s generation=%d %s", name, shared.record.generation, told.line
            )
            shared.said = told.line
        if told.fields == shared.written or self.adapters.serving_budgets is None:
            return
        try:
            await self.adapters.serving_budgets.patch_status(shared.record, told.fields)
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
            self.adapters.exporter.forget_budget(gone.record.name)
        uids = {entry.record.ref.uid for entry in resources}
        for uid in [uid for uid in self._known if uid not in uids]:
            del self._known[uid]


def _is_read(decision: Decision) -> bool:
    """Whether the count of the target is known; a target that is gone holds nothing."""
    gone = Reason.TARGET_NOT_FOUND in {decision.reason, decision.limited_by}
    return gone or decision.replicas_before is not None


def _is_paused(resource: Resource) -> bool:
    return resource.targets is not None and resource.targets.mode is Mode.PAUSED
