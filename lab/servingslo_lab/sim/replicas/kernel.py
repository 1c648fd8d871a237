"""One vLLM replica at step granularity: the scheduler, the KV blocks and the clock.

A step with n sequences that emit a token, p prefilled prompt tokens and k context tokens lasts
τ = a + b·n + c·p + d·k. Decoding sequences get their tokens first. Then prompts, in order of
arrival, get the rest of the token budget, the last one in part. When KV blocks run out, the latest
admitted sequence is preempted: it loses its blocks and is computed again later.

Consecutive steps in which only the context changes form a run, whose step ends have a closed form.
So the work grows with the number of arrivals, prefills and completions, not of tokens. Results do
not depend on how often `advance` is called. The functions here use only numeric Python that a
compiler understands; they work on both lists and arrays.

Source: vLLM 0.32 `v1/core/sched/scheduler.py` (order of scheduling, preemption of the latest),
`v1/metrics/stats.py` (observations and their times), queue limits of `--max-num-queued-reqs`.
Approximations: the scheduler and the network take no time; a prompt is admitted when all of it
fits in the free blocks; prompt tokens attend for free beyond the cost c.
"""

# ruff: noqa: I001 - one imported name a line would hide the code

import math

from servingslo_lab.sim.replicas.layout import (
    ABORTED,
    ABORTING,
    ABORT_HEAD,
    BASE_SECONDS,
    BUSY_SECONDS,
    CACHED_TOKENS,
    CACHE_HITS,
    CACHE_QUERIES,
    CLOCK,
    COMPUTED_TOKENS,
    CONTEXT,
    DECODING,
    DECODING_COUNT,
    DYNAMIC,
    FREE_BLOCKS,
    GENERATED_TOKENS,
    HEAP_SIZE,
    IN_STEP,
    ITERATION,
    ITL,
    KIND,
    LAW_FIXED,
    LAW_HIDDEN,
    LAW_LOADING,
    LAW_LOADING_TOKENS,
    LAW_PREFILL,
    LAW_SEQUENCE,
    MAX_SEQS,
    MAX_TOKENS,
    NEXT_CHANGE,
    NONE,
    PHASES,
    POLICY,
    PREEMPTIONS,
    PREFILLING,
    PREFILL_HEAD,
    PRIORITY,
    PROMPT_TOKENS,
    RUNNING,
    RUN_START,
    RUN_TAIL,
    SLOWNESS,
    STEPS,
    STEPS_DONE,
    STEPS_MAX,
    STEP_COUNTER,
    STEP_EMITTING,
    STEP_PREFILL,
    TABLE,
    TTFT,
    WAITING,
    WAITING_COUNT,
    WAIT_HEAD,
    EngineRow,
    Requests,
)  # fmt: skip
from servingslo_lab.sim.replicas.batches import advance_batches
from servingslo_lab.sim.replicas.endings import end_request, succeed
from servingslo_lab.sim.replicas.queues import (
    heap_push,
    heap_remove,
    least_urgent,
    run_append,
    run_remove,
    wait_insert,
    wait_push_front,
    wait_remove,
)  # fmt: skip
from servingslo_lab.sim.replicas.runs import observe, observe_gaps, step_end, steps_until
from servingslo_lab.sim.replicas.step_table import start_from_table


def blocks_of(tokens: int) -> int:
    """Number of KV blocks for this many tokens."""
    return (tokens + PHASES - 1) // PHASES


