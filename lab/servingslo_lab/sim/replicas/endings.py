"""How requests end, and vLLM's observations at their end.

Written for the compiler, like `kernel`.
"""

from servingslo_lab.sim.replicas.layout import (
    ABORTED,
    ABORTING,
    CLOCK,
    COMPUTED_LENGTH,
    DECODE_TIME,
    DONE_HEAD,
    E2E,
    FINISHED,
    INFERENCE,
    OUTPUT_LENGTH,
    PREFILL_TIME,
    PROMPT_LENGTH,
    QUEUE,
    REQUEST_PREEMPTIONS,
    SUCCESSES,
    TPOT,
    EngineRow,
    Requests,
)  # fmt: skip
from servingslo_lab.sim.replicas.runs import observe


def end_request(q: Requests, row: EngineRow, r: int, status: int, now: float) -> None:
    """Close a request that has left all queues, and add it to the list of ended ones."""
    q.status[r] = status
    q.finish[r] = now
    q.next[r] = row.ints[DONE_HEAD]
    row.ints[DONE_HEAD] = r


def succeed(q: Requests, row: EngineRow, r: int) -> None:
    """Close a request after its last token, with vLLM's observations."""
    if q.status[r] == ABORTING:  # its client left during this step
        end_request(q, row, r, ABORTED, row.floats[CLOCK])
        return
    now, arrival = row.floats[CLOCK], q.arrival[r]
    scheduled, first_token, output = q.scheduled[r], q.first_token[r], q.output[r]
    end_request(q, row, r, FINISHED, now)
    q.last_token[r] = now
    row.ints[SUCCESSES] += 1
    observe(row, E2E, now - arrival, 1)
    observe(row, QUEUE, scheduled - arrival, 1)
    observe(row, INFERENCE, now - scheduled, 1)
    observe(row, PREFILL_TIME, first_token - scheduled, 1)
    observe(row, DECODE_TIME, now - first_token, 1)
    observe(row, TPOT, (now - first_token) / (output - 1) if output > 1 else 0.0, 1)
    observe(row, PROMPT_LENGTH, float(q.prompt[r]), 1)
    observe(row, OUTPUT_LENGTH, float(output), 1)
    observe(row, COMPUTED_LENGTH, float(q.prompt[r] - q.cached[r]), 1)
    observe(row, REQUEST_PREEMPTIONS, float(q.preemptions[r]), 1)
