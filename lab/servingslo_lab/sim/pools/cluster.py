"""A prefill and a decode pool on one virtual clock, and the way into all kinds of pools."""

from dataclasses import replace

import numpy as np

from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.pools import flow
from servingslo_lab.sim.pools.backend import flow_of, transfer_table
from servingslo_lab.sim.pools.fleet import AnyPools, FirstToken, PoolsSpec
from servingslo_lab.sim.pools.scaling import FleetAutoscaler
from servingslo_lab.sim.pools.together import (
    POOL_SEED,
    Pool,
    PoolsResult,
    Together,
    check_trace,
    run_together,
)
from servingslo_lab.sim.pools.variants import Variants
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.backend import Backend, Column, best_backend
from servingslo_lab.sim.replicas.timers import TIMERS
from servingslo_lab.sim.traces.trace import Trace


class Pools(Together):
    """A prefill and a decode pool with their requests; use `simulate_pools`."""

    def __init__(self, spec: PoolsSpec, trace: Trace, seed: int, backend: Backend) -> None:
        check_trace(trace)
        super().__init__(spec.gpu_quota)
        self._trace = trace
        prompts, outputs = (
            np.maximum(tokens, 1).astype(np.int64)
            for tokens in (trace.prompt_tokens, trace.output_tokens)
        )
        self._skips = prompts < spec.skip_prompt_tokens
        self._at_decode = self._skips | (spec.first_token is FirstToken.DECODE)
        first = replace(trace, output_tokens=np.ones_like(outputs))
        rest = replace(
            trace,
            prompt_tokens=np.where(self._at_decode, prompts, prompts + 1),
            output_tokens=np.where(self._at_decode, outputs, np.maximum(outputs - 1, 1)),
        )
        self.prefill = Pool(spec.prefill, first, seed, backend, self)
        self.decode = Pool(spec.decode, rest, seed + POOL_SEED, backend, self)
        self.pools = dict(zip(spec.names, (self.prefill, self.decode), strict=True))
        cached = np.where(self._at_decode, prompts - 1, prompts)
        for r, tokens in enumerate(np.where(self._skips, 0, cached).tolist()):
            self.decode.requests.cached[r] = tokens
        self._remaining = np.where(self._at_decode, outputs, outputs - 1)
        self._left = backend.integers(self._remaining.tolist())
        self.transfers = transfer_table(_columns(spec, len(trace)), backend)
        self._integers = backend.integers
        self._flow = flow_of(backend)

    def serve(self, until: float) -> None:
        """Advance the engines of both pools to this time."""
        one, other, integers = self.prefill, self.decode, self._integers
        self._flow(
            one.requests, other.requests, self.transfers, one.rows, other.rows, self._left,
            integers(one.serving), integers(one.computing), integers(other.serving),
            integers(other.computing), one.gateway, other.gateway, until,
        )  # fmt: skip

    def lost(self, pool: Pool, place: int) -> None:
        """Lose the transfers of a failed prefill engine; decode computes unread caches anew."""
        if pool is not self.prefill:
            return
        transfers, decode = self.transfers, self.decode.requests
        for r in transfers.heap[: transfers.ints[TIMERS]]:
            if pool.requests.engine[r] == place:
                decode.status[r] = layout.FAILED
                decode.finish[r] = pool.now
        for r in transfers.held[: transfers.ints[flow.HELD]]:
            if pool.requests.engine[r] == place:
                decode.cached[r] = 0

    def result(self, replica_seconds: float) -> RunResult:
        """The requests as clients see them: a first token from the pool that emits it to them."""
        one, other = self.prefill.requests, self.decode.requests
        arrival = self._trace.arrival_seconds.astype(np.float64)
        prefilled = np.asarray(one.status, dtype=np.int64)
        first = np.where(
            self._at_decode,
            np.asarray(other.first_token, dtype=np.float64),
            np.asarray(one.first_token, dtype=np.float64),
        )
        decodes = self._skips | ((self._remaining > 0) & (prefilled == layout.FINISHED))
        status = np.where(decodes, np.asarray(other.status, dtype=np.int64), prefilled)
        finish = np.where(decodes, np.asarray(other.finish, dtype=np.float64), first)
        output = np.maximum(self._trace.output_tokens, 1).astype(np.float64)
        finished = status == layout.FINISHED
        return RunResult(
            duration_seconds=self._trace.duration_seconds,
            replica_seconds=replica_seconds,
            arrival_seconds=arrival,
            ttft_seconds=np.where(first >= 0, first - arrival, np.inf),
            tpot_seconds=np.where(finished, (finish - first) / np.maximum(output - 1, 1), np.inf),
            latency_seconds=np.where(finished, finish - arrival, np.inf),
            status=status,
            output_tokens=output,
            ticks=(),
        )


def simulate_pools(
    spec: AnyPools,
    trace: Trace,
    scaler: FleetAutoscaler,
    *,
    seed: int,
    backend: Backend | None = None,
) -> PoolsResult:
    """Serve the trace with several pools under one autoscaler, which observes all of them.

    It looks at the first pool's scrape interval. Of prefill and decode, a request misses if either
    pool refuses or loses it. The trace's arrivals are fixed; the seed is for cold starts, failures
    and random routing. Raises: InvalidInputError for traces with sessions or priorities.
    """
    chosen = backend or best_backend()
    kind = Pools if isinstance(spec, PoolsSpec) else Variants
    first = next(iter(spec.fleets.values()))
    return run_together(
        kind(spec, trace, seed, chosen),  # type: ignore[arg-type]
        scaler,
        trace,
        interval=first.scrape_interval_seconds,
        lag=first.scrape_lag_seconds,
    )


def _columns(spec: PoolsSpec, requests: int) -> dict[str, Column]:
    floats = np.zeros(flow.TRANSFER_FLOAT_COUNT)
    floats[flow.FIXED_SECONDS] = spec.transfer.fixed_seconds
    floats[flow.TOKEN_SECONDS] = 1.0 / spec.transfer.tokens_per_second
    ints = np.zeros(flow.TRANSFER_INTS, dtype=np.int64)
    ints[flow.SKIP_PROMPT_TOKENS] = spec.skip_prompt_tokens
    ints[flow.FIRST_AT_DECODE] = spec.first_token is FirstToken.DECODE
    return {
        "wake": np.full(requests, -1.0),
        "place": np.full(requests, layout.NONE),
        "heap": np.full(max(requests, 1), layout.NONE),
        "held": np.full(max(requests, 1), layout.NONE),
        "ints": ints,
        "floats": floats,
    }
