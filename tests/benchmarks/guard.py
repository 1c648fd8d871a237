"""The guard: whether the promise is kept, at which price, and beside whom.

    python -m tests.benchmarks.guard [--rows flash,pools] [--seeds 2] [--write] [--kept] [--alone]

Plays every row cold and with the past that Prometheus would remember, and other policies beside it:
the best constant count in hindsight, `simple`, published rules. Compares ours with
`guard_baseline.json`, and ends with 1 where the change is worse than the luck of seeds explains.
Runs are kept under `out/guard` by their traffic, fleet and all source that they depend on; those of
other policies are read from the baseline where it has them.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from importlib import import_module
from pathlib import Path

from tests.benchmarks.guard_row import SEEDS, Row, traffic_digest
from tests.benchmarks.guard_rows import ROWS
from tests.benchmarks.guard_verdict import (
    OURS,
    PAST,
    Run,
    read_runs,
    report,
    standings,
    table,
    verdict,
    written,
)
from tests.benchmarks.matrix import ROOT, TRACE

from servingslo.errors import InvalidInputError, ServingSLOError
from servingslo.policy.decision import Decision
from servingslo_lab.sim import policies
from servingslo_lab.sim.backtest import _workers
from servingslo_lab.sim.bounds.hindsight import best_static
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.kept import source_digest, store
from servingslo_lab.sim.past import Remembering
from servingslo_lab.sim.policies import RATIO, SIMPLE, STATIC, Policy, policy_of
from servingslo_lab.sim.pools.cluster import simulate_pools
from servingslo_lab.sim.pools.hindsight import best_counts
from servingslo_lab.sim.pools.production import ProductionPools
from servingslo_lab.sim.pools.replay import first_fleets, scaler_of
from servingslo_lab.sim.production import Production
from servingslo_lab.sim.scenario import Cell, Scenario, autoscaler_of
from servingslo_lab.sim.traces.trace import Trace

BASELINE = Path(__file__).with_name("guard_baseline.json")
KEPT_BASELINE = Path(__file__).with_name("guard_kept_baseline.json")
"""Of the rows that no setting may be chosen on."""
KEPT = ROOT / "out" / "guard"
GUARD_SEEDS = SEEDS[:4]
# Seeds that other policies, and rows kept back, are played on.
OTHER_SEEDS = SEEDS[:2]
RULES = ("keda-slo", "keda-slo:tuned", "keda-raw:tuned", "knative:tuned")
"""Published rules at their usual and at their searched settings."""
WAYS = (*OURS, STATIC, SIMPLE, *RULES)
POOLS_WAYS = (*OURS, STATIC, RATIO)
KEPT_WAYS = (*OURS, STATIC, SIMPLE)


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


def run_of(name: str, way: str, seed: int, folder: Path = KEPT) -> Run | None:
    """One row with one seed, played one way, from the runs that are kept where it is there.

    None where no constant count keeps the promise.
    """
    row = row_named(name)
    trace, fleet = row.played(seed)
    policy = _policy(row, way, fleet)
    where = Scenario(
        name=name, fleet=fleet, trace_path=str(TRACE), pools=row.pools, warm=True,
        past=row.past(seed) if way == PAST else None,
    )  # fmt: skip
    traffic = traffic_digest(trace)
    key = [traffic, repr((fleet, row.pools, where.past, policy)), seed, source_digest(policy.name)]
    path = folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.json"
    if path.exists():
        kept = json.loads(path.read_bytes())
        return None if kept is None else Run(row=name, way=way, **kept)
    play = _on_one_fleet if row.pools is None else _on_pools
    result, decisions = play(where, trace, Cell(scenario=where, policy=policy, seed=seed))
    found = None
    if result is not None:
        found = {
            "seed": seed,
            "share_ratio": where.objectives.share_of(result),
            "replica_hours": result.replica_hours,
            "decisions": decisions_digest(decisions) if way in OURS else "",
            "traffic": traffic,
        }
    folder.mkdir(parents=True, exist_ok=True)
    store(path, json.dumps(found).encode())
    return None if found is None else Run(row=name, way=way, **found)


def _policy(row: Row, way: str, fleet: FleetSpec) -> Policy:
    if way in OURS:
        return policy_of(policies.KNOBS if row.knobs else policies.OURS)
    return policy_of(way, tuned_for=fleet.engine)


Played = tuple[RunResult | None, Sequence[Decision]]


def _on_one_fleet(where: Scenario, trace: Trace, cell: Cell) -> Played:
    fleet, seed = where.fleet, cell.seed
    if cell.policy.name == STATIC:
        most = fleet.max_replicas or 1
        tried = best_static(fleet, trace, where.objectives, most=most, seed=seed)
        return None if tried is None else tried.result, ()
    scaler = autoscaler_of(cell.policy, where, fleet, trace)
    result = simulate(fleet, trace, scaler, seed=seed)
    ours = isinstance(scaler, Production | Remembering)
    return result, scaler.decisions if ours else ()


def _on_pools(where: Scenario, trace: Trace, cell: Cell) -> Played:
    spec, seed = where.pools, cell.seed
    assert spec is not None
    if cell.policy.name == STATIC:
        most = {name: fleet.max_replicas or 1 for name, fleet in spec.fleets.items()}
        found = best_counts(spec, trace, where.objectives, most=most, seed=seed)
        return None if found is None else found.result.result, ()
    fleets = first_fleets(where, spec, trace)
    scaler = scaler_of(cell, spec, fleets, trace)
    result = simulate_pools(spec.with_fleets(fleets), trace, scaler, seed=seed).result
    if not isinstance(scaler, ProductionPools):
        return result, ()
    return result, [one for name in fleets for one in scaler.of_pool(name)]


def seeds_of(*, kept: bool) -> tuple[int, ...]:
    """Seeds of the baseline."""
    return OTHER_SEEDS if kept else GUARD_SEEDS


def places_of(
    names: Sequence[str], seeds: Sequence[int], ways: Sequence[str]
) -> list[tuple[str, str, int]]:
    """Row, way and seed of every run: other policies on fewer seeds, and pools by their own."""
    return [
        (name, way, seed)
        for name in names
        for way in (WAYS if row_named(name).pools is None else POOLS_WAYS)
        if way in ways
        for seed in seeds
        if way in OURS or seed in OTHER_SEEDS
    ]


def runs_of(
    places: Sequence[tuple[str, str, int]], processes: int, known: Sequence[Run] = ()
) -> list[Run]:
    """The runs of these places, in their order; says on standard error how far it is.

    known: of other policies, which are not played again; on other traffic they are refused.
    """
    found: dict[tuple[str, str, int], Run | None] = {}
    for run in known:
        if run.way not in OURS:
            found[run.row, run.way, run.seed] = run
    missing = [place for place in places if place not in found]
    with _workers(processes) as workers:
        begun = {workers.submit(run_of, *place): place for place in missing}
        for number, future in enumerate(as_completed(begun), start=1):
            found[begun[future]] = future.result()
            if number % 10 == 0:
                sys.stderr.write(f"[{number}/{len(missing)}]\n")
    return [run for place in places if (run := found[place]) is not None]


def rows_named(text: str, rows: Sequence[str] = tuple(ROWS)) -> Iterator[str]:
    """The rows that one of these words stands in, or whose kind it is; all without a word.

    Raises: InvalidInputError for a word that is of none.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    texts = {name: f"{name}\n{row_named(name).kind}" for name in rows}
    for word in words:
        if not any(word in said for said in texts.values()):
            raise InvalidInputError("rows", word, f"a part of {', '.join(rows)}, or a kind")
    yield from (name for name in rows if not words or any(word in texts[name] for word in words))


