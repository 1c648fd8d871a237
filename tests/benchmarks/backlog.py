"""Production traffic of an evening and work that is due at its end: together and apart.

    python -m tests.benchmarks.backlog [--hours 2] [--seed 1]

Chat follows the rates of `examples/traces/servegen_m-small_rates.csv` from 22:00 of its eighth day
on, with the days before as its past. Work of half as many requests comes in two lots and is due at
the end. Apart: chat alone with the same planner, and for the work replicas of its own that are
always full, as many as finish it in time and held until it is due, or (ideal) as many as are used
up exactly. Prints a table; 1 if chat pays or work is late.
"""

import argparse
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from tests.benchmarks.guard_production import RATE_WINDOW_SECONDS, published_rates
from tests.benchmarks.matrix import TRACE

from servingslo.features.backlog.deadlines import (
    READING,
    TARGETS,
    BacklogReading,
    BacklogTargets,
    Deadline,
    Preset,
    Unit,
)
from servingslo.features.backlog.report import REPORT
from servingslo.policy.inputs import Observation
from servingslo.policy.routes import ClassTargets
from servingslo.units import SECONDS_PER_HOUR
from servingslo_lab.sim.baselines.clairvoyant import Static
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ClassSpec, FleetSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.past import BIN_SECONDS, Past, Remembering
from servingslo_lab.sim.production import Production, benchmark_targets
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.traces.trace import Trace, chosen_requests, read_trace
from servingslo_lab.sim.traces.workloads import RateCourse, generated, lengths_of

CHAT, JOB = "chat", "job"
BEGIN_SECONDS = 190 * SECONDS_PER_HOUR
# Of the published rate: a load for a handful of small cards.
RATE = 0.003
WORK_RATIO = 0.5
FIRST_LOT_SECONDS = 900.0
TTFT_SECONDS, TPOT_SECONDS = 1.0, 0.05
# By which chat may fall behind chat alone.
LEAST_SHARE_CHANGE = -0.002
FULL_REQUESTS, WORKERS = 1500, 256
FLEET = FleetSpec(engine="l4-small", initial_replicas=4, max_replicas=24)
CLASSES = (
    ClassTargets(name=CHAT, route=CHAT, policy=CHAT),
    ClassTargets(name=JOB, priority=-10, route=JOB, policy=JOB),
)


@dataclass
class Dispatched:
    """The planner, the queue that it reads, and a dispatcher that sends at its rate."""

    planner: Production
    lots: dict[float, int]

    @property
    def decisions(self) -> list[object]:
        """Of the planner."""
        return [*self.planner.decisions]

    def decide(self, observation: Observation) -> Wanted:
        """What the planner wants, with what may be sent."""
        now = observation.time_seconds
        came = sum(count for at, count in self.lots.items() if BEGIN_SECONDS + at <= now)
        (gateway,) = observation.classes[JOB].instances
        left = came - (gateway.requests_total or 0.0)
        reading = BacklogReading(time_seconds=now, left=left)
        wanted = self.planner.decide(replace(observation, features={READING.name: reading}))
        report = REPORT.of(self.planner.decisions[-1].features)
        return replace(wanted, rates={JOB: report.rate_per_second if report else 0.0})


def traffic(seed: int, hours: float) -> tuple[Trace, dict[float, int], Past]:
    """Chat and work, the lots of work by when they come, and the rates before."""
    first = round(BEGIN_SECONDS / RATE_WINDOW_SECONDS)
    count = math.ceil(hours * SECONDS_PER_HOUR / RATE_WINDOW_SECONDS)
    rates = RATE * published_rates()
    course = RateCourse(
        times_seconds=tuple((RATE_WINDOW_SECONDS * np.arange(count + 1)).tolist()),
        rates_per_second=tuple(rates[first : first + count + 1].tolist()),
    )
    rng, lengths = np.random.default_rng([seed, 103]), lengths_of(read_trace(TRACE))
    chat = generated(course, lengths, rng)
    lot = round(WORK_RATIO * len(chat) / 2)
    lots = {FIRST_LOT_SECONDS: lot, chat.duration_seconds / 2: lot}
    prompts, outputs = lengths(rng, 2 * lot)
    both = replace(
        chat,
        arrival_seconds=np.concatenate([chat.arrival_seconds, np.repeat([*lots], lot)]),
        prompt_tokens=np.concatenate([chat.prompt_tokens, prompts]),
        output_tokens=np.concatenate([chat.output_tokens, outputs]),
        class_names=(*(CHAT,) * len(chat), *(JOB,) * (2 * lot)),
    )
    repeats = round(RATE_WINDOW_SECONDS / BIN_SECONDS)
    past = Past(
        begin_seconds=BEGIN_SECONDS,
        rates_per_second=tuple(np.repeat(rates[:first], repeats).tolist()),
    )
    return chosen_requests(both, np.argsort(both.arrival_seconds, kind="stable")), lots, past


