"""Grants of GPUs: each tick, the budgets of the cluster shared among the resources they select.

Shares follow from the last decisions. A resource is granted its share, and what nobody holds or
waits for at the moment of its own plan; what it orders of that is no longer spare for the next.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from servingslo.adapters.kubernetes.api.fence import in_shard
from servingslo.adapters.kubernetes.serving_budgets import BudgetRecord
from servingslo.controller.adapters import Adapters
from servingslo.controller.looking import PoolLook
from servingslo.controller.registry import Resource, StandsFor, foreign_targets, itself
from servingslo.controller.reporting.budget_status import budget_status, shortage_line
from servingslo.errors import ClusterError
from servingslo.policy.budget.claims import Wants, fleet_wants, standing, wants_of
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
from servingslo.policy.inputs import Grant, Limits, Mode, ReplicaGpus, ScaleTarget, Targets
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.ports import WorkloadView
from servingslo.policy.replicas.sizing import Sized
from servingslo.reasons import Reason
from servingslo.runtimes.recognition import NOT_RECOGNIZED, Recognition

_LOG = logging.getLogger(__name__)
# Kinds whose replica is one pod.
_ONE_POD_KINDS = frozenset({"Deployment", "StatefulSet"})
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
    """What is remembered of a budget: its quota without noise, and the last sharing."""

    record: BudgetRecord
    quota: Quota | None = None
    sharing: Sharing | None = None
    members: Sequence[Resource] = ()
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
        elsewhere: Sequence[Resource] = (),
        held: Collection[int] = (0,),
    ) -> None:
        """The shares of this tick. resources: all that this process decides on.

        elsewhere: those of other shards. A budget is shared only once no member is among them.
        held: the shards of this process. One process reports a budget.
        """
        store = self.adapters.serving_budgets
        if store is None:
            return
        records = store.read()
        self._unread = records is None
        if records is None:
            return
        self._forget({record.uid for record in records}, resources)
        now_seconds = self.adapters.clock.now_seconds()
        foreign = {
            uid: {target for target, _ in found}
            for uid, found in foreign_targets(resources, self.stands_for).items()
        }
        # GPUs of a resource that smaller budgets leave for it, by uid.
        most: dict[str, int] = {}
        for record in sorted(records, key=lambda one: (one.gpus, one.name)):
            shared = self._budgets.setdefault(record.uid, _Shared(record=record))
            shared.record = record
            shared.members = [
                entry
                for entry in resources
                if (entry.targets is not None or entry.record.ref.uid in self._known)
                and store.selects(record, entry.record.ref.namespace, entry.record.labels)
            ]
            for entry in shared.members:
                await self._look_if_unknown(entry, foreign.get(entry.record.ref.uid, set()))
            others = [
                entry
                for entry in elsewhere
                if store.selects(record, entry.record.ref.namespace, entry.record.labels)
            ]
            if not record.refused:
                self._share_one(shared, most, now_seconds, complete=not others)
            shared.shard = min(
                (entry.place.shard for entry in (*shared.members, *others)), default=0
            )
            if shared.shard not in held:
                self.adapters.exporter.forget_budget(record.name)
                shared.written, shared.said = {}, ""
                continue
            with in_shard(shared.shard):
                await self._report(shared, now_seconds)

    def grant(self, resource: Resource, look: PoolLook) -> Grant | None:
        """What a resource may order in this plan; None if no budget bounds it."""
        if self.adapters.serving_budgets is None:
            return None
        if self._unread:
            return Grant(budget="", unknown=_UNREAD)
        uid, each = resource.record.ref.uid, gpus_of(look.targets, look.view.replica_gpus)
        found = [
            self._grant_of(shared, resource, each)
            for shared in self._budgets.values()
            if any(entry.record.ref.uid == uid for entry in shared.members)
        ]
        return min(found, key=lambda one: (not one.unknown, one.gpus), default=None)

    def decided(
        self, resource: Resource, look: PoolLook, decision: Decision, sized: Sized | None
    ) -> None:
        """Take note of a decision on one workload."""
        if self.adapters.serving_budgets is None:
            return
        if not _is_read(decision):
            self._note_unread(resource)
            return
        each = gpus_of(look.targets, look.view.replica_gpus)
        wants = partial(
            wants_of,
            decision,
            look.targets,
            self.limits,
            pods=_pods(look.view),
            gpus_per_replica=each.gpus or 1,
            sized=sized,
        )
        self._note(resource, wants, each.refused)

    def decided_pools(
        self,
        resource: Resource,
        looks: Sequence[PoolLook],
        targets: FleetTargets,
        fleet: FleetDecision,
        state: FleetState,
    ) -> None:
        """Take note of a decision on several pools. state: after it."""
        if self.adapters.serving_budgets is None:
            return
        if not all(_is_read(decision) for decision in fleet.pools.values()):
            self._note_unread(resource)
            return
        each = {one.observation.pool: gpus_of(one.targets, one.view.replica_gpus) for one in looks}
        pods = {one.observation.pool: _pods(one.view) for one in looks}
        pools = tuple(
            replace(pool, gpus=each[pool.name].gpus or pool.gpus) for pool in targets.pools
        )
        wants = partial(fleet_wants, fleet, replace(targets, pools=pools), self.limits, pods, state)
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
            view = await self.adapters.workloads.read(
                resource.record.ref.namespace,
                targets.target,
                targets.batching.container,
                _recognize_nothing,
            )
            unreadable = _unreadable(view)
            if view.desired_replicas is None and not _is_gone(view) and not unreadable:
                return
            each = gpus_of(targets, view.replica_gpus)
            unknown = unknown or unreadable or each.refused
            found = standing(view.desired_replicas or 0, _pods(view), each.gpus or 1)
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
            for entry in shared.members
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

    async def _report(self, shared: _Shared, now_seconds: float) -> None:
        """Status, gauges and log of a budget, where they are news."""
        priorities = {one.record.ref.uid: self.priority(one) for one in shared.members}
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

    def _forget(self, budgets: set[str], resources: Iterable[Resource]) -> None:
        """Drop what is remembered of budgets and resources that are gone."""
        for uid in [uid for uid in self._budgets if uid not in budgets]:
            gone = self._budgets.pop(uid)
            self.adapters.exporter.forget_budget(gone.record.name)
        uids = {entry.record.ref.uid for entry in resources}
        for uid in [uid for uid in self._known if uid not in uids]:
            del self._known[uid]


def gpus_of(targets: Targets, of_template: ReplicaGpus) -> ReplicaGpus:
    """GPUs of one replica: as stated, but no fewer than the whole cards of the pod template."""
    if targets.gpus_per_replica is not None:
        return ReplicaGpus(gpus=max(targets.gpus_per_replica, of_template.gpus or 0))
    if of_template.gpus is None and not of_template.refused:
        return ReplicaGpus(refused="the pod template is not read; state cost.gpusPerReplica")
    return of_template


def _pods(view: WorkloadView) -> int:
    """Replicas whose pods hold GPUs, ending ones included.

    Of kinds whose replica may be a group of pods, an ending pod counts as a whole replica: too many
    for a moment, never too few.
    """
    if view.target.kind in _ONE_POD_KINDS or view.current_replicas is None:
        return len(view.pods)
    return view.current_replicas + sum(pod.deleting for pod in view.pods)


def _is_read(decision: Decision) -> bool:
    """Whether the count of the target is known; a target that is gone holds nothing."""
    gone = Reason.TARGET_NOT_FOUND in {decision.reason, decision.limited_by}
    return gone or decision.replicas_before is not None


def _is_gone(view: WorkloadView) -> bool:
    return any(problem.reason is Reason.TARGET_NOT_FOUND for problem in view.problems)


def _unreadable(view: WorkloadView) -> str:
    """Why a target will never be read, in words; '' if it may be.

    It counts as a workload without a ServingSLO: otherwise one of them would stop all the others. A
    Deployment or StatefulSet that is denied is read again, because an API server that has just
    started knows no roles yet.
    """
    for problem in view.problems:
        denied = problem.reason is Reason.PERMISSION_DENIED
        if problem.reason is Reason.TARGET_NOT_SCALABLE or (
            denied and view.target.kind not in _ONE_POD_KINDS
        ):
            return f"its target is not counted: {problem.reason.value}, {problem.detail}"
    return ""


def _is_paused(resource: Resource) -> bool:
    return resource.targets is not None and resource.targets.mode is Mode.PAUSED


def _recognize_nothing(_pods: Sequence[str]) -> Recognition:
    return NOT_RECOGNIZED
