"""Clients that give up, retry, and belong to sessions whose prompts share a prefix.

Only for fleets with such clients; others use `routing.serve`, which is faster.
A client has a patience for its first token and one for the end of its answer; then it aborts. A
refused, lost or aborted request is sent again after a doubling backoff, a bounded number of times.
If the engine still has tokens of the session in its cache, the request skips the prefill of the
shared part.

Source: openai-python `_base_client.py` (which requests are retried, backoff with jitter); vLLM 0.32
`v1/core/kv_cache_manager.py` (blocks of ended requests stay until others need them).
Approximations: the cache lookup is at a request's arrival, not at its scheduling. A prefix counts
as evicted when the engine has since touched more tokens than it has free now, which is too early if
the same sessions return repeatedly. An aborted request is not sent again before its current step
has ended. Written for the compiler, like `kernel`.
"""

# ruff: noqa: I001 - one imported name a line would hide the code

import math
from typing import NamedTuple

from servingslo_lab.sim.replicas.batches import batch_end
from servingslo_lab.sim.replicas.intake import abort, lose, submit
from servingslo_lab.sim.replicas.kernel import advance, drop_aborted
from servingslo_lab.sim.replicas.layout import (
    ABORTED,
    ABORTING,
    DYNAMIC,
    FAILED,
    FINISHED,
    FREE_BLOCKS,
    INVALID,
    IN_STEP,
    KIND,
    NEXT_CHANGE,
    NONE,
    PHASES,
    REJECTED,
    RUNNING,
    RUN_HEAD,
    TOUCHED_TOKENS,
    WAITING_COUNT,
    WAIT_HEAD,
    EngineRow,
    Requests,
    begin_again,
)  # fmt: skip
from servingslo_lab.sim.replicas.routing import (
    NEXT_ARRIVAL,
    PREFIX_AFFINE,
    RANDOM_BITS,
    REQUESTS,
    RULE,
    pick,
    random_bits,
)  # fmt: skip
from servingslo_lab.sim.replicas.timers import TIMERS, remove_timer, set_timer


class Clients(NamedTuple):
    """One entry for each request, except for heap (timers), ints and floats.

    attempts: how often it was sent. wake: time of its client's next action; place: of that timer in
    the heap. session: -1 for none. shared: prompt tokens in common with earlier requests of its
    session.
    """

    attempts: list[int]
    wake: list[float]
    place: list[int]
    session: list[int]
    shared: list[int]
    heap: list[int]
    ints: list[int]
    floats: list[float]


CLIENT_FLOATS = frozenset({"wake", "floats"})

RETRIES = TIMERS + 1
CLIENT_INTS = 2
FIRST_TOKEN_TIMEOUT, TIMEOUT, BACKOFF, LARGEST_BACKOFF, JITTER = 0, 1, 2, 3, 4
CLIENT_FLOAT_COUNT = 5

_LOAD_BOUND = 1.25
"""An engine with this many times the mean load gets no more requests.

Source: V. Mirrokni, M. Thorup, M. Zadimoghaddam, Consistent Hashing with Bounded Loads (2018).
"""
# Source: T. Mueller, integer hash of H2 (stackoverflow.com/a/12996028).
_HASH_FACTOR, _HASH_BITS = 73244475, 32
_HASH_MODULUS = 1 << _HASH_BITS
_ENGINE_FACTOR = 40503


def _affinity(session: int, engine: int) -> int:
    """Affinity of a session to an engine: a hash of both."""
    x = (session * _HASH_FACTOR + engine * _ENGINE_FACTOR + 1) % _HASH_MODULUS
    x = ((x ^ (x >> 16)) * _HASH_FACTOR) % _HASH_MODULUS
    x = ((x ^ (x >> 16)) * _HASH_FACTOR) % _HASH_MODULUS
    return x ^ (x >> 16)


def pick_affine(
    q: Requests, rows: list[EngineRow], serving: list[int], session: int, now: float
) -> int:
    """The engine with the highest affinity to a session, among those that are not overloaded.

    Every engine has its own affinity to a session. So a new or removed engine moves only its own
    sessions (rendezvous hashing).
    """
    count = len(serving)
    total = 0
    for i in range(count):
        row = rows[serving[i]]
        if row.floats[NEXT_CHANGE] <= now:
            advance(q, row, now)
        total += row.ints[RUNNING] + row.ints[WAITING_COUNT]
    bound = _LOAD_BOUND * (total + 1) / max(count, 1)
    best = NONE
    strongest = -1
    for i in range(count):
        row = rows[serving[i]]
        draw = _affinity(session, serving[i])
        if row.ints[RUNNING] + row.ints[WAITING_COUNT] < bound and draw > strongest:
            best = serving[i]
            strongest = draw
    return best


