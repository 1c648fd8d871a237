"""Other autoscalers' rules beside ours on the guard's rows, without an oracle.

    python -m tests.benchmarks.guard_peers [--rows document] [--seeds 3] [--all]

Rows of traffic that the planner was not made on, unless `--all`. Prints a table in Markdown.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from tests.benchmarks.guard import rows_named, run_of
from tests.benchmarks.guard_row import SEEDS
from tests.benchmarks.guard_rows import ROWS
from tests.benchmarks.matrix import TRACE, peers

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.bounds.hindsight import best_static
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.policies import OURS, STATIC, policy_of
from servingslo_lab.sim.production import benchmark_targets
from servingslo_lab.sim.scenario import Scenario, autoscaler_of, objectives_of
from servingslo_lab.sim.summary import beats

Mean = tuple[float, float]


def ours(name: str, seeds: Sequence[int]) -> Mean:
    """Share in SLO and replica-hours of the planner on a row, mean over seeds."""
    runs = [run_of(name, seed) for seed in seeds]
    return _mean([(run.share_ratio, run.replica_hours) for run in runs])


def peer(name: str, policy: str, seeds: Sequence[int]) -> Mean | None:
    """The same of a rule, or of the best constant; None where no constant meets the target."""
    objectives = objectives_of(benchmark_targets())
    found: list[Mean] = []
    for seed in seeds:
        trace, fleet = ROWS[name].played(seed)
        if policy == STATIC:
            most = fleet.max_replicas or 1
            tried = best_static(fleet, trace, objectives, most=most, seed=seed)
            if tried is None:
                return None
            result = tried.result
        else:
            where = Scenario(name=name, fleet=fleet, trace_path=str(TRACE))
            rule = policy_of(policy, tuned_for=fleet.engine)
            result = simulate(fleet, trace, autoscaler_of(rule, where, fleet, trace), seed=seed)
        found.append((objectives.share_of(result), result.replica_hours))
    return _mean(found)


def lines(name: str, seeds: Sequence[int]) -> list[str]:
    """A row's part of the table: ours, then the others from the highest share down."""
    mine = ours(name, seeds)
    rows = [(OURS, mine)]
    for policy in (STATIC, *peers()):
        try:
            other = peer(name, policy, seeds)
        except InvalidInputError:
            if not policy.endswith(":tuned"):
                raise
            continue  # the search found no settings of this rule for the card
        if other is not None:
            rows.append((policy, other))
    rows[1:] = sorted(rows[1:], key=lambda row: row[1][0], reverse=True)
    return [
        f"| {name} | {policy} | {_text(pair)} | {_verdict(pair, mine)} |" for policy, pair in rows
    ]


def _verdict(other: Mean, mine: Mean) -> str:
    if beats(*other, *mine):
        return "beats ours"
    return "ours beats it" if beats(*mine, *other) else ""


def _mean(pairs: Sequence[Mean]) -> Mean:
    share, hours = np.mean(np.array(pairs), axis=0)
    return float(share), float(hours)


def _text(pair: Mean) -> str:
    return f"{100.0 * pair[0]:.2f} @ {pair[1]:.2f}"


def main() -> None:
    """Print the table, row by row as each is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="words, with commas between them")
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, len(SEEDS) + 1))
    parser.add_argument("--all", action="store_true", help="the standard rows too")
    chosen = parser.parse_args()
    sys.stdout.write("| row | policy | in SLO, % @ replica-hours | |\n|---|---|---|---|\n")
    for name in rows_named(chosen.rows):
        if ROWS[name].unseen or chosen.all:
            sys.stdout.write("\n".join(lines(name, SEEDS[: chosen.seeds])) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
