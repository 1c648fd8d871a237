"""The rows by kind, without a reserve, cold, and with a day's past of the same kind.

    python -m tests.benchmarks.kinds [--rows night,wall] [--seeds 2] [--guard] [--processes 2]

The past is the same kind of traffic from other seeds: rates of five minutes and of minutes, as
Prometheus remembers them. `--guard` adds the guard's rows.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
from tests.benchmarks.guard import rows_named
from tests.benchmarks.guard_kinds import KINDS
from tests.benchmarks.guard_row import SEEDS, Row
from tests.benchmarks.guard_rows import ROWS as GUARD

from servingslo.policy.stages import STAGES, choose_reserve
from servingslo.units import SECONDS_PER_DAY
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.past import BIN_SECONDS, RECENT_BIN_SECONDS, Past, Remembering
from servingslo_lab.sim.production import Knobs, Production, benchmark_targets
from servingslo_lab.sim.scenario import objectives_of

ROWS = {row.name: row for row in KINDS}
NONE, COLD, PAST = "no reserve", "cold", "a day's past"
# Seeds of the past are this far from those that are played; four traces are repeated to a day.
_OTHER_SEEDS, _TRACES = 1000, 4
_NO_RESERVE = replace(
    STAGES, learners=tuple(one for one in STAGES.learners if one is not choose_reserve)
)


def past_of(row: Row, seed: int) -> Past:
    """A day of this kind of traffic, from other seeds."""
    rates: dict[float, list[float]] = {BIN_SECONDS: [], RECENT_BIN_SECONDS: []}
    number = 0
    while len(rates[BIN_SECONDS]) < SECONDS_PER_DAY / BIN_SECONDS:
        trace = row.traffic(seed + _OTHER_SEEDS + number % _TRACES)
        whole = trace.duration_seconds // BIN_SECONDS * BIN_SECONDS
        for width, found in rates.items():
            bins = (trace.arrival_seconds / width).astype(int)
            count = round(whole / width)
            rates[width] = [*found, *(np.bincount(bins, minlength=count)[:count] / width).tolist()]
        number += 1
    coarse, fine = (found[-round(SECONDS_PER_DAY / width) :] for width, found in rates.items())
    return Past(
        begin_seconds=20_000.0 * SECONDS_PER_DAY,
        rates_per_second=tuple(coarse),
        recent_per_second=tuple(fine),
    )


def played(place: tuple[str, int, str]) -> tuple[float, float]:
    """Share in SLO and replica-hours of one row, seed and way."""
    name, seed, way = place
    row = ROWS[name] if name in ROWS else GUARD[name]
    trace, fleet = row.played(seed)
    targets = benchmark_targets(max_replicas=fleet.max_replicas)
    planner = Production(targets, Knobs(batching=row.knobs, admission=row.knobs))
    if way == NONE:
        planner.stages = _NO_RESERVE
    past = past_of(row, seed) if way == PAST else None
    policy = planner if past is None else Remembering(planner, past, trace.arrival_seconds)
    result = simulate(fleet, trace, policy, seed=seed)
    return objectives_of(targets).share_of(result), result.replica_hours


def table(names: Sequence[str], seeds: Sequence[int], processes: int) -> list[str]:
    """One line a row, and how many rows keep 99 % each way."""
    ways = (NONE, COLD, PAST)
    places = [(name, seed, way) for name in names for way in ways for seed in seeds]
    with ProcessPoolExecutor(processes) as workers:
        found = dict(zip(places, workers.map(played, places), strict=True))
    lines = [f"| in SLO, % @ replica-hours | {' | '.join(ways)} |", "|---|---|---|---|"]
    kept = dict.fromkeys(ways, 0)
    for name in names:
        cells = []
        for way in ways:
            shares, hours = np.mean([found[name, seed, way] for seed in seeds], axis=0)
            kept[way] += shares >= 0.99
            cells.append(f"{100.0 * shares:.1f} @ {hours:.1f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    counts = (f"{kept[way]} of {len(names)}" for way in ways)
    return [*lines, f"| rows at 99 % | {' | '.join(counts)} |"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="words, with commas between them; all without")
    parser.add_argument("--seeds", type=int, default=2, choices=range(1, len(SEEDS) + 1))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--guard", action="store_true", help="the guard's rows too")
    chosen = parser.parse_args()
    names = [*ROWS, *(GUARD if chosen.guard else ())]
    rows = list(rows_named(chosen.rows, names))
    sys.stdout.write("\n".join(table(rows, SEEDS[: chosen.seeds], chosen.processes)) + "\n")


if __name__ == "__main__":
    main()
