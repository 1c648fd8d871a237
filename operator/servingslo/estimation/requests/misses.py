"""Misses of any objective, as an interval from the histograms of the single objectives.

A request that misses two objectives is counted in both histograms, and neither shows that it is the
same request. So of N requests at least as many missed as missed the worst objective, and at most
the sum over all objectives. A threshold between two bucket edges widens the interval. Refused
requests missed every objective.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """Requests of one objective, and how many were within its threshold, at least and at most."""

    requests: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Misses:
    """Requests, including refused ones, and how many of them missed any objective.

    classes: the same of each class of requests, if there are any.
    """

    requests: float = 0.0
    least: float = 0.0
    most: float = 0.0
    classes: Mapping[str, "Misses"] = field(default_factory=dict)


def misses(objectives: Iterable[Within], refused: float) -> Misses:
    """Return the misses of any objective, from served and refused requests."""
    found = tuple(objectives)
    served = max((one.requests for one in found), default=0.0)
    least = max((one.requests - one.most for one in found), default=0.0)
    most = min(sum(one.requests - one.least for one in found), served)
    return Misses(requests=served + refused, least=least + refused, most=most + refused)
