"""Pools that each serve whole requests behind one gateway, such as one model on several cards.

Without weights, the engines of all pools stand in one table, from which the gateway picks one as in
a single fleet. With weights, the pool of each request is drawn in advance, which is exact because
the draw depends on nothing else; each pool then serves its own requests. Both use the kernel as it
is.
"""

import numpy as np

from servingslo_lab.sim.fleets.result import RunResult, results_of
from servingslo_lab.sim.fleets.service import RULES
from servingslo_lab.sim.pools.fleet import VariantsSpec
from servingslo_lab.sim.pools.together import POOL_SEED, Pool, Together, check_trace
from servingslo_lab.sim.replicas.backend import Backend
from servingslo_lab.sim.replicas.routing import RULE
from servingslo_lab.sim.traces.trace import Trace, chosen_requests


class Variants(Together):
    """Pools of whole requests; use `simulate_pools`."""

    def __init__(self, spec: VariantsSpec, trace: Trace, seed: int, backend: Backend) -> None:
        check_trace(trace)
        super().__init__(spec.gpu_quota)
        self._trace, self._backend = trace, backend
        parts = _drawn(spec, len(trace), seed)
        self._parts = parts if spec.weights else [np.arange(len(trace))]
        for place, (name, fleet) in enumerate(spec.pools.items()):
            offered = chosen_requests(trace, parts[place]) if spec.weights else trace
            pool = Pool(fleet, offered, seed + place * POOL_SEED, backend, self)
            if not spec.weights:
                pool.gateway[RULE] = RULES[spec.routing]
                if self.pools:
                    pool.share(self._tables[0])
            self.pools[name] = pool

    @property
    def _tables(self) -> list[Pool]:
        """The pools with a table of requests of their own."""
        return list(self.pools.values())[: len(self._parts)]

    def serve(self, until: float) -> None:
        """Route the requests that arrive by this time."""
        pools, integers = list(self.pools.values()), self._backend.integers
        shared = len(self._parts) == 1
        for table in self._tables:
            serving = [row for pool in pools for row in pool.serving] if shared else table.serving
            self._backend.serve(table.requests, table.rows, integers(serving), table.gateway, until)

    def result(self, replica_seconds: float) -> RunResult:
        """The requests of all tables, in the order of the trace."""
        found = [
            results_of(
                pool.requests,
                duration_seconds=self._trace.duration_seconds,
                replica_seconds=replica_seconds,
                ticks=(),
            )
            for pool in self._tables
        ]
        order = np.argsort(np.concatenate(self._parts), kind="stable")

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(one, name) for one in found])[order]

        return RunResult(
            duration_seconds=self._trace.duration_seconds,
            replica_seconds=replica_seconds,
            arrival_seconds=joined("arrival_seconds"),
            ttft_seconds=joined("ttft_seconds"),
            tpot_seconds=joined("tpot_seconds"),
            latency_seconds=joined("latency_seconds"),
            status=joined("status"),
            output_tokens=joined("output_tokens"),
            ticks=(),
        )


def _drawn(spec: VariantsSpec, requests: int, seed: int) -> list[np.ndarray]:
    """The requests of each pool by its weight."""
    if not spec.weights:
        return []
    weights = np.array([spec.weights[name] for name in spec.pools], dtype=np.float64)
    rng = np.random.default_rng([seed, len(spec.pools)])
    chosen = rng.choice(len(weights), size=requests, p=weights / weights.sum())
    return [np.flatnonzero(chosen == place) for place in range(len(weights))]
