"""Requests through two pools: prefilled in one, transferred with their KV cache, decoded.

A request is two ordinary requests of the kernel, one in the table of each pool. For a prefill
engine it has one output token; its blocks then stay in use until decode has read them. If that
token is the answer's first one, the decode engine's prompt is the prompt plus the token, all but
the token is cached by the transfer, and its output is the remaining tokens. If the token is thrown
away, the decode engine computes the last prompt token again and emits the whole answer; as in vLLM
it has the request from the end of the prefill on, so its TTFT and queue time include the transfer.
Short prompts may go to a decode engine directly, which then prefills them. Blocks that wait for
their transfer are subtracted from the engine's free blocks here, so the kernel needs no knowledge
of pools.

Source: Zhong et al., DistServe (OSDI 2024); Patel et al., Splitwise (ISCA 2024); vLLM
`docs/features/disagg_prefill`, `v1/core/sched/scheduler.py` (`_update_waiting_for_remote_kv`);
llm-d-inference-scheduler, `docs/disaggregation.md` (the sidecar's prefill with max_tokens=1; the
prefix-based decider's nonCachedTokens). Approximations: a decode engine is picked when the cache
has arrived, not before the prefill. The cache is sent immediately at the end of the prefill, and
its blocks stay in use there until the decode engine has room: vLLM takes the room, then reads. A
decode engine without free blocks computes the preempted sequence again, including the prompt, like
vLLM. Written for the compiler, like `kernel`.
"""

# ruff: noqa: I001 - one imported name a line would hide the code

import math
from typing import NamedTuple

from servingslo_lab.sim.replicas.intake import submit
from servingslo_lab.sim.replicas.kernel import advance, blocks_of, schedule
from servingslo_lab.sim.replicas.layout import (
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
    WAITING,
    WAITING_COUNT,
    WAIT_HEAD,
    EngineRow,
    Requests,
)  # fmt: skip
from servingslo_lab.sim.replicas.routing import NEXT_ARRIVAL, REQUESTS, pick
from servingslo_lab.sim.replicas.timers import TIMERS, remove_timer, set_timer


class Transfers(NamedTuple):
    """KV cache transfers: a timer for each running transfer.

    wake, place, heap: of `timers`. held: requests whose blocks prefill keeps while they wait at
    decode, HELD of them. ints, floats: see the constants.
    """

    wake: list[float]
    place: list[int]
    heap: list[int]
    held: list[int]
    ints: list[int]
    floats: list[float]


TRANSFER_FLOATS = frozenset({"wake", "floats"})

SKIP_PROMPT_TOKENS, FIRST_AT_DECODE, HELD = TIMERS + 1, TIMERS + 2, TIMERS + 3
TRANSFER_INTS = TIMERS + 4
FIXED_SECONDS, TOKEN_SECONDS = 0, 1
TRANSFER_FLOAT_COUNT = 2


def rest_when_full(p: Requests, row: EngineRow) -> None:
    """Mark an engine as idle if it can start nothing before one of its transfers ends."""
    ints = row.ints
    if ints[IN_STEP] == 0 and ints[RUNNING] == 0 and ints[WAITING_COUNT] > 0:
        head = ints[WAIT_HEAD]
        if blocks_of(p.prompt[head]) > ints[FREE_BLOCKS]:
            row.floats[NEXT_CHANGE] = math.inf


def end_prefill(p: Requests, t: Transfers, row: EngineRow, remaining: list[int]) -> None:
    """Complete the current step, and start the transfers of its finished prefills."""
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
    """Like the kernel's `advance`, with `begin_decode`."""
    while row.floats[NEXT_CHANGE] <= until:
        advance(d, row, row.floats[NEXT_CHANGE])
        if row.ints[RUNNING] + row.ints[WAITING_COUNT] == 0 or row.floats[CLOCK] >= until:
            return
        begin_decode(d, row)
    advance(d, row, until)


def begin_decode(d: Requests, row: EngineRow) -> None:
    """Begin the next steps of a decode engine; a preempted request loses its cache."""
    before = row.ints[PREEMPTIONS]
    schedule(d, row)
    r = row.ints[WAIT_HEAD]
    for _ in range(row.ints[PREEMPTIONS] - before):
        d.cached[r] = 0
        r = d.next[r]


def release_read(
    p: Requests, d: Requests, t: Transfers, prefill: list[EngineRow], now: float
) -> None:
    """Free the blocks of requests that decode has made room for, or will not serve."""
    i = 0
    while i < t.ints[HELD]:
        r = t.held[i]
        if d.status[r] == WAITING and d.scheduled[r] < 0.0:
            i += 1
            continue
        t.ints[HELD] -= 1
        t.held[i] = t.held[t.ints[HELD]]
        row = prefill[p.engine[r]]
        row.ints[FREE_BLOCKS] += blocks_of(p.prompt[r])
        if row.floats[NEXT_CHANGE] == math.inf and row.ints[WAITING_COUNT] > 0:
            row.floats[CLOCK] = now
            row.floats[NEXT_CHANGE] = now
            rest_when_full(p, row)


