"""Chat and a job on the same engines, with classes and without, and chat alone.

    python -m tests.benchmarks.classes [--seeds 6] [--requests 2000]

Chat arrives at 6/s all the time. A job of 2,000 requests with longer answers begins after a while:
workers send its requests one at a time, and refused ones again. Prints a table over the seeds:
chat's share in SLO, the job's time over the least possible, and replica-hours over chat alone.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

from servingslo.policy.inputs import AdmissionMode, Observation
from servingslo.policy.knobs.in_flight.gateway import LIMIT
from servingslo.policy.routes import LANES, ClassTargets
from servingslo.units import SECONDS_PER_HOUR
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ClassSpec, FleetSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.production import Production, benchmark_targets
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.traces.trace import Trace, chosen_requests
from servingslo_lab.sim.traces.workloads import constant, generated, uniform_lengths

CHAT, JOB = "chat", "job"
CHAT_PER_SECOND = 6.0
JOB_REQUESTS = 2000
# The law is trusted after some minutes; then the job begins.
BEGIN_SECONDS = 600.0
SECONDS = 2700.0
WORKERS = 256
LATEST_RATIO, MOST_HOURS_RATIO = 1.3, 1.05
_CHAT_LENGTHS = uniform_lengths((100, 2000), (50, 300))
_JOB_LENGTHS = uniform_lengths((200, 2000), (100, 400))
TTFT_SECONDS, TPOT_SECONDS = 1.0, 0.05
SHARE_TARGET = 0.99
MOST_LANE = 40
CHAT_ALONE, WITH, WITHOUT = "chat alone", "with classes", "without classes"
FLEET = FleetSpec(
    engine="l4-small",
    initial_replicas=3,
    max_replicas=16,
    classes=(ClassSpec(name=CHAT), ClassSpec(name=JOB, workers=WORKERS)),
)
TARGETS = benchmark_targets(
    ttft_seconds=TTFT_SECONDS, tpot_seconds=TPOT_SECONDS, max_replicas=FLEET.max_replicas
)
CLASSES = (
    ClassTargets(name=CHAT, route=CHAT, policy=CHAT),
    ClassTargets(name=JOB, priority=-10, route=JOB, policy=JOB),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One way on one seed.

    chat_share: in SLO. job_seconds: from its begin to its last answer, None if it did not end.
    least_seconds: the least that it can take.
    """

    way: str
    seed: int
    chat_share: float
    job_seconds: float | None
    replica_hours: float
    least_seconds: float = math.inf


def mixed_trace(seed: int, requests: int) -> Trace:
    """Chat, and the job's requests, all due when it begins."""
    rng = np.random.default_rng([seed, 7])
    chat = generated(constant(CHAT_PER_SECOND, SECONDS), _CHAT_LENGTHS, rng)
    prompts, outputs = _JOB_LENGTHS(rng, requests)
    names = (*(CHAT,) * len(chat), *(JOB,) * requests)
    both = replace(
        chat,
        arrival_seconds=np.concatenate([chat.arrival_seconds, np.full(requests, BEGIN_SECONDS)]),
        prompt_tokens=np.concatenate([chat.prompt_tokens, prompts]),
        output_tokens=np.concatenate([chat.output_tokens, outputs]),
        class_names=names,
    )
    return chosen_requests(both, np.argsort(both.arrival_seconds, kind="stable"))


def run_one(way: str, seed: int, requests: int) -> tuple[Line, Production]:
    """One run: CHAT_ALONE, WITH or WITHOUT classes."""
    trace = mixed_trace(seed, requests)
    if way == CHAT_ALONE:
        names = np.array(trace.class_names)
        trace = chosen_requests(trace, np.flatnonzero(names == CHAT))
    targets = TARGETS
    if way == WITH:
        targets = replace(targets, classes=CLASSES, admission_mode=AdmissionMode.AUTO)
    planner = Production(targets)
    return line_of(way, seed, simulate(FLEET, trace, planner, seed=seed), trace), planner


@dataclass(frozen=True, slots=True)
class FixedLane:
    """As many replicas as chat needs, and a constant lane of the job."""

    replicas: int
    lane: int

    def decide(self, observation: Observation) -> Wanted:
        """The same at every tick; the lane is set once."""
        standing = observation.in_force[LANES].values.get(f"{JOB}.{LIMIT}")
        lanes = {} if standing == self.lane else {JOB: self.lane}
        return Wanted(replicas=self.replicas, lanes=lanes)


