"""How much work is late at a count, and the least count at which it is not: by earliest deadline.

Work that is due by a time t must fit in what a count serves beyond live demand until t; whatever
exceeds it is late, in any order. Source: S. K. Baruah, A. K. Mok, L. E. Rosier, "Preemptively
scheduling hard-real-time sporadic tasks on one processor", RTSS 1990, the demand bound, here of a
fluid: a request takes seconds, deadlines are minutes to days.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from servingslo.features.backlog.deadlines import Work

# Parts of the time until the last deadline between which live demand is looked at: an hour of a
# day, so that a season's shape is seen.
PARTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Live demand ahead, at ascending times from 0 on, with every deadline among them.

    lead_seconds: until a replica ordered now serves; one of the times.
    """

    times_seconds: tuple[float, ...]
    live_per_second: tuple[float, ...]
    lead_seconds: float


def times_ahead(work: Sequence[Work], lead_seconds: float) -> tuple[float, ...]:
    """Where to look at live demand."""
    last = max((one.due_seconds for one in work), default=lead_seconds)
    parts = (last * part / PARTS for part in range(PARTS + 1))
    return tuple(sorted({0.0, lead_seconds, *parts, *(one.due_seconds for one in work)}))


def served_by(outlook: Outlook, now_per_second: float, then_per_second: float) -> list[float]:
    """Requests of the work served by each time of the outlook.

    now_per_second: what serving replicas carry; then_per_second: what they carry after the lead. A
    release takes effect at once. Of two ends of a part, the higher live demand counts.
    """
    early = min(now_per_second, then_per_second)
    served = [0.0]
    ends = zip(pairwise(outlook.times_seconds), pairwise(outlook.live_per_second), strict=True)
    for (begin, end), live in ends:
        carried = early if end <= outlook.lead_seconds else then_per_second
        served.append(served[-1] + max(carried - max(live), 0.0) * (end - begin))
    return served


def late_requests(work: Sequence[Work], outlook: Outlook, served: Sequence[float]) -> float:
    """Requests of the work that are late by any order; those that are late already are in it."""
    by_time = dict(zip(outlook.times_seconds, served, strict=True))
    due, in_time, excess = 0.0, 0.0, 0.0
    for one in sorted(work, key=lambda each: each.due_seconds):
        due += one.requests
        in_time += 0.0 if one.late else one.requests
        excess = max(excess, min(due - by_time[one.due_seconds], in_time))
    return late_already(work) + excess


def late_already(work: Sequence[Work]) -> float:
    """Requests of the work whose deadline has passed."""
    return sum(one.requests for one in work if one.late)


def least_count(
    work: Sequence[Work],
    outlook: Outlook,
    *,
    allowed: float,
    carried: Callable[[int], float],
    serving: int,
    most: int,
) -> int | None:
    """The least count from 1 to `most` at which no more requests than allowed become late.

    carried: the fleet rate within the objectives at a count, which grows with it. Work that is late
    already must end soon. None if no such count is enough.
    """
    again, now = _due_again(work), carried(serving)

    def enough(count: int) -> bool:
        served = served_by(outlook, now, carried(count))
        return late_requests(again, outlook, served) <= allowed

    if not enough(most):
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def least_late_count(
    work: Sequence[Work],
    outlook: Outlook,
    *,
    carried: Callable[[int], float],
    serving: int,
    most: int,
) -> int:
    """The least count at which no more becomes late than at `most`: others would help nothing."""
    served = served_by(outlook, carried(serving), carried(most))
    allowed = late_requests(_due_again(work), outlook, served)
    found = least_count(work, outlook, allowed=allowed, carried=carried, serving=serving, most=most)
    return most if found is None else found


def _due_again(work: Sequence[Work]) -> tuple[Work, ...]:
    return tuple(Work(due_seconds=one.due_seconds, requests=one.requests) for one in work)
