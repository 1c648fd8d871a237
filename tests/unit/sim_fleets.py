"""A small simulated fleet for tests, and runs of it by both backends."""

from dataclasses import replace

import numpy as np

from servingslo.policy.inputs import Observation
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.replicas.backend import INTERPRETED, compiled_backend
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.workloads import constant, generated, uniform_lengths

FLEET = FleetSpec(engine="l4-small", cold_start=ColdStart(mean_seconds=60, variation_ratio=0.0))


class Script:
    """An autoscaler that asks for replicas at given times and remembers what it saw."""

    def __init__(self, *steps: tuple[float, Wanted]) -> None:
        self.steps = list(steps)
        self.seen: list[Observation] = []

    def decide(self, observation: Observation) -> Wanted:
        """The wish of the latest step that is due."""
        self.seen.append(observation)
        due = [wanted for time, wanted in self.steps if time <= observation.time_seconds]
        return due[-1] if due else Wanted()


def trace(rate: float = 3.0, seconds: float = 300.0, seed: int = 1) -> Trace:
    """Poisson arrivals with moderate lengths."""
    rng = np.random.default_rng(seed)
    return generated(constant(rate, seconds), uniform_lengths((50, 800), (10, 200)), rng)


def run(script: Script, fleet: FleetSpec = FLEET, **changes: object) -> RunResult:
    """Simulate in Python."""
    options = {"trace": trace(), "seed": 3, "backend": INTERPRETED, **changes}
    return simulate(fleet, options.pop("trace"), script, **options)


def agreeing(script: Script, fleet: FleetSpec = FLEET, **changes: object) -> RunResult:
    """The result of both backends, which must be the same to the last bit; so must what is seen."""
    results, seen = [], []
    for backend in (INTERPRETED, compiled_backend()):
        script.seen = []
        results.append(run(script, fleet, backend=backend, **changes))
        seen.append(script.seen)
    one, other = results
    for name in ("ttft_seconds", "tpot_seconds", "latency_seconds", "status", "attempts"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.ticks == other.ticks
    assert seen[0] == seen[1]
    return one


def with_sessions(
    trace: Trace, session_count: int, shared_tokens: int, rng: np.random.Generator
) -> Trace:
    """The trace with a common beginning of prompts: each request belongs to one of the sessions.

    shared_tokens: put before every prompt, the same for all requests of a session, as system
    prompts or documents are that many questions are asked about.
    """
    return replace(
        trace,
        prompt_tokens=trace.prompt_tokens + shared_tokens,
        sessions=rng.integers(0, session_count, len(trace)),
        shared_tokens=np.full(len(trace), shared_tokens),
    )
