"""Other autoscalers' own code beside ours, from `make benchmark-peers`.

    python -m tests.benchmarks.peers [--seeds 6] [--rows flash] [--peers dynamo-sla] [--minutes 30]

Rows on measured step times and recorded traffic, the other standard traces on both cards, and the
guard's rows that no setting was chosen on; replicas only. Each peer runs at its defaults and at
each setting of its grid. Runs are kept under `out/peers` by their traffic, fleet and all source
that they depend on, so a second call goes on where one stopped. Means over the seeds of a whole
call go into docs/benchmarks/peers.csv, and from there the tables into the pages.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from tests.benchmarks.guard_row import SEEDS, Row, traffic_digest
from tests.benchmarks.guard_rows import ROWS
from tests.benchmarks.matrix import COLD_START_SECONDS, LARGE, ROOT, SMALL, TRACE
from tests.silicon.tables import tables

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.kept import source_digest, store
from servingslo_lab.sim.policies import OURS, REAL, REAL_RULES, policy_of
from servingslo_lab.sim.production import benchmark_targets
from servingslo_lab.sim.replicas.step_table import step_table
from servingslo_lab.sim.scenario import Scenario, autoscaler_of, objectives_of
from servingslo_lab.sim.standard import CASE_NAMES, standard_case
from servingslo_lab.sim.traces.trace import Trace, read_trace

KEPT = ROOT / "out" / "peers"
# Beside the grid: where a step of it is wide, between a setting that is too dear and one too low.
FINER = {f"{REAL}:dynamo-sla": (0.6,)}
_SECONDS_PER_MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """One policy on one row with one seed."""

    row: str
    policy: str
    seed: int
    share_ratio: float
    replica_hours: float


def _standard(case: str, engine: str) -> Row:
    def traffic(seed: int) -> Trace:
        return standard_case(case, engine, read_trace(TRACE), seed=seed).trace

    return Row(
        name=f"{engine.partition('-')[0]} {case}",
        kind="",
        fleet=FleetSpec(engine=engine, cold_start=ColdStart(mean_seconds=COLD_START_SECONDS)),
        traffic=traffic,
    )


def _measured(card: str, row: Row, name: str) -> Row:
    """The row's traffic on Llama 3.1 8B on a card, with the step times of measured kernels."""
    (of,) = (table.steps for table in tables() if table.name == f"{card}/llama-3.1-8b/1")
    columns = of.sequences, of.context_tokens, of.prefill_tokens, of.seconds
    steps = step_table([cell for cell in zip(*columns, strict=True) if cell[0] > 0])
    fleet = replace(row.fleet, engine=f"{card}-llama-8b", steps=steps)
    return replace(row, name=f"{card} measured {name}", fleet=fleet)


def first_rows() -> dict[str, Row]:
    """Recorded traffic: on measured step times, then on the cards of the benchmark."""
    large, small = (_standard("azure-conv", engine) for engine in (LARGE, SMALL))
    rows = (
        _measured("h100", large, "azure-conv"),
        _measured("l40s", small, "azure-conv"),
        _measured("h100", ROWS["reasoning"], "reasoning"),
        large,
        small,
    )
    return {row.name: row for row in rows}


def peer_rows() -> dict[str, Row]:
    """The first rows, every standard trace on both cards, and the guard's unseen ones."""
    standard = [_standard(case, engine) for case in CASE_NAMES for engine in (LARGE, SMALL)]
    unseen = [
        replace(row, name=row.name.removesuffix(" +knobs"), knobs=False)
        for row in ROWS.values()
        if row.unseen
    ]
    return first_rows() | {row.name: row for row in (*standard, *unseen)}


def settings_of(peer: str) -> tuple[str, ...]:
    """A peer at its defaults, then at the other settings of its grid, one value each."""
    rule = REAL_RULES[peer]
    ((key, grid),) = rule.grid.items()
    values = sorted({*grid, *FINER.get(peer, ())} - {rule.defaults[key]})
    return (peer, *(f"{peer}:{key}={value:g}" for value in values))


