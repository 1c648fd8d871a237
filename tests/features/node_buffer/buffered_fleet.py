"""A simulated fleet whose nodes take minutes, with and without a buffer of nodes.

    python -m tests.features.node_buffer.buffered_fleet

prints the share of requests in SLO and the node-hours of each way to deal with them.
"""

import sys
from dataclasses import replace

import numpy as np

from servingslo.features.node_buffer.decision import (
    MOST,
    NODE_BUFFER,
    OURS,
    OWN,
    REPLICAS,
    TARGETS,
    NodeTargets,
    buffer_of,
)
from servingslo.policy.inputs import InForce, Observation, Targets
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec, NodeSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.production import Knobs, Production, benchmark_targets
from servingslo_lab.sim.replicas.backend import best_backend
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.workloads import (
    RateCourse,
    constant,
    flash_crowd,
    generated,
    ramp,
    uniform_lengths,
)

# 300 s in all, of which most is the node.
NODE_SECONDS, POD_SECONDS = 240.0, 60.0
MOST_AHEAD = 8
FLEET = FleetSpec(
    engine="l4-small",
    cold_start=ColdStart(mean_seconds=POD_SECONDS, variation_ratio=0.1),
    nodes=NodeSpec(start=ColdStart(mean_seconds=NODE_SECONDS, variation_ratio=0.1)),
    initial_replicas=3,
    max_replicas=24,
)
COURSES: dict[str, RateCourse] = {
    "ramp": ramp(3.0, 15.0, up_seconds=900, hold_seconds=900, down_seconds=600, rest_seconds=1200),
    "crowd": flash_crowd(3.0, 3.0, at_seconds=1800, rise_seconds=300, hold_seconds=900,
                         duration_seconds=4800),
    "calm": constant(6.0, 3600.0),
}  # fmt: skip


class Buffered(Production):
    """The planner, whose buffer the fleet's node autoscaler follows."""

    def __init__(self, targets: Targets) -> None:
        super().__init__(targets, Knobs(batching=False, admission=False))
        self.replicas = 0

    def decide(self, observation: Observation) -> Wanted:
        """The decision, with the buffer as its actuator would report and write it."""
        ours = {OURS: 1} if self.replicas else {}
        values = {REPLICAS: self.replicas, OWN: 0, MOST: MOST_AHEAD, **ours}
        seen = replace(observation, in_force={NODE_BUFFER: InForce(values=values)})
        wanted = super().decide(seen)
        if (decided := buffer_of(self.decisions[-1].knobs)) is None:
            return wanted
        self.replicas = decided.after
        return replace(wanted, nodes_ahead=decided.after)


def trace_of(course: RateCourse, seed: int) -> Trace:
    """Requests along a course, with answers so long that a replica carries one or two a second."""
    lengths = uniform_lengths((200, 900), (200, 600))
    return generated(course, lengths, np.random.default_rng(seed))


def targets_of(
    *, buffer: bool = False, lead: float | None = None, cold_start: float | None = None
) -> Targets:
    """Two objectives, and how nodes are dealt with."""
    targets = replace(benchmark_targets(max_replicas=24), cold_start_seconds=cold_start)
    named = {TARGETS.name: NodeTargets(buffer="fleet", lead_seconds=lead)} if buffer else {}
    return replace(targets, features=named)


def played(targets: Targets, course: RateCourse, seed: int) -> tuple[RunResult, Buffered]:
    """One run."""
    autoscaler = Buffered(targets)
    trace = trace_of(course, seed)
    return simulate(FLEET, trace, autoscaler, seed=seed, backend=best_backend()), autoscaler


WAYS = {
    "nothing": targets_of(),
    "coldStart": targets_of(cold_start=NODE_SECONDS + POD_SECONDS),
    "measured": targets_of(buffer=True),
    "stated": targets_of(buffer=True, lead=NODE_SECONDS),
}


def main() -> None:
    """A table."""
    seeds = range(1, 1 + int(sys.argv[1] if len(sys.argv) > 1 else 2))
    for name, course in COURSES.items():
        for way, targets in WAYS.items():
            runs = [played(targets, course, seed) for seed in seeds]
            share = np.mean([run.share_in_slo(1.0, 0.05) for run, _ in runs])
            hours = np.mean([run.replica_hours for run, _ in runs])
            writes = np.mean([_writes(one) for _, one in runs])
            sys.stdout.write(
                f"{name:6} {way:10} {share:7.2%} {hours:6.2f} h {writes:5.1f} writes\n"
            )
            sys.stdout.flush()


def _writes(autoscaler: Buffered) -> int:
    decided = (buffer_of(one.knobs) for one in autoscaler.decisions)
    return sum(one is not None and one.change_reason is not None for one in decided)


if __name__ == "__main__":
    main()
