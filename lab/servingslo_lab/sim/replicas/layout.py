"""The memory of simulated engines: plain columns, as lists in Python or as arrays when compiled.

The kernel works on flat columns, so that the same source runs interpreted and compiled with equal
results. A request is an index into the columns of `Requests`; an engine is an `EngineRow`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw

NONE = -1
"""The index that means no request."""

# Status of a request.
PENDING, WAITING, PREFILLING, DECODING, ABORTING = 0, 1, 2, 3, 4
FINISHED, REJECTED, ABORTED, FAILED, INVALID = 5, 6, 7, 8, 9

PHASES = 16
"""KV block size of vLLM in tokens; a sequence needs a new block after this many steps."""

UNBOUNDED = 1 << 60
"""A count that is never reached."""
_NO_MEMORY_LIMIT = 1 << 40
"""In blocks; their tokens still fit an integer of the compiler."""


class Requests(NamedTuple):
    """One entry for each request.

    Times in seconds on the simulation's clock; -1 while unknown. `base_tokens` plus the engine's
    step counter is the number of tokens of a decoding request. `target_tokens` is the goal of the
    current prefill, `done_tokens` its progress. `next`, `previous` and `heap_place` link a request
    into its engine's queues. Lower priorities go first, if the engine uses priorities.
    """

    arrival: list[float]
    prompt: list[int]
    output: list[int]
    cached: list[int]
    status: list[int]
    engine: list[int]
    generated: list[int]
    target_tokens: list[int]
    done_tokens: list[int]
    base_tokens: list[int]
    finish_step: list[int]
    preemptions: list[int]
    scheduled: list[float]
    first_token: list[float]
    last_token: list[float]
    finish: list[float]
    next: list[int]
    previous: list[int]
    heap_place: list[int]
    abort_next: list[int]
    priority: list[int]


FLOAT_COLUMNS = frozenset({"arrival", "scheduled", "first_token", "last_token", "finish"})
"""The columns of `Requests` with times; the others have integers."""

# Integers of an engine.
MAX_SEQS, MAX_TOKENS, BLOCKS, QUEUE_BOUND, FREE_BLOCKS = 0, 1, 2, 3, 4
DECODING_COUNT, RUNNING, WAITING_COUNT = 5, 6, 7
WAIT_HEAD, WAIT_TAIL, RUN_TAIL, PREFILL_HEAD, ABORT_HEAD, DONE_HEAD = 8, 9, 10, 11, 12, 13
STEP_COUNTER, HEAP_SIZE, CONTEXT = 14, 15, 16
IN_STEP, STEPS_DONE, STEPS_MAX, STEP_PREFILL, STEP_EMITTING = 17, 18, 19, 20, 21
PROMPT_TOKENS, CACHED_TOKENS, GENERATED_TOKENS = 22, 23, 24
CACHE_QUERIES, CACHE_HITS = 25, 26
SUCCESSES, REJECTIONS, PREEMPTIONS, ABORTS, COMPUTED_TOKENS, STEPS = 27, 28, 29, 30, 31, 32
RUN_HEAD, POLICY, TOUCHED_TOKENS, KIND, INSTANCES = 33, 34, 35, 36, 37
WAITING_BOUND, TABLE = 38, 39
INTS = 40

# Kinds of engine.
CONTINUOUS, DYNAMIC = 0, 1

# Queue orders of an engine.
FCFS, PRIORITY = 0, 1

# Floats of an engine.
LAW_FIXED, LAW_SEQUENCE, LAW_PREFILL, LAW_CONTEXT = 0, 1, 2, 3
CLOCK, RUN_START, BASE_SECONDS, NEXT_CHANGE, BUSY_SECONDS, SLOWNESS = 4, 5, 6, 7, 8, 9
QUEUE_DELAY, LAW_LOADING, LAW_LOADING_TOKENS, LAW_HIDDEN = 10, 11, 12, 13
FLOATS = 14
"""Followed by the end of the batch on each instance, for dynamic batches, or by a step table."""

# Histograms of an engine, in the order of EDGES.
TTFT, ITL, TPOT, E2E, QUEUE, INFERENCE, PREFILL_TIME, DECODE_TIME = 0, 1, 2, 3, 4, 5, 6, 7
PROMPT_LENGTH, OUTPUT_LENGTH, ITERATION, COMPUTED_LENGTH, REQUEST_PREEMPTIONS = 8, 9, 10, 11, 12
HISTOGRAMS = 13

_TTFT_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_TIME_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_TIME_EDGES = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_ITERATION_EDGES = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)  # fmt: skip
_PREEMPTION_EDGES = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def length_edges(max_model_len: int) -> tuple[float, ...]:
    """Bucket edges of token-count histograms: 1, 2, 5, 10, … up to the model's length.

    Source: vLLM 0.32 `build_1_2_5_buckets`, which ends at the last edge ≤ max_model_len.
    """
    edges: list[float] = []
    scale = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * scale > max_model_len:
                return tuple(edges)
            edges.append(float(mantissa * scale))
        scale *= 10


def histogram_edges(max_model_len: int) -> tuple[tuple[float, ...], ...]:
    """Bucket edges of all histograms, in the order of their constants; seconds or tokens.

    Source: the metrics page of vLLM 0.32.0 (tests/golden/data/vllm_0.32.0_metrics.txt).
    """
    lengths = length_edges(max_model_len)
    return (
        _TTFT_EDGES, _TOKEN_TIME_EDGES, _TOKEN_TIME_EDGES, _REQUEST_TIME_EDGES,
        _REQUEST_TIME_EDGES, _REQUEST_TIME_EDGES, _REQUEST_TIME_EDGES, _REQUEST_TIME_EDGES,
        lengths, lengths, _ITERATION_EDGES, lengths, _PREEMPTION_EDGES,
    )  # fmt: skip


class EngineRow(NamedTuple):
    """The state of one engine: integers, floats, block phases, finish heap and histograms.

    edges and counts contain all histograms one after the other. Histogram h is at offsets[h] to
    offsets[h + 1] of edges and, with its overflow bucket, at offsets[h] + h of counts. seen: for
    each session, the tokens that the engine had touched at the session's last request, plus one; 0
    for never.
    """

    ints: list[int]
    floats: list[float]
    phases: list[int]
    heap: list[int]
    edges: list[float]
    offsets: list[int]
    counts: list[int]
    sums: list[float]
    seen: list[int]


FLOAT_PARTS = frozenset({"floats", "edges", "sums"})
"""The parts of `EngineRow` that are not integers."""


def new_requests() -> Requests:
    """An empty table of requests."""
    return Requests(*([] for _ in Requests._fields))


def add_request(table: Requests, arrival: float, prompt: int, output: int) -> int:
    """The index of a new request; arrival in seconds, lengths in tokens."""
    index = len(table.arrival)
    for column in table:
        column.append(NONE)
    reset_request(table, index, arrival, prompt, output)
    return index


def reset_request(table: Requests, index: int, arrival: float, prompt: int, output: int) -> None:
    """Turn an entry into a new request; it may be the entry of an ended one."""
    table.arrival[index], table.prompt[index], table.output[index] = arrival, prompt, output
    table.cached[index] = table.priority[index] = 0
    begin_again(table, index)


def begin_again(table: Requests, index: int) -> None:
    """Reset the state of a request that is in no queue."""
    table.generated[index] = 0
    table.preemptions[index] = 0
    table.status[index] = PENDING
    table.engine[index] = NONE
    table.heap_place[index] = NONE
    table.scheduled[index] = -1.0
    table.first_token[index] = -1.0
    table.last_token[index] = -1.0
    table.finish[index] = -1.0


def new_engine(
    law: ServiceLaw,
    limits: EngineLimits,
    *,
    max_queued: int | None = None,
    max_waiting: int | None = None,
    max_model_len: int = 131072,
    policy: int = FCFS,
    session_count: int = 0,
) -> EngineRow:
    """An idle engine with this service law and these limits.

    max_queued: bound on running + waiting requests, max_waiting: on waiting ones, None for none.
    session_count: number of sessions whose prefix it can cache.
    Raises: InvalidInputError for limits that vLLM refuses at start-up.
    """
    if not 1 <= limits.max_num_seqs <= limits.max_num_batched_tokens:
        raise InvalidInputError(
            "max_num_seqs",
            limits.max_num_seqs,
            f"1 to {limits.max_num_batched_tokens} (max_num_batched_tokens)",
        )
    if limits.kv_block_tokens != PHASES:
        raise InvalidInputError("kv_block_tokens", limits.kv_block_tokens, str(PHASES))
    blocks = int(limits.kv_capacity_tokens // PHASES) - 1  # vLLM keeps one null block
    if blocks < 1:
        raise InvalidInputError("kv_capacity_tokens", limits.kv_capacity_tokens, "at least 32")
    ints = [0] * INTS
    ints[MAX_SEQS], ints[MAX_TOKENS] = limits.max_num_seqs, limits.max_num_batched_tokens
    ints[BLOCKS] = ints[FREE_BLOCKS] = blocks
    ints[POLICY] = policy
    ints[QUEUE_BOUND] = UNBOUNDED if max_queued is None else max_queued
    ints[WAITING_BOUND] = UNBOUNDED if max_waiting is None else max_waiting
    for place in (WAIT_HEAD, WAIT_TAIL, RUN_HEAD, RUN_TAIL, PREFILL_HEAD, ABORT_HEAD, DONE_HEAD):
        ints[place] = NONE
    floats = [0.0] * FLOATS
    floats[LAW_FIXED] = law.step_fixed_seconds
    floats[LAW_SEQUENCE] = law.step_per_sequence_seconds
    floats[LAW_PREFILL] = law.prefill_per_token_seconds
    floats[LAW_CONTEXT] = law.context_per_token_seconds
    floats[LAW_LOADING], floats[LAW_LOADING_TOKENS] = law.loading_seconds, law.loading_tokens
    floats[LAW_HIDDEN] = law.hidden_tokens
    floats[NEXT_CHANGE] = float("inf")
    floats[SLOWNESS] = 1.0
    edges = histogram_edges(max_model_len)
    offsets = [0]
    for one in edges:
        offsets.append(offsets[-1] + len(one))
    return EngineRow(
        ints=ints, floats=floats, phases=[0] * PHASES, heap=[NONE] * limits.max_num_seqs,
        edges=[edge for one in edges for edge in one], offsets=offsets,
        counts=[0] * (offsets[-1] + HISTOGRAMS), sums=[0.0] * HISTOGRAMS,
        seen=[0] * session_count,
    )  # fmt: skip


def follow_table(row: EngineRow, numbers: Sequence[float]) -> None:
    """Let a new engine take its step times from a table, see `step_table`."""
    row.ints[TABLE] = len(row.floats)
    row.floats.extend(numbers)


def make_dynamic(row: EngineRow, instances: int, queue_delay_seconds: float) -> None:
    """Turn a new engine into a server of dynamic batches of up to max_num_seqs requests each."""
    row.ints[KIND], row.ints[INSTANCES] = DYNAMIC, instances
    row.ints[BLOCKS] = row.ints[FREE_BLOCKS] = _NO_MEMORY_LIMIT
    row.floats[QUEUE_DELAY] = queue_delay_seconds
    row.floats.extend([float("inf")] * instances)
