"""What is left to win on a crowd and a ramp: a rule that is told of them late, and then knows all.

    python -m tests.benchmarks.matrix_told [--seeds 1,2,3]

Until it is told, the rule plans for the demand before the rise; from then on it knows the work that
comes a cold start and a scrape ahead, to the second. Work per replica, replicas on top while the
first are on their way, and the bound in flight are chosen in hindsight for each line: those with
the largest share at no more than the record's cost over the oracle. No rule that must notice the
rise by itself is told earlier than at the first scrape after it began. Prints a table in Markdown.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.benchmarks.matrix import KEPT, LARGE, SMALL, scenario

from servingslo.models.engine.service_time import FloatArray
from servingslo.models.fleet.frontier import whole_count
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.backtest import oracle_of
from servingslo_lab.sim.bounds.oracle import INTERVAL_SECONDS, interval_work
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.policies import ORACLE, policy_of
from servingslo_lab.sim.scenario import LARGEST_FLEET, Cell, fleet_of
from servingslo_lab.sim.traces.trace import Trace

DELAYS_SECONDS = (0.0, 15.0, 30.0, 45.0, 60.0)
SCRAPE_SECONDS, FINE_SECONDS = 15.0, 5.0
WORKS_PER_REPLICA = (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
# Ordered on top until a cold start after being told, as a share of what is needed then: pods come
# in no order, and the first of more of them are there sooner.
EXTRA_RATIOS = (0.0, 1.0)
# Running and waiting that an engine takes: batches around the largest that keep 50 ms a token.
BOUNDS = {LARGE: (150, 165), SMALL: (28, 32)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """A rise that nothing foretells. most_cost: over the oracle's, of the record."""

    engine: str
    case: str
    begins_seconds: float
    most_cost: float


RISES = (
    Rise(engine=LARGE, case="ramp", begins_seconds=300.0, most_cost=1.12),
    Rise(engine=LARGE, case="flash", begins_seconds=1200.0, most_cost=1.5),
    Rise(engine=SMALL, case="flash", begins_seconds=1200.0, most_cost=1.5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is chosen in hindsight. max_in_flight: bound of each engine, None without one."""

    work_per_replica: float
    extra_ratio: float
    max_in_flight: int | None


class Told:
    """Plans for the demand before the rise until it is told, and then as one that knows all.

    work_per_second: of the trace, every FINE_SECONDS. ahead_seconds: cold start and scrape.
    """

    def __init__(
        self,
        work_per_second: FloatArray,
        setting: Setting,
        *,
        ahead_seconds: float,
        begins_seconds: float,
        told_seconds: float,
    ) -> None:
        self._work, self._setting, self._ahead = work_per_second, setting, ahead_seconds
        self._told = told_seconds
        self._before = float(work_per_second[: int(begins_seconds / FINE_SECONDS)].mean())

    def decide(self, observation: Observation) -> Wanted:
        """The count, and the bound."""
        now, setting = observation.time_seconds, self._setting
        work = self._before
        if now >= self._told:
            work = max(self._at(now), self._at(now + self._ahead))
        wanted = work / setting.work_per_replica
        if self._told <= now < self._told + self._ahead:
            wanted *= 1.0 + setting.extra_ratio
        return Wanted(replicas=whole_count(wanted, LARGEST_FLEET), max_queued=setting.max_in_flight)

    def _at(self, seconds: float) -> float:
        return float(self._work[min(int(seconds / FINE_SECONDS), len(self._work) - 1)])


def fine_work(fleet: FleetSpec, trace: Trace) -> FloatArray:
    """Work of the trace as seconds a second, every FINE_SECONDS, on lines between its minutes."""
    minutes = interval_work(fleet, trace)
    middles = (np.arange(len(minutes)) + 0.5) * INTERVAL_SECONDS
    moments = np.arange(0.0, trace.duration_seconds, FINE_SECONDS)
    found: FloatArray = np.interp(moments, middles, minutes)
    return found


Point = tuple[float, float]


def points_of(rise: Rise, settings: Sequence[Setting], seed: int) -> list[list[Point]]:
    """Share in SLO and cost over the oracle, for each delay and setting."""
    where = scenario(rise.case, rise.engine)
    policy = policy_of(ORACLE, tuned_for=rise.engine)
    oracle = oracle_of(Cell(scenario=where, policy=policy, seed=seed), KEPT)
    score = oracle.outcome.score
    if score is None:
        raise AssertionError(rise)
    trace = where.trace(seed)
    fleet = fleet_of(where, trace, oracle.replicas)
    work = fine_work(fleet, trace)
    found = []
    for delay in DELAYS_SECONDS:
        line = []
        for setting in settings:
            rule = Told(
                work, setting,
                ahead_seconds=fleet.cold_start.mean_seconds + SCRAPE_SECONDS,
                begins_seconds=rise.begins_seconds,
                told_seconds=rise.begins_seconds + delay,
            )  # fmt: skip
            result = simulate(fleet, trace, rule, seed=seed)
            share = where.objectives.share_of(result)
            line.append((share, result.replica_hours / score.replica_hours))
        found.append(line)
    return found


def row(rise: Rise, bounds: Sequence[int | None], seeds: Sequence[int]) -> str:
    """The line of a rise in the table, with these bounds to choose from."""
    settings = [
        Setting(work_per_replica=work, extra_ratio=extra, max_in_flight=bound)
        for work, extra, bound in itertools.product(WORKS_PER_REPLICA, EXTRA_RATIOS, bounds)
    ]
    means = np.mean([points_of(rise, settings, seed) for seed in seeds], axis=0)
    told = []
    for line in means:
        within = [(share, -cost) for share, cost in line if cost <= rise.most_cost]
        share, cost = max(within, default=(float("nan"), float("nan")))
        told.append(f"{100.0 * share:.2f} @ {-cost:.3f}")
    bounded = "alone" if bounds[0] is None else "with a bound"
    return f"| {rise.engine} {rise.case}, {bounded} | {' | '.join(told)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1,2,3")
    seeds = [int(seed) for seed in parser.parse_args().seeds.split(",")]
    heads = " | ".join(f"told {delay:.0f} s late" for delay in DELAYS_SECONDS)
    sys.stdout.write(f"| rise | {heads} |\n|{'---|' * (1 + len(DELAYS_SECONDS))}\n")
    for rise in RISES:
        for bounds in ((None,), BOUNDS[rise.engine]):
            sys.stdout.write(row(rise, bounds, seeds) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
