"""Which shard should decide which resource.

It follows from a rendezvous hash: of a new shard's resources, each comes from where it was, and no
other resource moves.
"""

from collections.abc import Collection, Mapping
from hashlib import blake2b

# Each shard's process watches all pods and reads each Lease of the release: more of them mostly
# load the API server. To be measured by `python -m tests.benchmarks.scale_shards --shards N`.
MOST_SHARDS = 8


def placement(selected: Mapping[str, Collection[str]], shards: int) -> dict[str, int]:
    """The shard where each resource should be, by uid.

    selected: names of what joins each resource with others, by its uid. All that are joined are on
    one shard, because one process shares out what they share.
    """
    joined = _joined(selected)
    return {
        uid: shard_of(min(joined[next(iter(groups))]) if groups else uid, shards)
        for uid, groups in selected.items()
    }


def shard_of(key: str, shards: int) -> int:
    """The shard with the highest hash together with the key.

    Source: D. G. Thaler, C. V. Ravishankar (1998), Using name-based mappings to increase hit rates.
    """
    return max(range(shards), key=lambda shard: (_weight(key, shard), shard))


def _weight(key: str, shard: int) -> bytes:
    return blake2b(f"{shard}/{key}".encode(), digest_size=8).digest()


def _joined(selected: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """Of each name, all that share a resource with it, directly or through others."""
    groups: dict[str, frozenset[str]] = {}
    for names in selected.values():
        if not names:
            continue
        group = frozenset(names).union(*(groups.get(one, frozenset()) for one in names))
        groups.update(dict.fromkeys(group, group))
    return groups