def hand_over(
    p: Requests, d: Requests, t: Transfers, prefill: list[EngineRow], decode: list[EngineRow],
    serving: list[int], gateway: list[int],
) -> None:  # fmt: skip
    """End the next transfer: submit the request to a decode engine, which may have no room yet."""
    r = t.heap[0]
    remove_timer(t, r)
    now = t.wake[r]
    if d.status[r] != PENDING:  # lost with the engine that sent it
        return
    arrived = p.first_token[r] if t.ints[FIRST_AT_DECODE] == 1 else now
    enter_decode(d, decode, serving, gateway, r, arrived, now)
    t.held[t.ints[HELD]] = r
    t.ints[HELD] += 1
    if d.status[r] != WAITING:  # refused
        release_read(p, d, t, prefill, now)


def enter_decode(
    d: Requests, decode: list[EngineRow], serving: list[int], gateway: list[int], r: int,
    arrived: float, now: float,
) -> None:  # fmt: skip
    """Submit a request to a decode engine now; its engine measures from `arrived` on."""
    for place in serving:
        if decode[place].floats[NEXT_CHANGE] <= now:
            advance_decode(d, decode[place], now)
    engine = pick(d, decode, serving, gateway, now)
    d.arrival[r] = arrived
    if engine == NONE:
        d.status[r] = FAILED
        d.finish[r] = now
        return
    d.engine[r] = engine
    advance_decode(d, decode[engine], now)
    submit(d, decode[engine], r, now)


def arrive(
    p: Requests, d: Requests, t: Transfers, prefill: list[EngineRow], decode: list[EngineRow],
    taking: list[int], serving: list[int], gateway: list[int], decode_gateway: list[int],
) -> None:  # fmt: skip
    """Submit the trace's next request to the prefill pool, or a short one to the decode pool."""
    r = gateway[NEXT_ARRIVAL]
    gateway[NEXT_ARRIVAL] = r + 1
    now = p.arrival[r]
    if p.prompt[r] < t.ints[SKIP_PROMPT_TOKENS]:
        enter_decode(d, decode, serving, decode_gateway, r, now, now)
        return
    engine = pick(p, prefill, taking, gateway, now)
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
    """Advance both pools to this time.

    taking: prefill engines that take requests; computing: those and the draining ones; serving
    and decoding: the same for the decode pool. remaining: tokens of each request that the decode
    pool emits.
    Order at equal times: steps end, then caches arrive, then requests; steps begin last, those of
    decode before those of prefill. Decode engines are advanced by the way, but step by step while
    prefill keeps blocks for them.
    """
    while True:
        change, begins, place = math.inf, 0, NONE
        room, reader = math.inf, NONE
        if t.ints[HELD] > 0:
            for i in decoding:
                if decode[i].ints[WAITING_COUNT] > 0 and decode[i].floats[NEXT_CHANGE] < room:
                    room, reader = decode[i].floats[NEXT_CHANGE], i
        for i in computing:
            # The start of a step is after all other events of the same time.
            idle = 1 - prefill[i].ints[IN_STEP]
            next_change = prefill[i].floats[NEXT_CHANGE]
            if next_change < change or (next_change == change and idle < begins):
                change, begins, place = next_change, idle, i
        transfer = t.wake[t.heap[0]] if t.ints[TIMERS] > 0 else math.inf
        r = gateway[NEXT_ARRIVAL]
        arrival = p.arrival[r] if r < gateway[REQUESTS] else math.inf
        now = min(change, transfer, arrival, room)
        if now > until:
            break
        if change == now and begins == 0:
            end_prefill(p, t, prefill[place], remaining)
        elif transfer == now:
            hand_over(p, d, t, prefill, decode, serving, decode_gateway)
        elif arrival == now:
            arrive(p, d, t, prefill, decode, taking, serving, gateway, decode_gateway)
        elif now == until:
            break
        elif room == now:
            advance_decode(d, decode[reader], now)
            if decode[reader].ints[IN_STEP] == 0 and decode[reader].ints[WAITING_COUNT] > 0:
                begin_decode(d, decode[reader])
            release_read(p, d, t, prefill, now)
        else:
            schedule(p, prefill[place])
            rest_when_full(p, prefill[place])
    for i in computing:
        if prefill[i].floats[NEXT_CHANGE] == math.inf:  # an idle engine must not seem to be late
            prefill[i].floats[CLOCK] = max(prefill[i].floats[CLOCK], until)
    for i in decoding:
        advance_decode(d, decode[i], until)
    release_read(p, d, t, prefill, until)