def use_prefix(q: Requests, c: Clients, row: EngineRow, r: int) -> None:
    """Set the prompt's cached tokens in this engine's prefix cache, and record the session."""
    session = c.session[r]
    if session < 0:
        return
    since = row.ints[TOUCHED_TOKENS] - (row.seen[session] - 1)
    held = row.seen[session] > 0 and since <= row.ints[FREE_BLOCKS] * PHASES
    q.cached[r] = min(c.shared[r], q.prompt[r] - 1) // PHASES * PHASES if held else 0
    row.ints[TOUCHED_TOKENS] += q.prompt[r] + q.output[r]
    row.seen[session] = row.ints[TOUCHED_TOKENS] + 1


def send(
    q: Requests, c: Clients, rows: list[EngineRow], serving: list[int], gateway: list[int],
    r: int,
) -> None:  # fmt: skip
    """Send a client's request, at its set arrival time."""
    now = q.arrival[r]
    c.attempts[r] += 1
    if gateway[RULE] == PREFIX_AFFINE and c.session[r] >= 0:
        engine = pick_affine(q, rows, serving, c.session[r], now)
    else:
        engine = pick(q, rows, serving, gateway, now)
    if engine == NONE:
        q.status[r] = FAILED
        q.finish[r] = now
        send_later(c, gateway, r, now)
        return
    row = rows[engine]
    q.engine[r] = engine
    advance(q, row, now)
    if submit(q, row, r, now):
        use_prefix(q, c, row, r)
        patience = min(c.floats[FIRST_TOKEN_TIMEOUT], c.floats[TIMEOUT])
        if patience < math.inf:
            set_timer(c, r, now + patience)
    elif q.status[r] != INVALID:
        send_later(c, gateway, r, now)


def send_later(c: Clients, gateway: list[int], r: int, now: float) -> None:
    """Set the timer of the next attempt, if there is one left."""
    if c.attempts[r] > c.ints[RETRIES]:
        return
    wait = c.floats[BACKOFF]
    for _ in range(1, c.attempts[r]):
        wait = min(2.0 * wait, c.floats[LARGEST_BACKOFF])
    share = random_bits(gateway) / (1 << RANDOM_BITS)
    set_timer(c, r, now + wait * (1.0 - c.floats[JITTER] * share))


def wake(
    q: Requests, c: Clients, rows: list[EngineRow], serving: list[int], gateway: list[int],
) -> None:  # fmt: skip
    """Let the client of the next timer give up or retry."""
    r = c.heap[0]
    now = c.wake[r]
    remove_timer(c, r)
    if q.engine[r] != NONE:
        row = rows[q.engine[r]]
        advance(q, row, now)
        if row.ints[IN_STEP] == 0:
            drop_aborted(q, row)
    status = q.status[r]
    if status == FINISHED:
        return
    if status == ABORTING:
        row = rows[q.engine[r]]
        dynamic = row.ints[KIND] == DYNAMIC
        set_timer(c, r, batch_end(row, q.finish_step[r]) if dynamic else row.floats[NEXT_CHANGE])
    elif status in (REJECTED, FAILED, ABORTED):
        begin_again(q, r)
        q.arrival[r] = now
        send(q, c, rows, serving, gateway, r)
    elif q.first_token[r] >= 0.0 and now < q.arrival[r] + c.floats[TIMEOUT]:
        if c.floats[TIMEOUT] < math.inf:
            set_timer(c, r, q.arrival[r] + c.floats[TIMEOUT])
    else:
        abort(q, rows[q.engine[r]], r, now)
        send_later(c, gateway, r, now)


def lose_engine(q: Requests, c: Clients, row: EngineRow, gateway: list[int], now: float) -> None:
    """End an engine that fails; the clients of its requests retry."""
    advance(q, row, now)
    for head in (RUN_HEAD, WAIT_HEAD):
        r = row.ints[head]
        while r != NONE:
            if q.status[r] != ABORTING:
                if c.place[r] != NONE:
                    remove_timer(c, r)
                send_later(c, gateway, r, now)
            r = q.next[r]
    lose(q, row, now)


def serve_clients(
    q: Requests, c: Clients, rows: list[EngineRow], serving: list[int], gateway: list[int],
    until: float,
) -> None:  # fmt: skip
    """Simulate arrivals, aborts and retries until this time."""
    while True:
        r = gateway[NEXT_ARRIVAL]
        arrival = q.arrival[r] if r < gateway[REQUESTS] else math.inf
        timer = c.wake[c.heap[0]] if c.ints[TIMERS] > 0 else math.inf
        if min(arrival, timer) > until:
            return
        if timer <= arrival:
            wake(q, c, rows, serving, gateway)
        else:
            gateway[NEXT_ARRIVAL] = r + 1
            send(q, c, rows, serving, gateway, r)
