"""One server of dynamic batches, like Triton: requests wait, form a batch, run once, end together.

A batch of n inputs with p prompt tokens in all takes a + b·n + c·p on one of the instances. It
starts when an instance is free and either the batch is full or the head of the queue has waited for
the queue delay. Its size is the number of waiting requests, up to max_num_seqs. A running batch is
never interrupted: a request whose client has left ends with it.

Source: Triton Inference Server, user guide, "Batchers" (dynamic batcher, delayed batching, instance
groups). Approximations: one priority level besides the queue's own order, no preferred sizes.
Written for the compiler, like `kernel`.
"""

# ruff: noqa: I001 - one imported name a line would hide the code

import math

from servingslo_lab.sim.replicas.endings import succeed
from servingslo_lab.sim.replicas.layout import (
    ABORTING,
    BUSY_SECONDS,
    CLOCK,
    COMPUTED_TOKENS,
    DECODING,
    FLOATS,
    INSTANCES,
    LAW_FIXED,
    LAW_PREFILL,
    LAW_SEQUENCE,
    MAX_SEQS,
    NEXT_CHANGE,
    NONE,
    PROMPT_TOKENS,
    QUEUE_DELAY,
    RUNNING,
    RUN_HEAD,
    SLOWNESS,
    STEPS,
    WAITING_COUNT,
    WAIT_HEAD,
    EngineRow,
    Requests,
)  # fmt: skip
from servingslo_lab.sim.replicas.queues import run_append, run_remove, wait_remove


def batch_end(row: EngineRow, instance: int) -> float:
    """End time of the batch on an instance, in seconds; infinite while it is free."""
    return row.floats[FLOATS + instance]


def free_instance(row: EngineRow) -> int:
    """An idle instance; NONE if all are busy."""
    for instance in range(row.ints[INSTANCES]):
        if row.floats[FLOATS + instance] == math.inf:
            return instance
    return NONE


def due(q: Requests, row: EngineRow) -> float:
    """When the next batch may begin: at once if it is full, else after the queue delay."""
    if row.ints[WAITING_COUNT] == 0 or free_instance(row) == NONE:
        return math.inf
    if row.ints[WAITING_COUNT] >= row.ints[MAX_SEQS]:
        return row.floats[CLOCK]
    waits_since = q.arrival[row.ints[WAIT_HEAD]]
    return max(row.floats[CLOCK], waits_since + row.floats[QUEUE_DELAY])


def begin_batch(q: Requests, row: EngineRow) -> None:
    """Start the waiting requests, up to the batch limit, on a free instance."""
    ints, floats = row.ints, row.floats
    instance = free_instance(row)
    size = min(ints[WAITING_COUNT], ints[MAX_SEQS])
    tokens = 0
    for _ in range(size):
        r = ints[WAIT_HEAD]
        wait_remove(q, row, r)
        run_append(q, row, r)
        tokens += q.prompt[r]
        q.status[r] = DECODING
        q.scheduled[r] = floats[CLOCK]
        q.finish_step[r] = instance
    ints[WAITING_COUNT] -= size
    ints[RUNNING] += size
    ints[COMPUTED_TOKENS] += tokens
    ints[STEPS] += 1
    seconds = floats[SLOWNESS] * (
        floats[LAW_FIXED] + floats[LAW_SEQUENCE] * size + floats[LAW_PREFILL] * tokens
    )
    floats[BUSY_SECONDS] += seconds
    floats[FLOATS + instance] = floats[CLOCK] + seconds


def end_batch(q: Requests, row: EngineRow, instance: int) -> None:
    """End the requests of the batch on an instance, at the engine's clock."""
    ints = row.ints
    row.floats[FLOATS + instance] = math.inf
    r = ints[RUN_HEAD]
    while r != NONE:
        following = q.next[r]
        if q.finish_step[r] == instance:
            run_remove(q, row, r)
            ints[RUNNING] -= 1
            if q.status[r] != ABORTING:
                q.first_token[r] = row.floats[CLOCK]
                q.generated[r] = q.output[r]
                ints[PROMPT_TOKENS] += q.prompt[r]
            succeed(q, row, r)
        r = following


def plan_batches(q: Requests, row: EngineRow) -> None:
    """Set the time of the engine's next change: a batch ends, or may begin."""
    change = due(q, row)
    for instance in range(row.ints[INSTANCES]):
        change = min(change, row.floats[FLOATS + instance])
    row.floats[NEXT_CHANGE] = change


def advance_batches(q: Requests, row: EngineRow, until: float) -> None:
    """End all batches that end by `until`, begin those that may begin before it."""
    floats = row.floats
    while floats[NEXT_CHANGE] <= until:
        now = max(floats[CLOCK], floats[NEXT_CHANGE])
        floats[CLOCK] = now
        for instance in range(row.ints[INSTANCES]):
            if floats[FLOATS + instance] <= now:
                end_batch(q, row, instance)
        if due(q, row) <= now:
            if now == until:  # others may still arrive at this moment
                floats[NEXT_CHANGE] = now
                return
            begin_batch(q, row)
        plan_batches(q, row)
