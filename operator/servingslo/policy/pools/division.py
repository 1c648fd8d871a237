"""How demand and objectives of a resource are divided among its pools at a tick."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from servingslo.plugins import Aspect, Key
from servingslo.policy.planner import Seen
from servingslo.policy.pools.decision import PathUse
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.proposal import Proposal

# Requests per second that this many replicas of a pool carry; 0 for none. Rises with the count.
RateOf = Callable[[int], float]
Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How the promise is divided at this tick.

    seen: each pool with its part of demand and objectives. requirements: of the pools whose count
    was decided together; the others decide by themselves. path, features: for the report.
    """

    seen: Mapping[str, Seen]
    requirements: Mapping[str, Proposal] = field(default_factory=dict)
    path: PathUse | None = None
    features: Mapping[str, object] = field(default_factory=dict)


# How the demand is divided at this tick, which has these seconds, and the memory for the next.
Divide = Callable[
    [FleetTargets, FleetState, Mapping[str, Seen], float], tuple[Division, FleetState]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divider:
    """A feature that divides the demand among Combined pools.

    key: name and type of its report; the name is also that of its memory in `FleetState.features`.
    """

    key: Key[Any]
    divide: Divide


DIVIDER: Aspect[Divider] = Aspect("divider")


def divide_demand(
    targets: FleetTargets, state: FleetState, seen: Mapping[str, Seen], now_seconds: float
) -> tuple[Division, FleetState]:
    """By the first feature that divides it; without one each pool plans for its own requests."""
    for one in DIVIDER.parts():
        return one.divide(targets, state, seen, now_seconds)
    return Division(seen=seen), state


def carried_rate_per_second(counts: Counts, rate_of: Mapping[str, RateOf]) -> float:
    """The greatest demand at which every Combined pool keeps its objectives, requests per second.

    Who splits the traffic is not known, so every pod is taken to get as many requests, as behind a
    Service: no other split promises less of a mix. A pod of the slow pool then gets as many as one
    of the fast pool. With R_k(c) the rate that c replicas of pool k carry within their objectives,
    the fleet carries

        (Σ c_k) · min R_k(c_k)/c_k

    Two of 10/s and two of 2/s carry 8/s: one slow pod can cost more than it adds.
    """
    each = [rate_of[pool](count) / count for pool, count in counts.items() if count > 0]
    return sum(counts.values()) * min(each, default=0.0)
