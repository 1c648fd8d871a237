"""Which shard decides which resource.

A resource is of the shard that its status names, so the API server serializes every move. Where it
should be follows from a rendezvous hash: of a new shard's resources, each comes from where it was,
and no other resource moves.
"""

from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any

from servingslo.records import record

# Each shard's process watches all pods and reads each Lease of the release: more of them mostly
# load the API server. To be measured by `python -m tests.benchmarks.scale --shards N`.
MOST_SHARDS = 8


@record(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a resource is. shard: that decides it. moves: how often it was moved.

    A record with fewer moves than a known one is older.
    """

    shard: int = 0
    moves: int = 0

    def moved(self, shard: int) -> "Place":
        """The place after a move."""
        return Place(shard=shard, moves=self.moves + 1)

    def as_field(self) -> dict[str, int]:
        """`status.shard`."""
        return {"index": self.shard, "moves": self.moves}


_FIRST_PLACE = Place()


def place_of(status: Mapping[str, Any]) -> Place:
    """The place in a status; shard 0 if it names none, or none that can exist."""
    field = status.get("shard")
    if not isinstance(field, Mapping):
        return _FIRST_PLACE
    shard, moves = _count(field.get("index")), _count(field.get("moves"))
    return Place(shard=shard if shard < MOST_SHARDS else 0, moves=moves)


def placement(selected: Mapping[str, Collection[str]], shards: int) -> dict[str, int]:
    """The shard where each resource should be, by uid.

    selected: uids of the budgets of each resource, by its uid. All resources that are joined by
    budgets are on one shard, because one process shares a budget.
    """
    joined = _joined(selected)
    return {
        uid: shard_of(min(joined[next(iter(budgets))]) if budgets else uid, shards)
        for uid, budgets in selected.items()
    }


def shard_of(key: str, shards: int) -> int:
    """The shard with the highest hash together with the key.

    Source: D. G. Thaler, C. V. Ravishankar (1998), Using name-based mappings to increase hit rates.
    """
    return max(range(shards), key=lambda shard: (_weight(key, shard), shard))


def _weight(key: str, shard: int) -> bytes:
    return blake2b(f"{shard}/{key}".encode(), digest_size=8).digest()


def _joined(selected: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """Of each budget, all budgets that share a resource with it, directly or through others."""
    groups: dict[str, frozenset[str]] = {}
    for budgets in selected.values():
        if not budgets:
            continue
        group = frozenset(budgets).union(*(groups.get(uid, frozenset()) for uid in budgets))
        groups.update(dict.fromkeys(group, group))
    return groups


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 and not isinstance(value, bool) else 0