def planned(
    rows: Sequence[str], peers: Sequence[str], seeds: Sequence[int]
) -> Iterator[tuple[str, str, int]]:
    """Row, policy and seed of every run: a seed for all rows first, defaults before the grid."""
    for seed in seeds:
        for row in rows:
            yield row, OURS, seed
            yield from ((row, peer, seed) for peer in peers)
            yield from ((row, one, seed) for peer in peers for one in settings_of(peer)[1:])


def run_of(name: str, label: str, seed: int) -> PeerRun:
    """One run, from those that are kept where it is there.

    Raises: InvalidInputError if the peer is not installed.
    """
    trace, fleet = _played(name, seed)
    policy = policy_of(label)
    document = [name, traffic_digest(trace), repr(fleet), seed, policy.name,
                sorted(policy.parameters.items()), source_digest(policy.name)]  # fmt: skip
    path = KEPT / f"{hashlib.sha256(json.dumps(document).encode()).hexdigest()[:32]}.json"
    if path.exists():
        return PeerRun(**json.loads(path.read_bytes()))
    where = Scenario(name=name, fleet=fleet, trace_path=str(TRACE))
    autoscaler = autoscaler_of(policy, where, fleet, trace)
    result = simulate(policy.paced(fleet), trace, autoscaler, seed=seed)
    found = PeerRun(
        row=name,
        policy=label,
        seed=seed,
        share_ratio=objectives_of(benchmark_targets()).share_of(result),
        replica_hours=result.replica_hours,
    )
    KEPT.mkdir(parents=True, exist_ok=True)
    store(path, json.dumps(asdict(found)).encode())
    return found


@lru_cache(maxsize=1)
def _played(name: str, seed: int) -> tuple[Trace, FleetSpec]:
    """The row's traffic and fleet."""
    return peer_rows()[name].played(seed)


def run_all(plan: Sequence[tuple[str, str, int]], *, minutes: float | None) -> Iterator[PeerRun]:
    """The runs of the plan; says how far it is, and ends the program when the time is over."""
    began, absent = time.monotonic(), set[str]()
    for place, (row, label, seed) in enumerate(plan, 1):
        if minutes is not None and time.monotonic() - began > _SECONDS_PER_MINUTE * minutes:
            sys.exit(f"time is over after {place - 1} of {len(plan)} runs, which are kept")
        if policy_of(label).name in absent:
            continue
        try:
            run = run_of(row, label, seed)
        except InvalidInputError as error:
            absent.add(policy_of(label).name)
            sys.stderr.write(f"{label} is left out: {error}\n")
            continue
        text = f"{100.0 * run.share_ratio:.2f} @ {run.replica_hours:.2f}"
        sys.stderr.write(f"[{place}/{len(plan)}] {row}, seed {seed}, {label}: {text}\n")
        yield run


def main() -> None:
    """Make runs, then write the tables."""
    from tests.benchmarks.peers_page import store_runs, write_page  # noqa: PLC0415 - it reads this

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), choices=range(1, len(SEEDS) + 1))
    parser.add_argument("--rows", default="", help="words, with commas between them")
    parser.add_argument("--peers", default="", help="names without real:, with commas")
    parser.add_argument("--minutes", type=float, help="begin no run after so many")
    chosen = parser.parse_args()
    words = [word.strip() for word in chosen.rows.split(",") if word.strip()]
    rows = [name for name in peer_rows() if not words or any(word in name for word in words)]
    peers = [f"{REAL}:{name.strip()}" for name in chosen.peers.split(",") if name.strip()]
    plan = list(planned(rows, peers or list(REAL_RULES), SEEDS[: chosen.seeds]))
    store_runs(list(run_all(plan, minutes=chosen.minutes)))
    write_page()


if __name__ == "__main__":
    main()
