"""Requests through two pools: prefilled in one, handed over with their KV cache, decoded.

A request is two ordinary requests of the kernel, one in the table of each pool. To a prefill engine
it asks for one token; when that is emitted its blocks stay held until the KV cache is sent. To a
decode engine its prompt is the prompt and that token, of which all but the token came with the
transfer; it asks for the tokens that are left. Blocks that wait for their transfer are kept out of
the engine's free ones here, so that the kernel knows nothing of pools.

Source: Zhong et al., DistServe (OSDI 2024); Patel et al., Splitwise (ISCA 2024); vLLM
`docs/features/disagg_prefill`. Approximations: the cache is sent at once when the prefill ends, and
what then waits for room in the decode pool holds no memory in either; a decode engine that runs out
of blocks computes the preempted sequence again, prompt and all, as vLLM does. Written for the
compiler as `kernel` is.
"""

# ruff: noqa: I001 - one imported name a line would hide the code

import math
from typing import NamedTuple

from servingslo_lab.sim.intake import submit
from servingslo_lab.sim.kernel import advance, blocks_of, schedule
from servingslo_lab.sim.layout import (
    CLOCK,
    DONE_HEAD,
    FAILED,
    FREE_BLOCKS,
    IN_STEP,
    NEXT_CHANGE,
    NONE,
    PENDING,
    PREEMPTIONS,
    RUNNING,
    WAITING_COUNT,
    WAIT_HEAD,
    EngineRow,
    Requests,
)  # fmt: skip
from servingslo_lab.sim.routing import NEXT_ARRIVAL, REQUESTS, pick
from servingslo_lab.sim.timers import TIMERS, remove_timer, set_timer


class Transfers(NamedTuple):
    """KV caches on their way: a timer for each request whose cache is, until it is there.

    wake, place, heap: of `timers`. ints, floats: see the constants.
    """

    wake: list[float]
    place: list[int]
    heap: list[int]
    ints: list[int]
    floats: list[float]


TRANSFER_FLOATS = frozenset({"wake", "floats"})

TRANSFER_INTS = TIMERS + 1
FIXED_SECONDS, TOKEN_SECONDS = 0, 1
TRANSFER_FLOAT_COUNT = 2


def rest_when_full(p: Requests, row: EngineRow) -> None:
    """Let an engine rest that can begin nothing before a transfer has left it."""
    ints = row.ints
    if ints[IN_STEP] == 0 and ints[RUNNING] == 0 and ints[WAITING_COUNT] > 0:
        head = ints[WAIT_HEAD]
        if blocks_of(p.prompt[head]) > ints[FREE_BLOCKS]:
            row.floats[NEXT_CHANGE] = math.inf


def end_prefill(p: Requests, t: Transfers, row: EngineRow, remaining: list[int]) -> None:
    """Complete the step in progress, and begin to send what it finished."""
    now = row.floats[NEXT_CHANGE]
    advance(p, row, now)
    r = row.ints[DONE_HEAD]
    row.ints[DONE_HEAD] = NONE
    while r != NONE:
        if remaining[r] > 0:
            row.ints[FREE_BLOCKS] -= blocks_of(p.prompt[r])
            tokens = p.prompt[r]
            set_timer(t, r, now + t.floats[FIXED_SECONDS] + t.floats[TOKEN_SECONDS] * tokens)
        r = p.next[r]
    rest_when_full(p, row)


def advance_decode(d: Requests, row: EngineRow, until: float) -> None:
    """As the kernel's, but what is preempted has lost the cache that came with the transfer."""
    while row.floats[NEXT_CHANGE] <= until:
        advance(d, row, row.floats[NEXT_CHANGE])
        if row.ints[RUNNING] + row.ints[WAITING_COUNT] == 0 or row.floats[CLOCK] >= until:
            return
        before = row.ints[PREEMPTIONS]
        schedule(d, row)
        r = row.ints[WAIT_HEAD]
        for _ in range(row.ints[PREEMPTIONS] - before):
            d.cached[r] = 0
            r = d.next[r]
    advance(d, row, until)


