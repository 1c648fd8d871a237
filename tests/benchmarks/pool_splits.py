"""Prefill and decode in pools of their own beside one pool of as many replicas.

Run `python -m tests.benchmarks.pool_splits` from the repository root. Every split of the replicas
is played on the same requests; the best one is the split with the largest share in SLO.
"""

import sys
import time
from dataclasses import dataclass

import numpy as np
from tests.benchmarks.simulator import CONVERSATION, Still

from servingslo.traces.trace import Trace, read_trace
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.pools.cluster import simulate_pools
from servingslo_lab.sim.pools.fleet import PoolsSpec
from servingslo_lab.sim.pools.scaling import Each
from servingslo_lab.sim.replicas.backend import best_backend
from servingslo_lab.sim.standard import TPOT_SECONDS, TTFT_SECONDS
from servingslo_lab.sim.traces.workloads import (
    LONG_CONTEXT,
    LengthSource,
    constant,
    generated,
    lengths_of,
    mixed_lengths,
)

SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests a second on so many replicas of a card."""

    name: str
    engine: str
    replicas: int
    rate_per_second: float
    lengths: LengthSource

    def trace(self, seed: int) -> Trace:
        """Poisson arrivals."""
        rng = np.random.default_rng(seed)
        return generated(constant(self.rate_per_second, SECONDS), self.lengths, rng)


def loads() -> tuple[Load, ...]:
    """Conversation, and the same with long prompts among it, on both cards."""
    talk = lengths_of(read_trace(CONVERSATION))
    mixed = mixed_lengths(talk, LONG_CONTEXT, 0.2)
    return tuple(
        Load(name=name, engine=engine, replicas=10, rate_per_second=rate, lengths=lengths)
        for engine, name, rate, lengths in (
            ("h100-8b", "conversation", 130.0, talk),
            ("h100-8b", "a fifth long prompts", 40.0, mixed),
            ("l4-small", "conversation", 26.0, talk),
            ("l4-small", "a fifth long prompts", 9.0, mixed),
        )
    )


def row(name: str, result: RunResult) -> str:
    """Share in SLO and the tails, as a line of a table."""
    ttft = 1e3 * np.quantile(result.ttft_seconds, 0.99)
    tpot = 1e3 * np.quantile(result.tpot_seconds, (0.5, 0.99))
    share = 100.0 * result.share_in_slo(TTFT_SECONDS, TPOT_SECONDS)
    return f"| {name} | {share:.2f} | {ttft:.0f} | {tpot[0]:.1f} | {tpot[1]:.1f} |"


def main() -> None:
    """Print the table, and how fast the simulator is with two pools."""
    write = sys.stdout.write
    write(
        "| load | in SLO, % | p99 TTFT, ms | p50 TPOT, ms | p99 TPOT, ms |\n|---|---|---|---|---|\n"
    )
    speeds = []
    for load in loads():
        trace = load.trace(1)
        fleet = FleetSpec(engine=load.engine, initial_replicas=load.replicas)
        one = simulate(fleet, trace, Still(), seed=0)
        splits: dict[int, RunResult] = {}
        for prefill in range(1, load.replicas):
            spec = PoolsSpec(
                prefill=FleetSpec(engine=load.engine, initial_replicas=prefill),
                decode=FleetSpec(engine=load.engine, initial_replicas=load.replicas - prefill),
            )
            began = time.process_time()
            splits[prefill] = simulate_pools(spec, trace, Each({}), seed=0).result
            speeds.append(60e-6 * len(trace) / (time.process_time() - began))
        best = max(splits, key=lambda n: splits[n].share_in_slo(TTFT_SECONDS, TPOT_SECONDS))
        name = f"{load.engine} {load.name}, {load.rate_per_second:g}/s"
        write(row(f"{name}: one pool of {load.replicas}", one) + "\n")
        write(row(f"{best} prefill, {load.replicas - best} decode", splits[best]) + "\n")
    backend = best_backend().name
    write(f"\n{np.median(speeds):.1f} M requests/min with two pools, {backend}\n")


if __name__ == "__main__":
    main()