def least_seconds(seed: int, requests: int, replicas: int) -> float:
    """The least time of the job in hindsight: under the largest constant lane that chat bears.

    inf if chat misses its objective under any lane.
    """
    trace, best = mixed_trace(seed, requests), math.inf
    low, high = 1, MOST_LANE
    while low <= high:
        lane = (low + high) // 2
        result = simulate(FLEET, trace, FixedLane(replicas, lane), seed=seed)
        line = line_of("hindsight", seed, result, trace)
        if line.chat_share >= SHARE_TARGET:
            best, low = min(best, line.job_seconds or math.inf), lane + 1
        else:
            high = lane - 1
    return best


def line_of(way: str, seed: int, result: RunResult, trace: Trace) -> Line:
    """What came of a run; chat's share is of the requests that arrived while the job ran."""
    good = result.good(TTFT_SECONDS, TPOT_SECONDS)
    job = np.array(trace.class_names) == JOB
    seconds, during = None, np.ones(len(trace), dtype=bool)
    if job.any() and (result.status[job] == layout.FINISHED).all():
        seconds = float((result.arrival_seconds + result.latency_seconds)[job].max())
        seconds -= BEGIN_SECONDS
    if job.any():
        arrived = result.arrival_seconds - BEGIN_SECONDS
        during = (arrived >= 0.0) & (arrived <= (math.inf if seconds is None else seconds))
    return Line(
        way=way,
        seed=seed,
        chat_share=float(good[~job & during].mean()),
        job_seconds=seconds,
        replica_hours=result.replica_hours,
    )


def seed_lines(chosen: tuple[int, int]) -> list[Line]:
    """The lines of one seed: chosen is the seed and the number of the job's requests."""
    seed, requests = chosen
    lines = [run_one(way, seed, requests)[0] for way in (CHAT_ALONE, WITH, WITHOUT)]
    count = round(lines[0].replica_hours * SECONDS_PER_HOUR / SECONDS)
    least = least_seconds(seed, requests, count)
    return [replace(line, least_seconds=least) for line in lines]


def table(lines: Sequence[Line]) -> Iterator[str]:
    """The lines as Markdown: means over the seeds, and the worst seed."""
    hours = {line.seed: line.replica_hours for line in lines if line.way == CHAT_ALONE}
    yield "| | chat in SLO, % | least seed, % | job, s | × least time | hours × chat alone |"
    yield "|---|---|---|---|---|---|"
    for way in (CHAT_ALONE, WITH, WITHOUT):
        own = [line for line in lines if line.way == way]
        shares = [100.0 * line.chat_share for line in own]
        ratio = mean(line.replica_hours / hours[line.seed] for line in own)
        told = "- | -"
        if all(line.job_seconds is not None for line in own):
            seconds = mean(line.job_seconds or 0.0 for line in own)
            over = mean((line.job_seconds or 0.0) / line.least_seconds for line in own)
            told = f"{seconds:.0f} | {over:.2f}"
        yield f"| {way} | {mean(shares):.2f} | {min(shares):.2f} | {told} | {ratio:.2f} |"


def misses(lines: Sequence[Line]) -> Iterator[str]:
    """Where classes do not keep what they promise, as a mean over the seeds."""
    hours = {line.seed: line.replica_hours for line in lines if line.way == CHAT_ALONE}
    own = [line for line in lines if line.way == WITH]
    if min(line.chat_share for line in own) < SHARE_TARGET:
        yield f"chat in SLO: {min(line.chat_share for line in own):.4f}"
    late = mean((line.job_seconds or math.inf) / line.least_seconds for line in own)
    if late > LATEST_RATIO:
        yield f"the job takes {late:.2f} x the least time"
    paid = mean(line.replica_hours / hours[line.seed] for line in own)
    if paid > MOST_HOURS_RATIO:
        yield f"replica-hours: {paid:.2f} x those of chat alone"


def main() -> int:
    """Print the table; 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=JOB_REQUESTS)
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    asked = [(seed, chosen.requests) for seed in range(chosen.seeds)]
    with ProcessPoolExecutor(chosen.processes) as workers:
        lines = [line for found in workers.map(seed_lines, asked) for line in found]
    missed = list(misses(lines))
    sys.stdout.write("\n".join([*table(lines), *missed]) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
