"""The guard: whether a change of the planner breaks the promise or costs replica-hours, in minutes.

    python -m tests.benchmarks.guard [--rows flash,on-off] [--seeds 2] [--write] [--kept]

Compares with `guard_baseline.json`, and ends with 1 where the change is worse than the luck of
seeds explains. Runs are kept under `out/guard` by their traffic, fleet and all source that they
depend on.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from statistics import mean

from tests.benchmarks.guard_row import SEEDS, Row
from tests.benchmarks.guard_row import traffic_digest as digest_of
from tests.benchmarks.guard_rows import ROWS
from tests.benchmarks.guard_verdict import (
    TARGET_PERCENT,
    Foresight,
    Run,
    read_foresights,
    read_runs,
    report,
    verdict,
    written,
)
from tests.benchmarks.matrix import ROOT

from servingslo.errors import InvalidInputError, ServingSLOError
from servingslo.policy.decision import Decision
from servingslo_lab.sim.backtest import _workers
from servingslo_lab.sim.bounds.hindsight import LEAST_FORESIGHT_WORK, best_foresight, foresight_at
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.kept import source_digest, store
from servingslo_lab.sim.policies import OURS
from servingslo_lab.sim.production import Knobs, Production, benchmark_targets
from servingslo_lab.sim.scenario import objectives_of

BASELINE = Path(__file__).with_name("guard_baseline.json")
KEPT_BASELINE = Path(__file__).with_name("guard_kept_baseline.json")
"""Of the rows that no setting may be chosen on."""
KEPT = ROOT / "out" / "guard"
# Seeds that foresight is looked for on: each takes eight runs.
FORESIGHT_SEEDS = SEEDS[:2]


def decisions_digest(decisions: Sequence[Decision]) -> str:
    """Of what each decision does and would do: counts, batch limits, admission bounds.

    No reason and no predicted number is in it, so a new name or a rounding leaves it equal.
    """
    digest = hashlib.sha256()
    for one in decisions:
        batching, admission = one.batching, one.admission
        wanted = (
            one.replicas_before, one.replicas_after, one.recommended_replicas, one.apply_replicas,
            batching.apply, batching.recommended_max_num_seqs,
            batching.recommended_max_num_batched_tokens,
            admission.queue_limit, admission.in_flight_limit,
        )  # fmt: skip
        digest.update(repr(wanted).encode())
    return digest.hexdigest()[:16]


def row_named(name: str) -> Row:
    """The row of this name; one that is kept out of any choice is read only where it is named."""
    if name in ROWS:
        return ROWS[name]
    return next(row for row in kept_rows() if row.name == name)


def kept_rows() -> tuple[Row, ...]:
    """The rows that no setting may be chosen on."""
    return import_module("tests.benchmarks.guard_kept").KEPT


def run_of(name: str, seed: int, folder: Path = KEPT) -> Run:
    """One row with one seed, from the runs that are kept where it is there."""
    row = row_named(name)
    trace, fleet = row.played(seed)
    traffic = digest_of(trace)
    key = [traffic, repr(fleet), row.knobs, seed, source_digest(OURS)]
    path = folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.json"
    if path.exists():
        return Run(row=name, **json.loads(path.read_bytes()))
    targets = benchmark_targets(max_replicas=fleet.max_replicas)
    planner = Production(targets, Knobs(batching=row.knobs, admission=row.knobs))
    result = simulate(fleet, trace, planner, seed=seed)
    found = Run(
        row=name,
        seed=seed,
        share_ratio=objectives_of(targets).share_of(result),
        replica_hours=result.replica_hours,
        decisions=decisions_digest(planner.decisions),
        traffic=traffic,
    )
    kept = {key: value for key, value in asdict(found).items() if key != "row"}
    folder.mkdir(parents=True, exist_ok=True)
    store(path, json.dumps(kept).encode())
    return found


def runs_of(names: Sequence[str], seeds: Sequence[int], processes: int) -> list[Run]:
    """All runs of these rows, in their order; says on standard error how far it is."""
    places = [(name, seed) for name in names for seed in seeds]
    found: dict[tuple[str, int], Run] = {}
    with _workers(processes) as workers:
        begun = {workers.submit(run_of, name, seed): (name, seed) for name, seed in places}
        for future in as_completed(begun):
            found[begun[future]] = future.result()
            if len(found) % len(SEEDS) == 0:
                sys.stderr.write(f"[{len(found)}/{len(places)}]\n")
    return [found[place] for place in places]


def foresight_of(name: str) -> Foresight:
    """The cheapest at which foresight of the mean reaches the target; else its largest share."""
    objectives = objectives_of(benchmark_targets())
    found = []
    for seed in FORESIGHT_SEEDS:
        trace, fleet = row_named(name).played(seed)
        tried = best_foresight(fleet, trace, objectives, seed=seed)
        if tried is None:
            tried = foresight_at(LEAST_FORESIGHT_WORK, fleet, trace, seed=seed)
        found.append((objectives.share_of(tried.result), tried.result.replica_hours))
    shares, hours = zip(*found, strict=True)
    return Foresight(
        share_percent=100.0 * sum(shares) / len(shares), replica_hours=sum(hours) / len(hours)
    )


def foresights_of(runs: Sequence[Run], processes: int) -> dict[str, Foresight]:
    """What foresight reaches on every row whose mean share is below the target."""
    names = dict.fromkeys(run.row for run in runs)
    missed = [
        name
        for name in names
        if mean(100.0 * run.share_ratio for run in runs if run.row == name) < TARGET_PERCENT
    ]
    with _workers(processes) as workers:
        return dict(zip(missed, workers.map(foresight_of, missed), strict=True))


def rows_named(text: str, rows: Sequence[str] = tuple(ROWS)) -> Iterator[str]:
    """The rows that one of these words stands in; all without a word.

    Raises: InvalidInputError for a word that stands in none.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not any(word in name for name in rows):
            raise InvalidInputError("rows", word, f"a part of {', '.join(rows)}")
    yield from (name for name in rows if not words or any(word in name for word in words))


def main() -> int:
    """Compare, or write the baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="words, with commas between them; all without")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), choices=range(1, len(SEEDS) + 1))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the baseline, of all rows")
    parser.add_argument("--kept", action="store_true", help="the rows that no setting is chosen on")
    chosen = parser.parse_args()
    baseline = KEPT_BASELINE if chosen.kept else BASELINE
    try:
        rows = [row.name for row in kept_rows()] if chosen.kept else list(ROWS)
        names = rows if chosen.write else list(rows_named(chosen.rows, rows))
        # Before the runs, which take minutes: a baseline that is not there is reported at once.
        before = [] if chosen.write else read_runs(baseline)
        planner = source_digest(OURS)[:16]  # as the runs begin: the checkout may move on meanwhile
        began = time.monotonic()
        now = runs_of(names, SEEDS if chosen.write else SEEDS[: chosen.seeds], chosen.processes)
        if chosen.write:
            foresights = foresights_of(now, chosen.processes)
            baseline.write_text(written(now, foresights, {"planner": planner}), "utf-8")
        sys.stderr.write(f"{len(now)} runs in {(time.monotonic() - began) / 60:.1f} minutes\n")
        found = verdict(now, before or now, read_foresights(baseline))
    except ServingSLOError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write("\n".join(report(found)) + "\n")
    return 1 if found.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
