"""Two pools on one virtual clock: prefill engines, decode engines, an autoscaler for each."""

from dataclasses import dataclass, replace

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo.traces.trace import Trace
from servingslo_lab.sim import layout
from servingslo_lab.sim.backend import Backend, Column, best_backend
from servingslo_lab.sim.cluster import FINISHING_SECONDS, Autoscaler, Cluster
from servingslo_lab.sim.fleet import FleetSpec
from servingslo_lab.sim.pods import PodPhase
from servingslo_lab.sim.pools import flow
from servingslo_lab.sim.pools.backend import flow_of, transfer_table
from servingslo_lab.sim.pools.fleet import PoolsSpec, Transfer
from servingslo_lab.sim.result import RunResult, Tick
from servingslo_lab.sim.timers import TIMERS

_DECODE_SEED = 1 << 20
"""Added to the decode pool's seed, so that the two pools' starts and failures differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsResult:
    """The results of the requests and of each pool.

    result: like that of a single fleet, with the replica time of both pools and without ticks.
    """

    result: RunResult
    prefill_replica_seconds: float
    decode_replica_seconds: float
    prefill_ticks: tuple[Tick, ...]
    decode_ticks: tuple[Tick, ...]


class Pool(Cluster):
    """One of two pools: a fleet whose engines run together with those of the other pool."""

    def __init__(
        self, fleet: FleetSpec, trace: Trace, seed: int, backend: Backend, pools: "Pools"
    ) -> None:
        super().__init__(fleet, trace, seed, backend)
        self._pools = pools

    @property
    def gateway(self) -> list[int]:
        """The state of the pool's gateway."""
        return self._gateway

    @property
    def next_event_seconds(self) -> float:
        """Time of the next pod start, failure or end of draining in this pool."""
        return self._events[0][0] if self._events else float("inf")

    @property
    def computing(self) -> list[int]:
        """Engines that take requests or finish their running ones."""
        phases = {PodPhase.READY, PodPhase.DRAINING}
        return [pod.row for pod in self.pods if pod.phase in phases]

    def _serve(self, until: float) -> None:
        self._pools.serve(until)

    def _lose(self, place: int) -> None:
        super()._lose(place)
        self._pools.lose_transfers(self, place)


class Pools:
    """Both pools with their requests; use `simulate_pools`."""

    def __init__(self, spec: PoolsSpec, trace: Trace, seed: int, backend: Backend) -> None:
        check_trace(trace)
        remaining = np.maximum(trace.output_tokens, 1) - 1
        prompts = np.maximum(trace.prompt_tokens, 1)
        first = replace(trace, output_tokens=np.ones_like(remaining))
        rest = replace(trace, prompt_tokens=prompts + 1, output_tokens=np.maximum(remaining, 1))
        self.prefill = Pool(spec.prefill, first, seed, backend, self)
        self.decode = Pool(spec.decode, rest, seed + _DECODE_SEED, backend, self)
        for r, tokens in enumerate(prompts.tolist()):
            self.decode.requests.cached[r] = tokens
        self.transfers = transfer_table(_columns(spec.transfer, len(trace)), backend)
        self._remaining = backend.integers(remaining.tolist())
        self._integers = backend.integers
        self._flow = flow_of(backend)

    def serve(self, until: float) -> None:
        """Advance the engines of both pools to this time."""
        one, other, integers = self.prefill, self.decode, self._integers
        self._flow(
            one.requests, other.requests, self.transfers, one.rows, other.rows, self._remaining,
            integers(one.serving), integers(one.computing), integers(other.serving),
            integers(other.computing), one.gateway, other.gateway, until,
        )  # fmt: skip

    def lose_transfers(self, pool: Pool, place: int) -> None:
        """Lose the transfers of a failed prefill engine."""
        if pool is not self.prefill:
            return
        transfers, decode = self.transfers, self.decode.requests
        for r in transfers.heap[: transfers.ints[TIMERS]]:
            if pool.requests.engine[r] == place:
                decode.status[r] = layout.FAILED
                decode.finish[r] = pool.now

    def run_until(self, until: float) -> None:
        """Simulate requests, pod starts and failures of both pools until this time."""
        pools = (self.prefill, self.decode)
        while (time := min(pool.next_event_seconds for pool in pools)) <= until:
            for pool in pools:
                pool.run_until(time)
        for pool in pools:
            pool.run_until(until)


