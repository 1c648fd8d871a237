"""The queues of a simulated engine: waiting and running lists, and the heap of next completions.

All are linked through the columns of the request table. So every operation costs O(1), or O(log n)
in the heap, and nothing is allocated.
"""

from servingslo_lab.sim.replicas.layout import (
    HEAP_SIZE,
    NONE,
    RUN_HEAD,
    RUN_TAIL,
    WAIT_HEAD,
    WAIT_TAIL,
    EngineRow,
    Requests,
)  # fmt: skip


def _append(q: Requests, row: EngineRow, r: int, head: int, tail: int) -> None:
    last = row.ints[tail]
    q.next[r] = NONE
    q.previous[r] = last
    if last == NONE:
        row.ints[head] = r
    else:
        q.next[last] = r
    row.ints[tail] = r


def _remove(q: Requests, row: EngineRow, r: int, head: int, tail: int) -> None:
    before, after = q.previous[r], q.next[r]
    if before == NONE:
        row.ints[head] = after
    else:
        q.next[before] = after
    if after == NONE:
        row.ints[tail] = before
    else:
        q.previous[after] = before


def wait_append(q: Requests, row: EngineRow, r: int) -> None:
    """Queue a request behind all others."""
    _append(q, row, r, WAIT_HEAD, WAIT_TAIL)


def wait_push_front(q: Requests, row: EngineRow, r: int) -> None:
    """Queue a preempted request before all others."""
    first = row.ints[WAIT_HEAD]
    q.next[r] = first
    q.previous[r] = NONE
    if first == NONE:
        row.ints[WAIT_TAIL] = r
    else:
        q.previous[first] = r
    row.ints[WAIT_HEAD] = r


def wait_insert(q: Requests, row: EngineRow, r: int) -> None:
    """Queue a request by priority, then by arrival.

    Source: vLLM 0.32 `v1/core/sched/request_queue.py`, PriorityRequestQueue.
    """
    before = row.ints[WAIT_TAIL]
    if before == NONE or not _goes_first(q, r, before):
        wait_append(q, row, r)
        return
    # Search from the head: there are few urgent requests, or the queue is short.
    after = row.ints[WAIT_HEAD]
    while not _goes_first(q, r, after):
        after = q.next[after]
    before = q.previous[after]
    q.next[r] = after
    q.previous[r] = before
    q.previous[after] = r
    if before == NONE:
        row.ints[WAIT_HEAD] = r
    else:
        q.next[before] = r


def _goes_first(q: Requests, one: int, other: int) -> bool:
    if q.priority[one] != q.priority[other]:
        return q.priority[one] < q.priority[other]
    return q.arrival[one] < q.arrival[other]


def least_urgent(q: Requests, row: EngineRow) -> int:
    """The running request that goes last by priority, then by arrival."""
    found = row.ints[RUN_TAIL]
    r = q.previous[found]
    while r != NONE:
        if _goes_first(q, found, r):
            found = r
        r = q.previous[r]
    return found


def wait_remove(q: Requests, row: EngineRow, r: int) -> None:
    """Remove a request from the queue, at any position."""
    _remove(q, row, r, WAIT_HEAD, WAIT_TAIL)


def run_append(q: Requests, row: EngineRow, r: int) -> None:
    """Append a request as the latest admitted one."""
    _append(q, row, r, RUN_HEAD, RUN_TAIL)


def run_remove(q: Requests, row: EngineRow, r: int) -> None:
    """Remove a request from the running list."""
    _remove(q, row, r, RUN_HEAD, RUN_TAIL)


def _earlier(q: Requests, one: int, other: int) -> bool:
    if q.finish_step[one] != q.finish_step[other]:
        return q.finish_step[one] < q.finish_step[other]
    return one < other


def _sift_up(q: Requests, row: EngineRow, place: int) -> None:
    heap = row.heap
    r = heap[place]
    while place > 0:
        parent = (place - 1) // 2
        if not _earlier(q, r, heap[parent]):
            break
        heap[place] = heap[parent]
        q.heap_place[heap[place]] = place
        place = parent
    heap[place] = r
    q.heap_place[r] = place


def _sift_down(q: Requests, row: EngineRow, place: int) -> None:
    heap, size = row.heap, row.ints[HEAP_SIZE]
    r = heap[place]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _earlier(q, heap[child + 1], heap[child]):
            child += 1
        if not _earlier(q, heap[child], r):
            break
        heap[place] = heap[child]
        q.heap_place[heap[place]] = place
        place = child
    heap[place] = r
    q.heap_place[r] = place


def heap_push(q: Requests, row: EngineRow, r: int) -> None:
    """Add a decoding request, ordered by the step in which it ends."""
    place = row.ints[HEAP_SIZE]
    row.ints[HEAP_SIZE] = place + 1
    row.heap[place] = r
    _sift_up(q, row, place)


def heap_remove(q: Requests, row: EngineRow, r: int) -> None:
    """Remove a decoding request, at any position."""
    place = q.heap_place[r]
    last = row.ints[HEAP_SIZE] - 1
    row.ints[HEAP_SIZE] = last
    q.heap_place[r] = NONE
    if place == last:
        return
    moved = row.heap[last]
    row.heap[place] = moved
    q.heap_place[moved] = place
    _sift_up(q, row, place)
    _sift_down(q, row, q.heap_place[moved])