def main() -> int:
    """Compare, or write the baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="words or kinds, with commas; all without")
    parser.add_argument("--seeds", type=int, default=len(GUARD_SEEDS),
                        choices=range(1, len(GUARD_SEEDS) + 1))  # fmt: skip
    parser.add_argument("--ways", default=",".join((*WAYS, RATIO)), help="of all, with commas")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the baseline, of all rows")
    parser.add_argument("--alone", action="store_true", help="compare with no baseline")
    parser.add_argument("--kept", action="store_true", help="the rows that no setting is chosen on")
    chosen = parser.parse_args()
    baseline = KEPT_BASELINE if chosen.kept else BASELINE
    try:
        rows = [row.name for row in kept_rows()] if chosen.kept else list(ROWS)
        names = rows if chosen.write else list(rows_named(chosen.rows, rows))
        # Before the runs, which take minutes: a baseline that is not there is reported at once.
        before = [] if chosen.write or chosen.alone else read_runs(baseline)
        planner = source_digest(policies.OURS)[:16]  # as the runs begin: it may change meanwhile
        began = time.monotonic()
        every = KEPT_WAYS if chosen.kept else (*WAYS, RATIO)
        ways = every if chosen.write else [way for way in every if way in chosen.ways.split(",")]
        seeds = seeds_of(kept=chosen.kept)
        seeds = seeds if chosen.write else seeds[: chosen.seeds]
        now = runs_of(places_of(names, seeds, ways), chosen.processes, before)
        if chosen.write:
            baseline.write_text(written(now, {"planner": planner}), "utf-8")
        sys.stderr.write(f"{len(now)} runs in {(time.monotonic() - began) / 60:.1f} minutes\n")
        found = verdict(now, before or now)
    except ServingSLOError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    kinds = {name: row_named(name).kind for name in names}
    lines = [*table(standings(now), kinds), ""]
    sys.stdout.write("\n".join([*lines, *([] if chosen.alone else report(found))]) + "\n")
    return 1 if found.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
