"""Grants: how many GPUs a resource may order, by its own bound and by what features share out."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from servingslo.controller.adapters import Adapters
from servingslo.controller.looking import PoolLook
from servingslo.controller.registry import Resource, StandsFor
from servingslo.explain.events import Event
from servingslo.policy.inputs import Grant, Limits, ReplicaGpus, Targets
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState


class Sharer(Protocol):
    """Shares GPUs among resources, by what was decided on them last."""

    async def share(
        self, resources: Sequence[Resource], every: Collection[Resource], held: Collection[int], /
    ) -> Sequence[tuple[Resource, Event]]:
        """The shares of this tick; returns events about deleted resources.

        resources: all that this process decides on. every: of the cluster. held: the shards of this
        process.
        """
        ...

    def grant(self, resource: Resource, each: ReplicaGpus, /) -> Grant | None:
        """What a resource may order in this plan; None if nothing bounds it."""
        ...

    def decided(
        self,
        resource: Resource,
        looks: Sequence[PoolLook],
        targets: FleetTargets,
        fleet: FleetDecision,
        state: FleetState,
        /,
    ) -> None:
        """Take note of a decision. state: after it."""
        ...

    def joined(self, resources: Sequence[Resource], /) -> Mapping[str, Sequence[str]] | None:
        """What joins each resource with others, by uid: they are on one shard; None: not known."""
        ...


MakeSharer = Callable[[Adapters, Limits, StandsFor], Sharer]


@dataclass(frozen=True, slots=True)
class Grants:
    """Asks each of those that share; without any only a resource's own bound counts."""

    sharers: tuple[Sharer, ...]

    async def share(
        self, resources: Sequence[Resource], every: Collection[Resource], held: Collection[int]
    ) -> list[tuple[Resource, Event]]:
        """The shares of this tick, as `Sharer.share`."""
        return [told for one in self.sharers for told in await one.share(resources, every, held)]

    def grant(self, resource: Resource, look: PoolLook) -> Grant | None:
        """The least that a resource may order in this plan; None if nothing bounds it."""
        each, fleet = gpus_of(look.targets, look.view.replica_gpus), resource.fleet
        found = [one.grant(resource, each) for one in self.sharers]
        if fleet is not None and fleet.gpus_max is not None:
            own = Grant(budget="", gpus=fleet.gpus_max, gpus_per_replica=each.gpus or 1)
            found.insert(0, replace(own, unknown=each.refused))
        granted = [one for one in found if one is not None]
        return min(granted, key=lambda one: (not one.unknown, one.gpus), default=None)

    def decided(
        self,
        resource: Resource,
        looks: Sequence[PoolLook],
        targets: FleetTargets,
        fleet: FleetDecision,
        state: FleetState,
    ) -> None:
        """Tell them of a decision. state: after it."""
        for one in self.sharers:
            one.decided(resource, looks, targets, fleet, state)

    def joined(self, resources: Sequence[Resource]) -> Mapping[str, Sequence[str]] | None:
        """What joins each resource with others, by uid; None while that is not known."""
        found: dict[str, list[str]] = {entry.record.ref.uid: [] for entry in resources}
        for one in self.sharers:
            joined = one.joined(resources)
            if joined is None:
                return None
            for uid, groups in joined.items():
                found[uid] += groups
        return found


def priority_of(resource: Resource, limits: Limits) -> int:
    """The priority that counts: as stated, within the administrator's bound."""
    stated = 0 if resource.targets is None else resource.targets.priority
    return stated if limits.max_priority is None else min(stated, limits.max_priority)


def gpus_of(targets: Targets, of_template: ReplicaGpus) -> ReplicaGpus:
    """GPUs of one replica: as stated, but no fewer than the whole cards of the pod template."""
    if targets.gpus_per_replica is not None:
        return ReplicaGpus(gpus=max(targets.gpus_per_replica, of_template.gpus or 0))
    if of_template.gpus is None and not of_template.refused:
        return ReplicaGpus(refused="the pod template is not read; state gpusPerReplica")
    return of_template
