"""Backtests: many policies on many traces and seeds, in parallel; each finished run is stored.

A run is a `Cell`. Its outcome is stored under a key of everything that it depends on, so a second
backtest continues where the first one stopped.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path

from pydantic import TypeAdapter

from servingslo.errors import InvalidInputError, ServingSLOError
from servingslo_lab.sim.bounds.hindsight import Tried, best_foresight, best_static, refined
from servingslo_lab.sim.bounds.oracle import Oracle, find_oracle
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.kept import key_of, store
from servingslo_lab.sim.outcome import OracleOutcome, Outcome, nothing_found, outcome_of
from servingslo_lab.sim.past import Remembering
from servingslo_lab.sim.policies import FORESIGHT, ORACLE, STATIC, Policy
from servingslo_lab.sim.pools.replay import run_pools
from servingslo_lab.sim.production import Production
from servingslo_lab.sim.scenario import LARGEST_FLEET, Cell, autoscaler_of, fleet_of
from servingslo_lab.sim.traces.trace import Trace

_OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)
_ORACLE: TypeAdapter[OracleOutcome] = TypeAdapter(OracleOutcome)
_ENDED = (
    "a process that ran simulations was ended, perhaps for want of memory; what was done is kept: "
    "run again to go on"
)


def run(
    cells: Sequence[Cell], cache_folder: Path, *, processes: int, done: Callable[[Cell], None]
) -> list[Outcome]:
    """The outcomes of all cells, in their order; `done` is called after each cell.

    Oracles run first, because the others are compared with them. If one cell fails, cells that have
    not begun are cancelled; finished ones stay stored.
    Raises: InvalidInputError for a folder that cannot be created, ServingSLOError if a worker
    process is killed.
    """
    try:
        cache_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a folder that can be written ({error.strerror})"
        raise InvalidInputError("cache", str(cache_folder), allowed) from error
    oracles = {_place(cell): _oracle_cell(cell) for cell in cells if _needs_oracle(cell)}
    later = [cell for cell in cells if cell.policy.name != ORACLE]
    places = list(dict.fromkeys(_place(cell) for cell in cells))
    found: dict[tuple[str, int, str], Outcome] = {}
    if processes <= 1:
        # Scenario by scenario, so that the first results can be viewed early.
        ordered = sorted([*oracles.values(), *later], key=lambda cell: places.index(_place(cell)))
        for cell in ordered:
            found[_name(cell)] = run_cell(cell, cache_folder)
            done(cell)
    else:
        with _workers(processes) as workers:
            for batch in (list(oracles.values()), later):
                begun = {workers.submit(run_cell, cell, cache_folder): cell for cell in batch}
                for future in as_completed(begun):
                    found[_name(begun[future])] = future.result()
                    done(begun[future])
    return [found[_name(cell)] for cell in cells]


@contextmanager
def _workers(processes: int) -> Iterator[Executor]:
    """Worker processes that end with the block, even on an error.

    They are not forked from the caller, which may have threads. Only the caller receives Ctrl-C.
    Raises: ServingSLOError if one of them ends by itself.
    """
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if isinstance(context, ForkServerContext):
        context.set_forkserver_preload([__name__])
    before = set(multiprocessing.active_children())
    workers = ProcessPoolExecutor(
        processes, context, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    )
    try:
        yield workers
    except BaseException as error:
        for worker in set(multiprocessing.active_children()) - before:
            worker.terminate()
        workers.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise ServingSLOError(_ENDED) from error
        raise
    workers.shutdown()


def runs_of(cells: Sequence[Cell]) -> int:
    """Number of runs for these cells, including the oracles that they need."""
    oracles = {_place(cell) for cell in cells if _needs_oracle(cell)}
    return len(oracles) + sum(cell.policy.name != ORACLE for cell in cells)


def _place(cell: Cell) -> tuple[str, int]:
    return cell.scenario.name, cell.seed


def _name(cell: Cell) -> tuple[str, int, str]:
    label = ORACLE if cell.policy.name == ORACLE else cell.policy.label
    return cell.scenario.name, cell.seed, label


def run_cell(cell: Cell, cache_folder: Path) -> Outcome:
    """The outcome of one cell, from the store if it is there."""
    if cell.policy.name == ORACLE:
        outcome = oracle_of(cell, cache_folder).outcome
    else:
        path = cache_folder / f"{key_of(cell)}.json"
        if path.exists():
            outcome = _OUTCOME.validate_json(path.read_bytes())
        else:
            outcome = _run(cell, cache_folder)
            store(path, _OUTCOME.dump_json(outcome))
    # It may have been stored under other names of scenario and policy.
    return replace(outcome, scenario=cell.scenario.name, policy=cell.policy.label)


def _needs_oracle(cell: Cell) -> bool:
    return cell.against_oracle or cell.policy.name == ORACLE


def _oracle_cell(cell: Cell) -> Cell:
    return replace(
        cell, policy=Policy(label=ORACLE, name=ORACLE), against_oracle=True, with_timeline=True
    )


def oracle_of(cell: Cell, cache_folder: Path) -> OracleOutcome:
    """The oracle of this cell's scenario and seed, from the store if it is there."""
    cell = _oracle_cell(cell)
    path = cache_folder / f"oracle-{key_of(cell)}.json"
    if path.exists():
        return _ORACLE.validate_json(path.read_bytes())
    scenario = cell.scenario
    trace, objectives, fleet = scenario.trace(cell.seed), scenario.objectives, scenario.fleet
    oracle: Oracle | None = find_oracle(
        fleet,
        trace,
        share=objectives.share,
        ttft_seconds=objectives.ttft_seconds,
        tpot_seconds=objectives.tpot_seconds,
        latency_seconds=objectives.latency_seconds,
    )
    if oracle is None:
        found = OracleOutcome(replicas=(), outcome=nothing_found(cell))
    else:
        oracle = refined(oracle, fleet, trace, objectives)
        hours = oracle.result.replica_hours
        found = OracleOutcome(
            replicas=oracle.replicas, outcome=outcome_of(cell, oracle.result, hours, [])
        )
    store(path, _ORACLE.dump_json(found))
    return found


def _run(cell: Cell, cache_folder: Path) -> Outcome:
    scenario, seed = cell.scenario, cell.seed
    if scenario.pools is not None:
        return run_pools(cell, scenario.pools)
    oracle = oracle_of(cell, cache_folder) if _needs_oracle(cell) else None
    trace = scenario.trace(seed)
    fleet = fleet_of(scenario, trace, oracle.replicas if oracle is not None else ())
    known = oracle.outcome.score if oracle is not None else None
    hours = known.replica_hours if known is not None else None
    if cell.policy.in_hindsight:
        tried = _hindsight(cell, fleet, trace)
        return nothing_found(cell) if tried is None else outcome_of(cell, tried.result, hours, [])
    autoscaler = autoscaler_of(cell.policy, scenario, fleet, trace)
    result = simulate(cell.policy.paced(fleet), trace, autoscaler, seed=seed)
    if isinstance(autoscaler, Production | Remembering):
        return outcome_of(cell, result, hours, autoscaler.decisions)
    return outcome_of(cell, result, hours, [])


def _hindsight(cell: Cell, fleet: FleetSpec, trace: Trace) -> Tried | None:
    objectives = cell.scenario.objectives
    if cell.policy.name == STATIC:
        most = fleet.max_replicas or LARGEST_FLEET
        return best_static(fleet, trace, objectives, most=most, seed=cell.seed)
    if cell.policy.name == FORESIGHT:
        return best_foresight(fleet, trace, objectives, seed=cell.seed)
    raise AssertionError(cell.policy.name)
