"""Orders at constant demand: what noise alone moves.

    python -m tests.benchmarks.constant_demand [--workloads 60] [--processes 2]

Poisson workloads, each with its own rate and lengths. After some minutes in which the law is
learnt and the count found, every change of the count in a quarter of an hour is an order.
"""

import argparse
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
from tests.benchmarks.guard_row import Row
from tests.benchmarks.guard_traffic import traffic_of
from tests.benchmarks.guard_unseen import fleet_of
from tests.benchmarks.matrix_blind_cases import points

from servingslo_lab.sim.bounds.oracle import interval_work
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.production import Production, benchmark_targets
from servingslo_lab.sim.scenario import objectives_of

LEARNING_MINUTES, MINUTES = 7.0, 15.0
# Of the mean rates, per second: fleets of one to some ten replicas.
RATES = (2.0, 80.0)
# The utilization, by mean rate, at which fleets begin: below the ceiling, as a plan with a margin.
UTILIZATION = 0.8


def played(number: int) -> tuple[float, list[int]]:
    """The share in SLO, the settled count, and those that were ordered after it."""
    rate = float(np.exp(np.random.default_rng(number).uniform(*np.log(RATES))))
    course = points((0.0, rate), (LEARNING_MINUTES + MINUTES, rate))
    row = Row(name="constant", fleet=fleet_of("h100"), traffic=traffic_of(lambda _: course))
    trace, fleet = row.played(number)
    # Work is in busy replicas; half as many again leave room to go wrong.
    needed = math.ceil(float(interval_work(fleet, trace).mean()) / UTILIZATION)
    fleet = replace(fleet, initial_replicas=needed, max_replicas=needed + needed // 2 + 2)
    targets = benchmark_targets(max_replicas=fleet.max_replicas)
    planner = Production(targets)
    result = simulate(fleet, trace, planner, seed=number)
    begin = 60.0 * LEARNING_MINUTES
    counts = [d.replicas_after for d in planner.decisions if d.time_seconds >= begin]
    moved = [after for before, after in pairwise(counts) if after != before]
    return objectives_of(targets).share_of(result), [counts[0], *moved]


def main() -> None:
    """Print each workload that moved, and the sum of orders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=60)
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    with ProcessPoolExecutor(chosen.processes) as workers:
        found = list(workers.map(played, range(chosen.workloads)))
    for number, (share, counts) in enumerate(found):
        if len(counts) > 1:
            told = " ".join(map(str, counts))
            sys.stdout.write(f"workload {number}: {100.0 * share:.1f} %, {told}\n")
    orders, moved = sum(len(c) - 1 for _, c in found), sum(len(c) > 1 for _, c in found)
    least = 100.0 * min(share for share, _ in found)
    sys.stdout.write(f"{orders} orders, {moved} of {len(found)} moved, least share {least:.1f} %\n")


if __name__ == "__main__":
    main()