def hand_over(
    p: Requests, d: Requests, t: Transfers, prefill: list[EngineRow], decode: list[EngineRow],
    serving: list[int], gateway: list[int],
) -> None:  # fmt: skip
    """Free the blocks of the transfer that ends next, and let a decode engine go on with it."""
    r = t.heap[0]
    remove_timer(t, r)
    now = t.wake[r]
    if d.status[r] != PENDING:  # lost with the engine that sent it
        return
    row = prefill[p.engine[r]]
    row.ints[FREE_BLOCKS] += blocks_of(p.prompt[r])
    if row.floats[NEXT_CHANGE] == math.inf and row.ints[WAITING_COUNT] > 0:
        row.floats[CLOCK] = now
        row.floats[NEXT_CHANGE] = now
        rest_when_full(p, row)
    for place in serving:
        if decode[place].floats[NEXT_CHANGE] <= now:
            advance_decode(d, decode[place], now)
    engine = pick(d, decode, serving, gateway, now)
    d.arrival[r] = now
    if engine == NONE:
        d.status[r] = FAILED
        d.finish[r] = now
        return
    d.engine[r] = engine
    advance_decode(d, decode[engine], now)
    submit(d, decode[engine], r, now)


def arrive(p: Requests, prefill: list[EngineRow], serving: list[int], gateway: list[int]) -> None:
    """The next request of the trace comes to the prefill pool."""
    r = gateway[NEXT_ARRIVAL]
    gateway[NEXT_ARRIVAL] = r + 1
    now = p.arrival[r]
    engine = pick(p, prefill, serving, gateway, now)
    if engine == NONE:
        p.status[r] = FAILED
        p.finish[r] = now
    else:
        p.engine[r] = engine
        submit(p, prefill[engine], r, now)
        rest_when_full(p, prefill[engine])


def serve_pools(
    p: Requests, d: Requests, t: Transfers, prefill: list[EngineRow], decode: list[EngineRow],
    remaining: list[int], taking: list[int], computing: list[int], serving: list[int],
    decoding: list[int], gateway: list[int], decode_gateway: list[int], until: float,
) -> None:  # fmt: skip
    """Bring both pools to this time.

    taking: prefill engines that take requests; computing: those and the ones that drain; serving
    and decoding: the same of the decode pool. remaining: tokens of each request beyond the first.
    At one moment steps end first, then caches arrive, then requests; steps begin last.
    """
    while True:
        change, begins, place = math.inf, 0, NONE
        for i in computing:
            # A step that begins comes after everything else of its moment.
            idle = 1 - prefill[i].ints[IN_STEP]
            next_change = prefill[i].floats[NEXT_CHANGE]
            if next_change < change or (next_change == change and idle < begins):
                change, begins, place = next_change, idle, i
        transfer = t.wake[t.heap[0]] if t.ints[TIMERS] > 0 else math.inf
        r = gateway[NEXT_ARRIVAL]
        arrival = p.arrival[r] if r < gateway[REQUESTS] else math.inf
        now = min(change, transfer, arrival)
        if now > until:
            break
        if change == now and begins == 0:
            end_prefill(p, t, prefill[place], remaining)
        elif transfer == now:
            hand_over(p, d, t, prefill, decode, serving, decode_gateway)
        elif arrival == now:
            arrive(p, prefill, taking, gateway)
        elif now == until:
            break
        else:
            schedule(p, prefill[place])
            rest_when_full(p, prefill[place])
    for i in computing:
        if prefill[i].floats[NEXT_CHANGE] == math.inf:  # nobody may take it for one that is late
            prefill[i].floats[CLOCK] = max(prefill[i].floats[CLOCK], until)
    for i in decoding:
        advance_decode(d, decode[i], until)
