"""`status.shard`: the shard that decides a resource, so the API server serializes every move."""

from collections.abc import Mapping
from typing import Any

from servingslo.controller.place import Place
from servingslo.features.shards.placement import MOST_SHARDS

_FIELD = "shard"


def place_of(status: Mapping[str, Any]) -> Place:
    """The place in a status; shard 0 if it names none, or none that can exist."""
    field = status.get(_FIELD)
    if not isinstance(field, Mapping):
        return Place()
    shard, moves = _count(field.get("index")), _count(field.get("moves"))
    return Place(lease=shard if shard < MOST_SHARDS else 0, moves=moves)


def moved(place: Place, shard: int) -> dict[str, dict[str, int]]:
    """The fields of a status after a move."""
    return {_FIELD: {"index": shard, "moves": place.moves + 1}}


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 and not isinstance(value, bool) else 0


PART = place_of