def simulate_pools(
    spec: PoolsSpec,
    trace: Trace,
    prefill: Autoscaler,
    decode: Autoscaler,
    *,
    seed: int,
    backend: Backend | None = None,
) -> PoolsResult:
    """Serve the trace with two pools, each under its own autoscaler.

    Both observe at the prefill pool's scrape interval, and only their own engines. The first token
    counts at the end of the prefill. A request misses if either pool refuses or loses it.
    Raises: InvalidInputError for traces with sessions or priorities.
    """
    pools = Pools(spec, trace, seed, backend or best_backend())
    both = ((pools.prefill, prefill), (pools.decode, decode))
    for pool, _ in both:
        pool.warm_start(pool.fleet.initial_replicas)
    interval, lag = spec.prefill.scrape_interval_seconds, spec.prefill.scrape_lag_seconds
    tick = interval
    while tick < trace.duration_seconds:
        pools.run_until(tick - lag)
        for pool, _ in both:
            pool.scrape()
        pools.run_until(tick)
        seen = [pool.observe(tick - lag) for pool, _ in both]
        for (pool, autoscaler), observation in zip(both, seen, strict=True):
            pool.apply(autoscaler.decide(observation))
            pool.ticks.append(pool.tick())
        tick += interval
    end = trace.duration_seconds
    pools.run_until(end)
    billed = [pool.billed_seconds(end) for pool, _ in both]
    pools.run_until(end + FINISHING_SECONDS)
    return PoolsResult(
        result=_result(pools, trace, sum(billed)),
        prefill_replica_seconds=billed[0],
        decode_replica_seconds=billed[1],
        prefill_ticks=tuple(pools.prefill.ticks),
        decode_ticks=tuple(pools.decode.ticks),
    )


def check_trace(trace: Trace) -> None:
    """Raises: InvalidInputError for requests that pools cannot serve."""
    for name in ("sessions", "priorities", "shared_tokens"):
        if getattr(trace, name) is not None:
            raise InvalidInputError("trace", name, "requests without sessions and priorities")


def _columns(transfer: Transfer, requests: int) -> dict[str, Column]:
    floats = np.zeros(flow.TRANSFER_FLOAT_COUNT)
    floats[flow.FIXED_SECONDS] = transfer.fixed_seconds
    floats[flow.TOKEN_SECONDS] = 1.0 / transfer.tokens_per_second
    return {
        "wake": np.full(requests, -1.0),
        "place": np.full(requests, layout.NONE),
        "heap": np.full(max(requests, 1), layout.NONE),
        "ints": np.zeros(flow.TRANSFER_INTS, dtype=np.int64),
        "floats": floats,
    }


def _result(pools: Pools, trace: Trace, replica_seconds: float) -> RunResult:
    one, other = pools.prefill.requests, pools.decode.requests
    arrival = trace.arrival_seconds.astype(np.float64)
    first = np.asarray(one.first_token, dtype=np.float64)
    prefilled = np.asarray(one.status, dtype=np.int64)
    decodes = (np.maximum(trace.output_tokens, 1) > 1) & (prefilled == layout.FINISHED)
    status = np.where(decodes, np.asarray(other.status, dtype=np.int64), prefilled)
    finish = np.where(decodes, np.asarray(other.finish, dtype=np.float64), first)
    output = np.maximum(trace.output_tokens, 1).astype(np.float64)
    finished = status == layout.FINISHED
    return RunResult(
        duration_seconds=trace.duration_seconds,
        replica_seconds=replica_seconds,
        arrival_seconds=arrival,
        ttft_seconds=np.where(first >= 0, first - arrival, np.inf),
        tpot_seconds=np.where(finished, (finish - first) / np.maximum(output - 1, 1), np.inf),
        latency_seconds=np.where(finished, finish - arrival, np.inf),
        status=status,
        output_tokens=output,
        ticks=(),
    )
