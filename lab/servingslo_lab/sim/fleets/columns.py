"""Create the tables of a run from its trace, and read its result from them."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from servingslo_lab.sim.fleets.fleet import ClientSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.replicas import clients, layout
from servingslo_lab.sim.replicas.backend import Backend, Column
from servingslo_lab.sim.replicas.clients import Clients
from servingslo_lab.sim.replicas.layout import Requests
from servingslo_lab.sim.traces.trace import Trace


def request_columns(trace: Trace, cached_ratio: float) -> dict[str, Column]:
    """One column for each field of `Requests`.

    cached_ratio: share of every prompt that the prefix cache serves.
    """
    prompts = np.maximum(trace.prompt_tokens, 1)
    cached = np.minimum((cached_ratio * prompts).astype(np.int64), prompts - 1)
    columns: dict[str, Column] = {
        "arrival": trace.arrival_seconds.astype(np.float64),
        "prompt": prompts.astype(np.int64),
        "output": np.maximum(trace.output_tokens, 1).astype(np.int64),
        "cached": cached // layout.PHASES * layout.PHASES,
    }
    if trace.priorities is not None:
        columns["priority"] = trace.priorities.astype(np.int64)
    zeros = ("generated", "target_tokens", "done_tokens", "base_tokens", "finish_step",
             "preemptions", "status", "priority")  # fmt: skip
    for name in Requests._fields:
        if name not in columns:
            value = 0 if name in zeros else layout.NONE
            floating = name in layout.FLOAT_COLUMNS
            column = np.full(len(trace), value)
            columns[name] = column.astype(np.float64) if floating else column
    return columns


def client_table(trace: Trace, spec: ClientSpec | None, backend: Backend) -> Clients | None:
    """The clients of a trace; None if none gives up, retries or belongs to a session."""
    if spec is None and trace.sessions is None:
        return None
    count = len(trace)
    none = np.full(count, layout.NONE)
    zero = np.zeros(count, dtype=np.int64)
    patient = spec or ClientSpec(retries=0)
    floats = [0.0] * clients.CLIENT_FLOAT_COUNT
    floats[clients.FIRST_TOKEN_TIMEOUT] = _or_never(patient.first_token_timeout_seconds)
    floats[clients.TIMEOUT] = _or_never(patient.timeout_seconds)
    floats[clients.BACKOFF] = patient.backoff_seconds
    floats[clients.LARGEST_BACKOFF] = patient.largest_backoff_seconds
    floats[clients.JITTER] = patient.jitter_ratio
    ints = [0] * clients.CLIENT_INTS
    ints[clients.RETRIES] = patient.retries
    columns: dict[str, Any] = {
        "attempts": zero,
        "wake": np.zeros(count),
        "place": none,
        "session": none if trace.sessions is None else trace.sessions,
        "shared": zero if trace.shared_tokens is None else trace.shared_tokens,
        "heap": none,
        "ints": np.array(ints, dtype=np.int64),
        "floats": np.array(floats),
    }
    return backend.clients(columns)


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def since_first_attempt(result: RunResult, trace: Trace, q: Requests, c: Clients) -> RunResult:
    """The result as clients see it: times count from the first attempt."""
    first = np.asarray(q.first_token, dtype=np.float64)
    arrival = trace.arrival_seconds
    waited = np.asarray(q.arrival, dtype=np.float64) - arrival
    return replace(
        result,
        arrival_seconds=arrival,
        ttft_seconds=np.where(first >= 0, first - arrival, np.inf),
        latency_seconds=result.latency_seconds + waited,
        attempts=np.asarray(c.attempts, dtype=np.int64),
    )
