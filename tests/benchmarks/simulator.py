"""How fast the fleet simulator is: requests a minute of one core, interpreted and compiled.

Run `python -m tests.benchmarks.simulator` from the repository root. Processor time is measured,
not the clock on the wall, so that a busy machine does not matter; the best of several runs counts.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from servingslo.policy.inputs import Observation
from servingslo_lab.compiling import compiler_installed
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.replicas.backend import INTERPRETED, Backend, compiled_backend
from servingslo_lab.sim.traces.trace import Trace, read_trace
from servingslo_lab.sim.traces.workloads import constant, generated, lengths_of

CONVERSATION = Path("examples/traces/azure_llm_2023_conversation.csv")
INTERPRETED_TARGET = 0.2e6
COMPILED_TARGET = 10e6
REPETITIONS = 3


class Still:
    """An autoscaler that wants nothing: the simulator alone is measured."""

    def decide(self, _: Observation) -> Wanted:
        """Leave everything as it is."""
        return Wanted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A fleet and the requests it gets each second, at about 60 % of what it can take."""

    engine: str
    replicas: int
    rate_per_second: float

    def trace(self, requests: int) -> Trace:
        """Poisson arrivals with the lengths of the Azure conversation trace."""
        rng = np.random.default_rng(1)
        course = constant(self.rate_per_second, requests / self.rate_per_second)
        return generated(course, lengths_of(read_trace(CONVERSATION)), rng)


LOADS = (
    Load(engine="h100-8b", replicas=1, rate_per_second=9.0),
    Load(engine="h100-8b", replicas=10, rate_per_second=100.0),
    Load(engine="l4-small", replicas=10, rate_per_second=22.0),
    Load(engine="h100-8b", replicas=50, rate_per_second=500.0),
)


def requests_per_minute(load: Load, backend: Backend, requests: int) -> float:
    """The best of several runs."""
    trace = load.trace(requests)
    fleet = FleetSpec(engine=load.engine, initial_replicas=load.replicas)
    # The first run compiles.
    simulate(fleet, load.trace(1000), Still(), seed=0, backend=backend)
    return (
        len(trace)
        * 60.0
        / min(
            _seconds(lambda: simulate(fleet, trace, Still(), seed=0, backend=backend))
            for _ in range(REPETITIONS)
        )
    )


def _seconds(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def main() -> int:
    """Print the table; the exit status tells whether the first of its rows meets both targets."""
    backends = [(INTERPRETED, 20_000, INTERPRETED_TARGET)]
    if compiler_installed():
        backends.append((compiled_backend(), 400_000, COMPILED_TARGET))
    met = True
    write = sys.stdout.write
    write(f"{'engine':10}{'replicas':>9}{'backend':>13}{'M requests/min':>16}{'target':>8}\n")
    for load in LOADS:
        for backend, requests, target in backends:
            speed = requests_per_minute(load, backend, requests)
            met &= speed >= target
            write(
                f"{load.engine:10}{load.replicas:9}{backend.name:>13}"
                f"{speed / 1e6:16.2f}{target / 1e6:8.1f}\n"
            )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
