"""Misses of any objective, as an interval from the histograms of the single objectives.

A request that misses two objectives is counted in both histograms, and neither shows that it is the
same request. So of N requests at least as many missed as missed the worst objective, and at most
the sum over all objectives. A threshold between two bucket edges widens the interval. Refused
requests missed every objective.
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
    """Requests, including refused ones, and how many of them missed any objective."""

    requests: float = 0.0
    least: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMisses:
    """Misses of the last `seconds` seconds. most: the pessimistic end, which spends the budget."""

    seconds: float
    requests: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReading:
    """The counters up to a time, in seconds since the epoch.

    windows: of the burn rates; the last one is the budget's own. covered_ratio: share of the
    budget's window for which there is data.
    """

    time_seconds: float
    windows: tuple[WindowMisses, ...]
    covered_ratio: float


def within_threshold(counts: Sequence[tuple[float, float]], threshold_seconds: float) -> Within:
    """Return requests within a threshold, from cumulative counts in any order.

    counts: pairs (upper edge, requests up to it). The open bucket's edge is infinite; all zero
    without one.
    """
    total = next((count for edge, count in counts if edge == float("inf")), 0.0)
    below = [count for edge, count in counts if edge <= threshold_seconds]
    above = [count for edge, count in counts if edge >= threshold_seconds]
    least = min(max(below, default=0.0), total)
    most = min(max(min(above, default=total), least), total)
    return Within(requests=total, least=least, most=most)


def misses(objectives: Iterable[Within], refused: float) -> Misses:
    """Return the misses of any objective, from served and refused requests."""
    found = tuple(objectives)
    served = max((one.requests for one in found), default=0.0)
    least = max((one.requests - one.most for one in found), default=0.0)
    most = min(sum(one.requests - one.least for one in found), served)
    return Misses(requests=served + refused, least=least + refused, most=most + refused)


def over(seconds: float, parts: Iterable[Misses]) -> WindowMisses:
    """Return the misses of a window, from those of its parts."""
    found = tuple(parts)
    return WindowMisses(
        seconds=seconds,
        requests=sum(part.requests for part in found),
        least=sum(part.least for part in found),
        most=sum(part.most for part in found),
    )