def played(seed: int, hours: float, *, together: bool) -> tuple[RunResult, Trace]:
    """Chat and work on one fleet, or chat alone."""
    trace, lots, past = traffic(seed, hours)
    targets = benchmark_targets(
        ttft_seconds=TTFT_SECONDS, tpot_seconds=TPOT_SECONDS, max_replicas=FLEET.max_replicas
    )
    if not together:
        trace = chosen_requests(trace, np.flatnonzero(np.array(trace.class_names) == CHAT))
        planner = Remembering(Production(targets), past, trace.arrival_seconds)
        return simulate(FLEET, trace, planner, seed=seed), trace
    due = round((BEGIN_SECONDS + trace.duration_seconds) / SECONDS_PER_HOUR) % 24
    backlog = BacklogTargets(
        preset=Preset.RECORDED,
        queue="night",
        unit=Unit.REQUESTS,
        deadline=Deadline(hour=due, zone="UTC"),
        on_time_ratio=0.99,
    )
    targets = replace(targets, classes=CLASSES, features={TARGETS.name: backlog})
    arrivals = trace.arrival_seconds[np.array(trace.class_names) == CHAT]
    planner = Remembering(Dispatched(Production(targets), lots), past, arrivals)
    fleet = replace(FLEET, classes=(ClassSpec(name=CHAT), ClassSpec(name=JOB, paced=True)))
    return simulate(fleet, trace, planner, seed=seed), trace


def full_rate_per_second(seed: int, hours: float) -> float:
    """What one replica that is always full does of the work."""
    trace, _, _ = traffic(seed, hours)
    chosen = np.flatnonzero(np.array(trace.class_names) == JOB)[:FULL_REQUESTS]
    trace = replace(chosen_requests(trace, chosen), arrival_seconds=np.zeros(FULL_REQUESTS))
    classes = (ClassSpec(name=JOB, workers=WORKERS),)
    fleet = replace(FLEET, initial_replicas=1, max_replicas=1, classes=classes)
    result = simulate(fleet, trace, Static(1), seed=seed)
    return FULL_REQUESTS / float((result.arrival_seconds + result.latency_seconds).max())


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with ProcessPoolExecutor(2) as workers:
        jobs = [
            workers.submit(played, given.seed, given.hours, together=way) for way in (True, False)
        ]
        (both, trace), (alone, _) = [job.result() for job in jobs]
    names = np.array(trace.class_names)
    job, good = names == JOB, both.good(TTFT_SECONDS, TPOT_SECONDS)
    ends = (both.arrival_seconds + both.latency_seconds)[job]
    done = (both.status[job] == layout.FINISHED) & (ends <= trace.duration_seconds)
    shares = (good[~job].mean(), alone.good(TTFT_SECONDS, TPOT_SECONDS).mean())
    rate, window = full_rate_per_second(given.seed, given.hours), trace.duration_seconds
    work = int(job.sum())
    held = math.ceil(work / rate / (window - FIRST_LOT_SECONDS)) * (window - FIRST_LOT_SECONDS)
    apart = {
        "apart, work held": alone.replica_hours + held / SECONDS_PER_HOUR,
        "apart, work ideal": alone.replica_hours + work / rate / SECONDS_PER_HOUR,
    }
    both_done = f"{100 * done.mean():.2f}"
    lines = [
        f"{int((~job).sum())} requests of chat, {work} of work; a full replica does {rate:.2f}/s",
        "| | chat in SLO, % | work in time, % | replica-hours | together takes less, % |",
        "|---|---|---|---|---|",
        f"| together | {100 * shares[0]:.2f} | {both_done} | {both.replica_hours:.2f} | |",
        *(
            f"| {name} | {100 * shares[1]:.2f} | 100 | {hours:.2f} |"
            f" {100 * (1 - both.replica_hours / hours):.1f} |"
            for name, hours in apart.items()
        ),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return int(shares[0] - shares[1] < LEAST_SHARE_CHANGE or done.mean() < 0.99)


if __name__ == "__main__":
    sys.exit(main())
