"""Operators of one release with several shards, and by the audit log who wrote for which shard.

Shard 0 has the Lease of a release without shards. A resource is of the shard in its status, 0 where
there is none; each write to it, or to the Deployment of its name, must be of who holds that shard.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.integration.failover import LEASE, audited, candidate, identities_of
from tests.integration.operator_under_test import RELEASE_NAMESPACE, Operator, Tenant

from servingslo.controller.place import place_of
from servingslo.features.shards.placement import shard_of
from servingslo_lab.rig.cluster import Rig

_HELD = re.compile(r'^servingslo_shard_held\{shard="(\d+)"\} 1\.0$', re.MULTILINE)
_VERBS = frozenset({"create", "patch", "update"})
_LEASE = re.compile(rf"{LEASE}(?:-(\d+))?")
# What a process that is lost had under way may be answered so much later.
_LAST_WRITES_SECONDS = 0.5
_OF_RESOURCE = {"servingslos/status", "deployments/scale"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWrite:
    """One write of an operator: of a shard's Lease, or for a resource.

    holder: of the Lease after it. moved_to: the shard that it moves the resource to.
    """

    seconds: float
    identity: str
    what: str
    lease: int | None = None
    holder: str = ""
    resource: tuple[str, str] = ("", "")
    moved_to: int | None = None


def sharded(rig: Rig, shards: int, *settings: str) -> Operator:
    """One more operator of the release, not started."""
    return candidate(rig, f"--shards={shards}", *settings)


def held(operator: Operator) -> set[int]:
    """The shards that it says it holds; none if it does not answer."""
    return {int(shard) for shard in _HELD.findall(operator.metrics())}


def held_by_each(operators: Iterable[Operator], shards: int) -> bool:
    """Whether every shard is held once, and as evenly as can be."""
    counts = [held(one) for one in operators]
    sizes = [len(one) for one in counts]
    return (
        set().union(*counts) == set(range(shards))
        and sum(sizes) == shards
        and max(sizes) - min(sizes) <= 1
    )


def shards_of(tenant: Tenant) -> dict[str, int]:
    """Where each ServingSLO is."""
    return {name: place_of(tenant.status(name)).lease for name in tenant.slo_names()}


def is_placed(tenant: Tenant, shards: int) -> bool:
    """Whether each ServingSLO is where its uid belongs."""
    return all(
        shard == shard_of(tenant.slo(name)["metadata"]["uid"], shards)
        for name, shard in shards_of(tenant).items()
    )


def order_everywhere(tenant: Tenant, names: Sequence[str], most: int) -> int:
    """Ask for one replica more than there is anywhere, of each of these; returns that count."""
    count = 1 + max(tenant.replicas(name) for name in names)
    for name in names:
        tenant.patch_slo({"replicas": {"min": count, "max": most}}, name)
    return count


def shard_writes(rig: Rig) -> list[ShardWrite]:
    """What operators wrote, in order."""
    lines = rig.audit_log.read_text(encoding="utf-8").splitlines()
    return sorted(_writes(map(json.loads, lines)), key=lambda write: write.seconds)


def shard_strays(seen: Iterable[ShardWrite], operators: Iterable[Operator]) -> list[ShardWrite]:
    """Writes of processes of these operators that did not hold the resource's shard then."""
    ours = set().union(*map(identities_of, operators))
    holders: dict[int, str] = {}
    places: dict[tuple[str, str], int] = {}
    found = []
    for write in seen:
        if write.lease is not None:
            holders[write.lease] = write.holder
        elif write.identity in ours:
            if holders.get(places.get(write.resource, 0)) != write.identity:
                found.append(write)
            if write.moved_to is not None:
                places[write.resource] = write.moved_to
    return found


def first_orders(seen: Iterable[ShardWrite], namespace: str, after: float) -> dict[str, float]:
    """Of each Deployment of a namespace, how long after this moment its count was first written."""
    found: dict[str, float] = {}
    for write in seen:
        is_order = write.what == "deployments/scale" and write.resource[0] == namespace
        if is_order and write.seconds > after:
            found.setdefault(write.resource[1], write.seconds - after)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What followed the loss of a process, in seconds after it.

    taken: until another process held the last of its shards. orphans: until the last of their
    resources had an order. others: until the last of all other resources had one, which is a tick.
    """

    taken: float
    orphans: float
    others: float


def loss_of(
    seen: Iterable[ShardWrite], places: dict[str, int], lost: set[int], tenant: Tenant, at: float
) -> Loss:
    """By the audit log. places: the shard of each resource before. at: when it was lost."""
    every = tuple(seen)
    taken = {
        shard: next(w.seconds - at for w in every if _is_taken(w, shard, at)) for shard in lost
    }
    took = first_orders(every, tenant.namespace, at)
    of_lost = {name: took[name] for name, shard in places.items() if shard in lost and name in took}
    others = [seconds for name, seconds in took.items() if name not in of_lost]
    return Loss(
        taken=max(taken.values()),
        orphans=max(of_lost.values(), default=0.0),
        others=max(others, default=0.0),
    )


def _is_taken(write: ShardWrite, shard: int, after: float) -> bool:
    """Whether somebody takes a Lease with this write; a lost process writes none any more."""
    return write.lease == shard and write.seconds > after + _LAST_WRITES_SECONDS


def _writes(entries: Iterable[dict[str, Any]]) -> Iterator[ShardWrite]:
    for seconds, identity, what, entry in audited(entries, _VERBS):
        reference, body = entry["objectRef"], entry.get("requestObject") or {}
        name = reference.get("name") or body["metadata"].get("name") or ""
        lease = _LEASE.fullmatch(name)
        if what == "leases" and reference["namespace"] == RELEASE_NAMESPACE and lease is not None:
            yield ShardWrite(
                seconds=seconds,
                identity=identity,
                what=what,
                lease=int(lease[1] or 0),
                holder=body["spec"]["holderIdentity"],
            )
        elif what in _OF_RESOURCE:
            status = body.get("status") if isinstance(body, dict) else None
            moved = "shard" in (status or {})
            yield ShardWrite(
                seconds=seconds,
                identity=identity,
                what=what,
                resource=(reference["namespace"], name),
                moved_to=place_of(status).lease if moved else None,
            )
