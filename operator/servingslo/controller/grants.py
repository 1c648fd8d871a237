"""Grants: how many GPUs a resource may order, by its own bound and by what a feature shares out."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from servingslo.controller.adapters import Adapters
from servingslo.controller.looking import PoolLook
from servingslo.controller.registry import Resource, StandsFor
from servingslo.explain.events import Event
from servingslo.policy.inputs import Grant, Limits, ReplicaGpus, Targets
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState


@dataclass(slots=True)
class Grants:
    """Grants what a resource's own bound leaves. A feature that shares GPUs overrides the rest."""

    adapters: Adapters
    limits: Limits
    stands_for: StandsFor

    async def share(
        self,
        _resources: Sequence[Resource],
        _every: Collection[Resource],
        _held: Collection[int],
        /,
    ) -> Sequence[tuple[Resource, Event]]:
        """The shares of this tick, by what was decided last; events about deleted resources.

        resources: all that this process decides on. every: of the cluster. held: the Leases of
        this process.
        """
        return ()

    def shared(self, _resource: Resource, _each: ReplicaGpus, /) -> Grant | None:
        """What a resource may order in this plan of what is shared; None if nothing bounds it."""
        return None

    def decided(
        self,
        _resource: Resource,
        _looks: Sequence[PoolLook],
        _targets: FleetTargets,
        _fleet: FleetDecision,
        _state: FleetState,
        /,
    ) -> None:
        """Take note of a decision. state: after it."""

    def joined(self, resources: Sequence[Resource], /) -> Mapping[str, Sequence[str]] | None:
        """What joins each resource with others of one process, by uid; None: not known."""
        return {entry.record.ref.uid: () for entry in resources}

    def grant(self, resource: Resource, look: PoolLook) -> Grant | None:
        """The least that a resource may order in this plan; None if nothing bounds it."""
        each, fleet = gpus_of(look.targets, look.view.replica_gpus), resource.fleet
        found = [self.shared(resource, each)]
        if fleet is not None and (most := fleet.gpus_max) is not None:
            own = Grant(budget="", gpus=most, gpus_per_replica=each.gpus or 1, unknown=each.refused)
            found.insert(0, own)
        granted = [one for one in found if one is not None]
        return min(granted, key=lambda one: (not one.unknown, one.gpus), default=None)


MakeGrants = Callable[[Adapters, Limits, StandsFor], Grants]


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
