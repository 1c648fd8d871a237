"""Inputs of a plan: a fleet of one pool or of several, their roles, bounds over all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from servingslo.errors import InvalidInputError
from servingslo.policy.inputs import Grant, Observation, Targets

# A sanity bound: prefill and decode, or one model on the cards that a cluster has.
MOST_POOLS = 8


class Role(StrEnum):
    """What a pool does with a request: all of it, the first token, or the other tokens."""

    COMBINED = "Combined"
    PREFILL = "Prefill"
    DECODE = "Decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTargets:
    """One pool: a set of equal replicas behind one target.

    targets: the resource's targets with the pool's own target, replicas, engine, batching, cold
    start and cost. Its objectives are those of the whole resource. gpus: of one replica, as its
    pod template has them; None if no budget or bound asks.
    """

    name: str
    role: Role
    targets: Targets
    gpus: int | None = None

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica; 1 if none are stated."""
        return self.gpus or self.targets.gpus_per_replica or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTargets:
    """The pools of one resource; a single target is a fleet of one pool without a name.

    pools: up to 8, with different names and targets. gpus_max: most GPUs of all together, None is
    unbounded. granted: the grant of a budget, if it is what bounds them. transfer_seconds: mean
    time of the transfer of a KV cache from prefill to decode; None means measured. Raises:
    InvalidInputError for a Prefill without a Decode or the reverse, and for Combined pools beside
    them.
    """

    pools: tuple[PoolTargets, ...]
    gpus_max: int | None = None
    granted: Grant | None = None
    transfer_seconds: float | None = None

    def __post_init__(self) -> None:
        roles = {pool.role for pool in self.pools}
        if roles not in ({Role.COMBINED}, {Role.PREFILL, Role.DECODE}):
            raise InvalidInputError(
                "pools.role", sorted(roles), "Combined, or Prefill together with Decode"
            )

    @classmethod
    def of(cls, targets: Targets) -> "FleetTargets":
        """The fleet of a single target."""
        return cls(pools=(PoolTargets(name="", role=Role.COMBINED, targets=targets),))

    @property
    def only(self) -> PoolTargets | None:
        """The single target; None of several pools."""
        return self.pools[0] if len(self.pools) == 1 else None

    @property
    def disaggregated(self) -> bool:
        """Whether requests pass a prefill pool and then a decode pool."""
        return self.pools[0].role is not Role.COMBINED

    @property
    def path(self) -> tuple[PoolTargets, PoolTargets]:
        """The prefill pool and the decode pool that requests pass."""
        first, last = self.pools
        return (first, last) if last.role is Role.DECODE else (last, first)

    def pool(self, name: str) -> PoolTargets:
        """The pool of this name; raises KeyError."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)

    def with_targets(self, targets: Mapping[str, Targets]) -> "FleetTargets":
        """The same pools with other targets, by name of the pool."""
        pools = tuple(
            replace(pool, targets=targets.get(pool.name, pool.targets)) for pool in self.pools
        )
        return replace(self, pools=pools)

    def within_grants(self, grants: Mapping[str, Grant | None]) -> "FleetTargets":
        """The same pools within the grants that were observed, by name of the pool.

        All pools have one grant, and the GPUs of a replica each. Unchanged without one, and while
        the GPUs of any replica are unknown: then no pool grows anyway (`unknown_for_all`).
        """
        known = {name: grant for name, grant in grants.items() if grant is not None}
        if not known or any(grant.unknown for grant in known.values()):
            return self
        pools = tuple(
            replace(pool, gpus=known[pool.name].gpus_per_replica) if pool.name in known else pool
            for pool in self.pools
        )
        least = min(known.values(), key=lambda grant: grant.gpus)
        if self.gpus_max is not None and self.gpus_max <= least.gpus:
            return replace(self, pools=pools)
        return replace(self, pools=pools, gpus_max=least.gpus, granted=least)


# One observation of each pool, by its name.
Observations = Mapping[str, Observation]


def unknown_for_all(observations: Observations) -> Observations:
    """The same, but while the GPUs of one pool's replica are unknown, no pool's grant is known."""
    for name, one in observations.items():
        if one.grant is not None and one.grant.unknown:
            grant = replace(one.grant, unknown=f"{name}: {one.grant.unknown}")
            return {pool: replace(other, grant=grant) for pool, other in observations.items()}
    return observations
