"""Misses of any objective, as an interval: what histograms of single objectives can say of 'all'.

A request that misses two objectives is counted by both, and none of them tells that it is one. So
of N requests at least as many missed as missed the worst objective, and at most the sum of all.
A threshold between two bucket edges widens that. What was refused missed every objective.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """Requests of one objective, and how many were within its threshold, at least and at most."""

    requests: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Misses:
    """Requests, refused ones included, and how many of them missed any objective."""

    requests: float = 0.0
    least: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMisses:
    """The misses of the last so many seconds. most: the pessimistic end, which is what is spent."""

    seconds: float
    requests: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReading:
    """What the counters tell up to a time, in seconds since the epoch.

    windows: of the burn rates, and the budget's own as the last. covered_ratio: share of the
    budget's window of which anything is known.
    """

    time_seconds: float
    windows: tuple[WindowMisses, ...]
    covered_ratio: float


def within_threshold(counts: Sequence[tuple[float, float]], threshold_seconds: float) -> Within:
    """Requests within a threshold by cumulative counts: (upper edge, requests up to it), any order.

    The open bucket's edge is infinite; all zero without one.
    """
    total = next((count for edge, count in counts if edge == float("inf")), 0.0)
    below = [count for edge, count in counts if edge <= threshold_seconds]
    above = [count for edge, count in counts if edge >= threshold_seconds]
    least = min(max(below, default=0.0), total)
    most = min(max(min(above, default=total), least), total)
    return Within(requests=total, least=least, most=most)


def misses(objectives: Iterable[Within], refused: float) -> Misses:
    """Misses of any objective among requests that were served, and those that were refused."""
    found = tuple(objectives)
    served = max((one.requests for one in found), default=0.0)
    least = max((one.requests - one.most for one in found), default=0.0)
    most = min(sum(one.requests - one.least for one in found), served)
    return Misses(requests=served + refused, least=least + refused, most=most + refused)


def over(seconds: float, parts: Iterable[Misses]) -> WindowMisses:
    """The misses of a window, from those of its parts."""
    found = tuple(parts)
    return WindowMisses(
        seconds=seconds,
        requests=sum(part.requests for part in found),
        least=sum(part.least for part in found),
        most=sum(part.most for part in found),
    )