def new_blocks(row: EngineRow, steps: int) -> int:
    """Blocks that the decoding sequences take in the next steps."""
    counter = row.ints[STEP_COUNTER]
    blocks = (steps // PHASES) * row.ints[DECODING_COUNT]
    for step in range(counter + 1, counter + 1 + steps % PHASES):
        blocks += row.phases[step % PHASES]
    return blocks


def steps_in_memory(row: EngineRow, steps: int) -> int:
    """The number of next steps, at most `steps`, for which the free blocks are enough."""
    sequences = row.ints[DECODING_COUNT]
    free = row.ints[FREE_BLOCKS]
    if free >= sequences * (steps // PHASES + 1):
        return steps
    done = (free // sequences) * PHASES
    free -= (free // sequences) * sequences
    while done < steps:
        free -= row.phases[(row.ints[STEP_COUNTER] + done + 1) % PHASES]
        if free < 0:
            break
        done += 1
    return min(done, steps)


def complete(row: EngineRow, steps: int) -> None:
    """Update counters and blocks to this many steps of the current run."""
    ints = row.ints
    first = ints[STEPS_DONE]
    delta = steps - first
    ints[FREE_BLOCKS] -= new_blocks(row, delta)
    ints[STEP_COUNTER] += delta
    ints[STEPS_DONE] = steps
    sequences = ints[DECODING_COUNT]
    if sequences > 0:
        ints[GENERATED_TOKENS] += sequences * delta
        observe_gaps(row, first, steps)
    if ints[STEP_PREFILL] == 0:
        ints[STEPS] += delta
        observe(row, ITERATION, float(sequences), delta)


def leave(q: Requests, row: EngineRow, r: int) -> None:
    """Take a running request out of its batch and free its blocks."""
    ints = row.ints
    held = q.done_tokens[r]
    if q.heap_place[r] != NONE:
        held = q.base_tokens[r] + ints[STEP_COUNTER]
        q.generated[r] = q.output[r] - (q.finish_step[r] - ints[STEP_COUNTER])
        heap_remove(q, row, r)
        ints[DECODING_COUNT] -= 1
        ints[CONTEXT] -= held
        row.phases[(1 - q.base_tokens[r]) % PHASES] -= 1
    elif ints[PREFILL_HEAD] == r:
        ints[PREFILL_HEAD] = q.next[r]
    ints[FREE_BLOCKS] += blocks_of(held)
    ints[RUNNING] -= 1
    run_remove(q, row, r)


def emit_after_prefill(q: Requests, row: EngineRow, r: int) -> int:
    """Emit the token that ends a prefill; returns prompt tokens that count for this step."""
    ints, now = row.ints, row.floats[CLOCK]
    prompt = 0
    ints[GENERATED_TOKENS] += 1
    if q.first_token[r] < 0.0:
        prompt = q.prompt[r]
        q.first_token[r] = now
        observe(row, TTFT, now - q.arrival[r], 1)
        ints[PROMPT_TOKENS] += prompt
        ints[CACHED_TOKENS] += q.cached[r]
    else:
        observe(row, ITL, now - q.last_token[r], 1)
    q.last_token[r] = now
    q.generated[r] += 1
    if q.generated[r] == q.output[r]:
        leave(q, row, r)
        succeed(q, row, r)
        return prompt
    counter = ints[STEP_COUNTER]
    q.base_tokens[r] = q.target_tokens[r] - counter
    q.finish_step[r] = counter + q.output[r] - q.generated[r]
    row.phases[(1 - q.base_tokens[r]) % PHASES] += 1
    ints[DECODING_COUNT] += 1
    ints[CONTEXT] += q.target_tokens[r]
    heap_push(q, row, r)
    if q.status[r] != ABORTING:
        q.status[r] = DECODING
    return prompt


def end_run(q: Requests, row: EngineRow) -> None:
    """Close a run whose steps are all done: first tokens, then completions."""
    ints, floats = row.ints, row.floats
    floats[CLOCK] = step_end(row, ints[STEPS_MAX])
    floats[BUSY_SECONDS] += floats[CLOCK] - floats[RUN_START]
    ints[CONTEXT] += ints[DECODING_COUNT] * ints[STEPS_MAX]
    ints[IN_STEP] = 0
    floats[NEXT_CHANGE] = floats[CLOCK]
    if ints[STEP_PREFILL] > 0:
        prompts = 0
        r = ints[PREFILL_HEAD]
        while r != NONE and q.done_tokens[r] == q.target_tokens[r]:
            following = q.next[r]
            ints[PREFILL_HEAD] = following
            prompts += emit_after_prefill(q, row, r)
            r = following
        if ints[STEP_EMITTING] > 0:  # vLLM's front end does not observe steps without an output
            ints[STEPS] += 1
            observe(row, ITERATION, float(ints[STEP_EMITTING] + prompts), 1)
    while ints[HEAP_SIZE] > 0 and q.finish_step[row.heap[0]] == ints[STEP_COUNTER]:
        r = row.heap[0]
        leave(q, row, r)
        succeed(q, row, r)
    if ints[RUNNING] + ints[WAITING_COUNT] == 0:
        floats[NEXT_CHANGE] = math.inf


def preempt(q: Requests, row: EngineRow) -> None:
    """Move the latest admitted or least urgent request back to the queue; it starts again."""
    by_priority = row.ints[POLICY] == PRIORITY
    r = least_urgent(q, row) if by_priority else row.ints[RUN_TAIL]
    if q.heap_place[r] != NONE:
        q.last_token[r] = row.floats[CLOCK]
    leave(q, row, r)
    q.status[r] = WAITING
    q.preemptions[r] += 1
    row.ints[PREEMPTIONS] += 1
    row.ints[WAITING_COUNT] += 1
    if by_priority:
        wait_insert(q, row, r)
    else:
        wait_push_front(q, row, r)


def drop_aborted(q: Requests, row: EngineRow) -> None:
    """Remove running requests whose clients have left."""
    r = row.ints[ABORT_HEAD]
    row.ints[ABORT_HEAD] = NONE
    while r != NONE:
        following = q.abort_next[r]
        if q.status[r] == ABORTING:
            leave(q, row, r)
            end_request(q, row, r, ABORTED, row.floats[CLOCK])
        r = following


def continue_prefill(q: Requests, row: EngineRow, budget: int, free: int) -> int:
    """Tokens that the partly prefilled request gets in this step; 0 if it was preempted."""
    r = row.ints[PREFILL_HEAD]
    done = q.done_tokens[r]
    chunk = min(q.target_tokens[r] - done, budget)
    blocks = blocks_of(done + chunk) - blocks_of(done)
    if blocks > free:
        preempt(q, row)
        return 0
    row.ints[FREE_BLOCKS] -= blocks
    q.done_tokens[r] = done + chunk
    return chunk


def make_room(q: Requests, row: EngineRow) -> None:
    """Preempt the least urgent requests until the partly prefilled one can continue."""
    ints = row.ints
    while ints[PREFILL_HEAD] != NONE:
        r = ints[PREFILL_HEAD]
        done = q.done_tokens[r]
        chunk = min(q.target_tokens[r] - done, ints[MAX_TOKENS] - ints[DECODING_COUNT])
        blocks = blocks_of(done + chunk) - blocks_of(done)
        if blocks + new_blocks(row, 1) <= ints[FREE_BLOCKS]:
            return
        preempt(q, row)


def admit(q: Requests, row: EngineRow, budget: int) -> int:
    """Move the head of the queue into the batch; returns the prompt tokens it prefills now."""
    ints = row.ints
    r = ints[WAIT_HEAD]
    wait_remove(q, row, r)
    ints[WAITING_COUNT] -= 1
    ints[RUNNING] += 1
    run_append(q, row, r)
    if ints[PREFILL_HEAD] == NONE:
        ints[PREFILL_HEAD] = r
    if q.scheduled[r] < 0.0:
        q.scheduled[r] = row.floats[CLOCK]
        ints[CACHE_QUERIES] += q.prompt[r]
        ints[CACHE_HITS] += q.cached[r]
    q.status[r] = PREFILLING
    q.target_tokens[r] = q.prompt[r] + q.generated[r]
    chunk = min(q.target_tokens[r] - q.cached[r], budget)
    q.done_tokens[r] = q.cached[r] + chunk
    ints[FREE_BLOCKS] -= blocks_of(q.done_tokens[r])
    return chunk


def schedule(q: Requests, row: EngineRow) -> None:
    """Compose the next step and start its run at the engine's clock."""
    ints = row.ints
    drop_aborted(q, row)
    preempted = ints[PREEMPTIONS]
    while new_blocks(row, 1) > ints[FREE_BLOCKS]:
        preempt(q, row)
    if ints[POLICY] == PRIORITY:
        make_room(q, row)
    reserved = new_blocks(row, 1)
    budget = ints[MAX_TOKENS] - ints[DECODING_COUNT]
    prefill = 0
    emitting = ints[DECODING_COUNT]
    if ints[PREFILL_HEAD] != NONE:
        prefill = continue_prefill(q, row, budget, ints[FREE_BLOCKS] - reserved)
        r = ints[PREFILL_HEAD]
        if r != NONE and q.done_tokens[r] == q.target_tokens[r]:
            emitting += 1
    preempted = ints[PREEMPTIONS] - preempted
    blocked = False
    while preempted == 0 and ints[WAITING_COUNT] > 0 and prefill < budget:
        r = ints[WAIT_HEAD]
        tokens = q.prompt[r] + q.generated[r]
        free = ints[FREE_BLOCKS] - reserved
        blocked = ints[RUNNING] == ints[MAX_SEQS] or blocks_of(tokens) > free
        if blocked:
            break
        prefill += admit(q, row, budget - prefill)
        if q.done_tokens[r] == q.target_tokens[r]:
            emitting += 1
    start_run(q, row, prefill, emitting, blocked or ints[WAITING_COUNT] == 0)


def start_run(q: Requests, row: EngineRow, prefill: int, emitting: int, lasting: bool) -> None:
    """Begin a run: one step with prefill, else all steps until the next possible change."""
    ints, floats = row.ints, row.floats
    if ints[RUNNING] == 0:
        floats[NEXT_CHANGE] = floats[CLOCK] if ints[WAITING_COUNT] > 0 else math.inf
        return
    floats[RUN_START] = floats[CLOCK]
    computed = max(prefill - max(floats[LAW_HIDDEN] - emitting, 0.0), 0.0)
    seconds = floats[LAW_FIXED] + floats[LAW_SEQUENCE] * emitting + floats[LAW_PREFILL] * computed
    if floats[LAW_LOADING_TOKENS] > 0.0:
        tokens = emitting + prefill
        seconds -= floats[LAW_LOADING] * math.expm1(-tokens / floats[LAW_LOADING_TOKENS])
    floats[BASE_SECONDS] = floats[SLOWNESS] * seconds
    if ints[TABLE] > 0:
        start_from_table(row, prefill)
    ints[IN_STEP] = 1
    ints[STEPS_DONE] = 0
    ints[STEP_PREFILL] = prefill
    ints[STEP_EMITTING] = emitting
    ints[STEPS_MAX] = 1
    ints[COMPUTED_TOKENS] += prefill
    if prefill == 0 and lasting:
        to_finish = q.finish_step[row.heap[0]] - ints[STEP_COUNTER]
        ints[STEPS_MAX] = steps_in_memory(row, to_finish)
    floats[NEXT_CHANGE] = step_end(row, ints[STEPS_MAX])


def advance(q: Requests, row: EngineRow, until: float) -> None:
    """Complete all steps that end by `until`; a step at `until` itself is not started yet."""
    ints, floats = row.ints, row.floats
    if ints[KIND] == DYNAMIC:
        advance_batches(q, row, until)
        return
    while True:
        if ints[IN_STEP] == 0:
            if ints[RUNNING] + ints[WAITING_COUNT] == 0 or floats[CLOCK] >= until:
                return
            schedule(q, row)
            continue
        if floats[NEXT_CHANGE] > until:
            steps = steps_until(row, until)
            if steps > ints[STEPS_DONE]:
                complete(row, steps)
            return
        if ints[STEPS_MAX] > ints[STEPS_DONE]:
            complete(row, ints[STEPS_MAX])
        end_run(q, row)
