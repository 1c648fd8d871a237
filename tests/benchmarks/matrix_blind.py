"""Shapes of demand that the planner was not made on: ours beside others, without an oracle.

    python -m tests.benchmarks.matrix_blind [--case walk] ... [--seeds 31,32]

Prints a table in Markdown. Traces and runs are kept as those of the benchmark are.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tests.benchmarks.matrix import KEPT, MINE
from tests.benchmarks.matrix_blind_cases import CARDS, trace_of
from tests.benchmarks.matrix_blind_cases import CASES as COURSES
from tests.benchmarks.matrix_burst_cases import BURST_CASES

from servingslo.traces.trace import read_trace
from servingslo_lab.sim.backtest import run_cell
from servingslo_lab.sim.bounds.oracle import interval_work
from servingslo_lab.sim.fleets.fleet import ColdStart
from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.policies import STATIC, policy_of
from servingslo_lab.sim.scenario import Cell, Scenario
from servingslo_lab.sim.scoring import Score
from servingslo_lab.sim.traces.trace_files import write_trace

SEEDS = (31, 32)
CASES = {**COURSES, **BURST_CASES}
PEERS = (
    "hpa-busy", "hpa-waiting:tuned", "hpa-kv:tuned", "keda-guide", "keda-guide:tuned",
    "keda-raw:tuned", "keda-slo:tuned", "knative:tuned", "aibrix-kpa:tuned", "wva-v1:tuned",
    "wva-queueing:tuned", "dynamo-load:tuned", "dynamo-threshold:tuned",
    "dynamo-throughput:tuned",
)  # fmt: skip
# Work a second that a replica takes at most, for the bound of the fleet: twice the busiest minute.
_BUSY_WORK, _BOUND_FACTOR = 0.7, 2.0


def scenario_of(name: str, seed: int, folder: Path = KEPT) -> Scenario:
    """The case as a scenario; its trace is written where it is not there."""
    case = CASES[name]
    path = folder / f"blind-{name.replace(' ', '-').replace(',', '')}-{seed}.csv"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_trace(trace_of(case, seed), path)
    fleet = replace(CARDS[case.card], cold_start=ColdStart(mean_seconds=case.cold_start_seconds))
    if case.batched_tokens is not None:
        limits = replace(fleet.engine_limits, max_num_batched_tokens=case.batched_tokens)
        fleet = replace(fleet, limits=limits)
    busiest = float(interval_work(fleet, read_trace(path)).max())
    return Scenario(
        name=name,
        fleet=replace(fleet, max_replicas=math.ceil(_BOUND_FACTOR * busiest / _BUSY_WORK)),
        trace_path=str(path),
        targets=case.targets,
        warm=True,
    )


def outcomes_of(name: str, seed: int, policies: Sequence[str]) -> list[Outcome]:
    """What every policy makes of a case."""
    where = scenario_of(name, seed)
    return [
        run_cell(
            Cell(
                scenario=where,
                policy=policy_of(policy, tuned_for=where.fleet.engine),
                seed=seed,
                against_oracle=False,
                with_timeline=policy in MINE,
            ),
            KEPT,
        )
        for policy in policies
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """Share in SLO and replica-hours of a policy, over the seeds."""

    policy: str
    share_ratio: float
    replica_hours: float

    def __str__(self) -> str:
        return f"{100.0 * self.share_ratio:.2f} @ {self.replica_hours:.2f}"

    def beats(self, other: "Mean") -> bool:
        """Whether the share is higher and the cost is lower."""
        return self.share_ratio > other.share_ratio and self.replica_hours < other.replica_hours


def mean_of(policy: str, scores: Sequence[Score]) -> Mean:
    """The mean over the seeds."""
    return Mean(
        policy=policy,
        share_ratio=float(np.mean([score.share_ratio for score in scores])),
        replica_hours=float(np.mean([score.replica_hours for score in scores])),
    )


def row(name: str, seeds: Sequence[int]) -> str:
    """The line of a case in the table."""
    policies = (*MINE, STATIC, *PEERS)
    runs = [outcomes_of(name, seed, policies) for seed in seeds]
    found: dict[str, Mean] = {}
    for place, policy in enumerate(policies):
        scores = [run[place].score for run in runs]
        known = [score for score in scores if score is not None]
        if len(known) == len(scores):
            found[policy] = mean_of(policy, known)
    share = CASES[name].targets.objectives[0].percentile / 100.0
    peers = [found[policy] for policy in PEERS]
    meeting = [peer for peer in peers if peer.share_ratio >= share]
    best = (
        min(meeting, key=lambda peer: peer.replica_hours)
        if meeting
        else max(peers, key=lambda peer: peer.share_ratio)
    )
    beaten = [f"{p.policy} {p}" for p in peers if p.beats(found[MINE[0]])]
    static = found.get(STATIC, "-")
    return (
        f"| {name} | {found[MINE[0]]} | {found[MINE[1]]} | {best} {best.policy} | {static} "
        f"| {', '.join(beaten) or 'none'} |"
    )


def main() -> None:
    """Print the table, a line for each case as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="all without it")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    chosen = parser.parse_args()
    sys.stdout.write(
        "| case | servingslo | +knobs | strongest other | static | others that beat ours |\n"
        "|---|---|---|---|---|---|\n"
    )
    seeds = [int(seed) for seed in chosen.seeds.split(",")]
    for name in CASES:
        if name in (chosen.case or CASES):
            sys.stdout.write(row(name, seeds) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
