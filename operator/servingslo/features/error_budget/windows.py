"""Misses of days: their windows, their classes, and what was read of them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from servingslo.copying import replace
from servingslo.estimation.requests.misses import Misses, Within
from servingslo.plugins import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMisses:
    """Misses of the last `seconds` seconds. most: the pessimistic end, which spends the budget."""

    seconds: float
    requests: float
    least: float
    most: float
    classes: Mapping[str, Misses] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReading:
    """The counters up to a time, in seconds since the epoch.

    windows: of the burn rates; the last one is the budget's own. covered_ratio: share of the
    budget's window for which there is data.
    """

    time_seconds: float
    windows: tuple[WindowMisses, ...]
    covered_ratio: float


READING: Key[BudgetReading] = Key("error_budget", BudgetReading)


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


def of_classes(
    served: Misses, counts: Mapping[str, tuple[float, float]], ordering: Collection[str]
) -> Misses:
    """Return the misses of the ordering classes together, and those of each class.

    served: of all requests that the engines ended, which do not tell classes apart: each class has
    its part. counts: offered and refused requests of each class; unchanged if they are unknown.
    """
    if not counts:
        return served
    least, most = (
        (served.least / served.requests, served.most / served.requests)
        if served.requests
        else (0.0, 0.0)
    )
    classes = {
        name: Misses(
            requests=offered,
            least=refused + (offered - refused) * least,
            most=refused + (offered - refused) * most,
        )
        for name, (offered, refused) in counts.items()
    }
    return replace(_sum(classes[name] for name in ordering if name in classes), classes=classes)


def _sum(parts: Iterable[Misses]) -> Misses:
    found = tuple(parts)
    return Misses(
        requests=sum(part.requests for part in found),
        least=sum(part.least for part in found),
        most=sum(part.most for part in found),
    )


def over(seconds: float, parts: Iterable[Misses]) -> WindowMisses:
    """Return the misses of a window, from those of its parts."""
    found = tuple(parts)
    whole = _sum(found)
    names = dict.fromkeys(name for part in found for name in part.classes)
    return WindowMisses(
        seconds=seconds,
        requests=whole.requests,
        least=whole.least,
        most=whole.most,
        classes={
            name: _sum(part.classes[name] for part in found if name in part.classes)
            for name in names
        },
    )
