"""Timers of requests: a heap with the next timer first; equal times are ordered by number.

Written for the compiler, like `kernel`.
"""

from typing import Protocol

from servingslo_lab.sim.replicas.layout import NONE

TIMERS = 0
"""Index of the number of timers in `ints`."""


class Timers(Protocol):
    """Columns of a table whose requests have at most one timer each.

    wake: time of the timer. place: its index in the heap, NONE without a timer. heap: requests.
    """

    @property
    def wake(self) -> list[float]:  # noqa: D102 - see the class
        ...

    @property
    def place(self) -> list[int]:  # noqa: D102
        ...

    @property
    def heap(self) -> list[int]:  # noqa: D102
        ...

    @property
    def ints(self) -> list[int]:  # noqa: D102
        ...


def _sooner(t: Timers, one: int, other: int) -> bool:
    if t.wake[one] != t.wake[other]:
        return t.wake[one] < t.wake[other]
    return one < other


def _put(t: Timers, r: int, place: int) -> None:
    t.heap[place] = r
    t.place[r] = place


def _settle(t: Timers, place: int) -> None:
    """Move the timer at this index up or down to its correct place."""
    r = t.heap[place]
    size = t.ints[TIMERS]
    while place > 0 and _sooner(t, r, t.heap[(place - 1) // 2]):
        _put(t, t.heap[(place - 1) // 2], place)
        place = (place - 1) // 2
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _sooner(t, t.heap[child + 1], t.heap[child]):
            child += 1
        if not _sooner(t, t.heap[child], r):
            break
        _put(t, t.heap[child], place)
        place = child
    _put(t, r, place)


def set_timer(t: Timers, r: int, time: float) -> None:
    """Set a timer at this time for a request without one."""
    t.wake[r] = time
    place = t.ints[TIMERS]
    t.ints[TIMERS] = place + 1
    _put(t, r, place)
    _settle(t, place)


def remove_timer(t: Timers, r: int) -> None:
    """Remove the timer of a request from the heap."""
    place = t.place[r]
    t.place[r] = NONE
    last = t.ints[TIMERS] - 1
    t.ints[TIMERS] = last
    if place != last:
        _put(t, t.heap[last], place)
        _settle(t, place)
