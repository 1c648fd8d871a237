"""Events of an engine from outside its steps: new requests, leaving clients, its failure.

Written for the compiler, like `kernel`.
"""

# ruff: noqa: I001 - one imported name a line would hide the code

import math

from servingslo_lab.sim.replicas.batches import plan_batches
from servingslo_lab.sim.replicas.endings import end_request
from servingslo_lab.sim.replicas.kernel import blocks_of
from servingslo_lab.sim.replicas.layout import (
    ABORTED,
    ABORTING,
    ABORTS,
    ABORT_HEAD,
    BLOCKS,
    CLOCK,
    CONTEXT,
    DECODING,
    DECODING_COUNT,
    DYNAMIC,
    FAILED,
    FLOATS,
    FREE_BLOCKS,
    HEAP_SIZE,
    INSTANCES,
    INVALID,
    IN_STEP,
    KIND,
    MAX_SEQS,
    NEXT_CHANGE,
    NONE,
    PHASES,
    POLICY,
    PREFILLING,
    PREFILL_HEAD,
    PRIORITY,
    QUEUE_BOUND,
    REJECTED,
    REJECTIONS,
    RUNNING,
    RUN_HEAD,
    RUN_TAIL,
    STEPS_DONE,
    STEPS_MAX,
    WAITING,
    WAITING_BOUND,
    WAITING_COUNT,
    WAIT_HEAD,
    WAIT_TAIL,
    EngineRow,
    Requests,
)  # fmt: skip
from servingslo_lab.sim.replicas.queues import wait_append, wait_insert, wait_remove
from servingslo_lab.sim.replicas.runs import step_end


def submit(q: Requests, row: EngineRow, r: int, now: float) -> bool:
    """Queue a request that arrives now; False if a bound or the memory refuses it.

    The engine must have been advanced to `now`.
    """
    ints, floats = row.ints, row.floats
    in_system = ints[RUNNING] + ints[WAITING_COUNT]
    if blocks_of(q.prompt[r] + q.output[r]) > ints[BLOCKS]:
        q.status[r] = INVALID
        q.finish[r] = now
        return False
    if in_system >= ints[QUEUE_BOUND] or ints[WAITING_COUNT] >= ints[WAITING_BOUND]:
        ints[REJECTIONS] += 1
        q.status[r] = REJECTED
        q.finish[r] = now
        return False
    q.status[r] = WAITING
    if ints[POLICY] == PRIORITY:
        wait_insert(q, row, r)
    else:
        wait_append(q, row, r)
    ints[WAITING_COUNT] += 1
    if ints[KIND] == DYNAMIC:
        floats[CLOCK] = max(floats[CLOCK], now)
        plan_batches(q, row)
    elif ints[IN_STEP] == 0:
        if in_system == 0:
            floats[CLOCK] = now
        floats[NEXT_CHANGE] = floats[CLOCK]
    elif ints[WAIT_HEAD] == r and ints[RUNNING] < ints[MAX_SEQS]:
        cut_run(row)
    return True


def cut_run(row: EngineRow) -> None:
    """End the run in progress with its current step, because the batch may change then."""
    ints = row.ints
    ints[STEPS_MAX] = min(ints[STEPS_MAX], ints[STEPS_DONE] + 1)
    row.floats[NEXT_CHANGE] = step_end(row, ints[STEPS_MAX])


def abort(q: Requests, row: EngineRow, r: int, now: float) -> None:
    """Abort a request: a waiting one leaves now, a running one after the step."""
    ints = row.ints
    if q.status[r] == WAITING:
        if ints[WAIT_HEAD] == r and ints[IN_STEP] == 1:
            cut_run(row)  # the next one may fit although this one did not
        wait_remove(q, row, r)
        ints[WAITING_COUNT] -= 1
        ints[ABORTS] += 1
        end_request(q, row, r, ABORTED, now)
        if ints[KIND] == DYNAMIC:
            plan_batches(q, row)
        elif ints[IN_STEP] == 0 and ints[RUNNING] + ints[WAITING_COUNT] == 0:
            row.floats[NEXT_CHANGE] = math.inf
    elif q.status[r] == PREFILLING or q.status[r] == DECODING:
        ints[ABORTS] += 1
        q.status[r] = ABORTING
        if ints[KIND] == DYNAMIC:  # a running batch is never interrupted
            return
        q.abort_next[r] = ints[ABORT_HEAD]
        ints[ABORT_HEAD] = r
        if ints[IN_STEP] == 1:
            cut_run(row)


def lose(q: Requests, row: EngineRow, now: float) -> None:
    """Fail the engine: all its requests fail, except those whose clients had already left."""
    ints = row.ints
    for head in (RUN_HEAD, WAIT_HEAD):
        r = ints[head]
        ints[head] = NONE
        while r != NONE:
            q.status[r] = ABORTED if q.status[r] == ABORTING else FAILED
            q.finish[r] = now
            q.heap_place[r] = NONE
            r = q.next[r]
    for place in (RUN_TAIL, WAIT_TAIL, PREFILL_HEAD, ABORT_HEAD):
        ints[place] = NONE
    for place in (RUNNING, WAITING_COUNT, DECODING_COUNT, HEAP_SIZE, CONTEXT, IN_STEP):
        ints[place] = 0
    for phase in range(PHASES):
        row.phases[phase] = 0
    ints[FREE_BLOCKS] = ints[BLOCKS]
    for instance in range(ints[INSTANCES]):
        row.floats[FLOATS + instance] = math.inf
    row.floats[NEXT_CHANGE] = math.inf
