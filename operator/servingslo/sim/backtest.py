"""Backtests: many policies on many traces and seeds, in parallel, each run kept once it is done.

A run is a `Cell`; what it gave is stored under a key made of everything that it depends on, the
source of the simulator and of the planner included, so a second run takes up where one stopped.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

import servingslo
from servingslo.models.latency import LatencyMetric
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Targets
from servingslo.sim.baselines.setting import Setting
from servingslo.sim.cluster import Autoscaler, simulate
from servingslo.sim.fleet import FleetSpec
from servingslo.sim.hindsight import Tried, best_foresight, best_static, refined
from servingslo.sim.oracle import INTERVAL_SECONDS, Oracle, find_oracle
from servingslo.sim.policies import FORESIGHT, ORACLE, OURS, STATIC, Policy
from servingslo.sim.production import Knobs, Production, benchmark_targets
from servingslo.sim.result import RunResult
from servingslo.sim.scoring import Objectives, Score, score
from servingslo.sim.standard import SHARE_TARGET, TPOT_SECONDS, TTFT_SECONDS, standard_case
from servingslo.sim.trace import Trace, read_trace

CACHE_VERSION = 1
# Without an oracle and without a maximum in the resource.
LARGEST_FLEET = 1000
# A fleet that has served for long is ready for what its first minutes bring: a trace that is cut
# out of a day begins at once with the rate that took hours to build up.
WARM_SECONDS = 240.0
_MINUTE_SECONDS = 60.0
_SOURCES = ("sim", "policy", "estimation", "models", "runtimes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A trace on a fleet.

    trace_path: a CSV file, the trace itself, or for a standard case the one it takes lengths from.
    case: name of a standard case, whose trace is then generated from the seed of each run; None
    for the file as it is. targets: the resource; None for the benchmark's. warm: the fleet begins
    with as many as the oracle has in the first minutes, and may grow to twice the oracle's peak.
    """

    name: str
    fleet: FleetSpec
    trace_path: str
    case: str | None = None
    part: float = 1.0
    targets: Targets | None = None
    warm: bool = False

    def trace(self, seed: int) -> Trace:
        """The trace that is played with this seed."""
        source = _read(self.trace_path)
        if self.case is None:
            return source
        case = standard_case(self.case, self.fleet.engine, source, seed=seed, part=self.part)
        return case.trace

    @property
    def objectives(self) -> Objectives:
        """What a request must meet: the thresholds of the resource."""
        if self.targets is None:
            return Objectives(
                ttft_seconds=TTFT_SECONDS, tpot_seconds=TPOT_SECONDS, share=SHARE_TARGET
            )
        return objectives_of(self.targets)


def objectives_of(targets: Targets) -> Objectives:
    """Thresholds of TTFT and TPOT, infinite where there is none, and the highest percentile."""

    def least(metric: LatencyMetric) -> float:
        found = [o.threshold_seconds for o in targets.objectives if o.metric is metric]
        return min(found, default=float("inf"))

    return Objectives(
        ttft_seconds=least(LatencyMetric.TTFT),
        tpot_seconds=least(LatencyMetric.TPOT),
        share=max((o.percentile for o in targets.objectives), default=99.0) / 100.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One policy on one scenario with one seed. against_oracle: costs are set beside it."""

    scenario: Scenario
    policy: Policy
    seed: int
    against_oracle: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLine:
    """One decision of the planner, short."""

    time_seconds: float
    before: int | None
    after: int | None
    reason: str
    binding: str | None
    rate_per_second: float | None
    planned_rate_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run over time. Per minute: requests per second, share in SLO, TTFT; per tick: the fleet.

    None stands for what is not there: a minute without requests, a percentile that is infinite.
    """

    offered_per_second: tuple[float, ...]
    share_ratio: tuple[float | None, ...]
    ttft_p99_seconds: tuple[float | None, ...]
    tick_seconds: tuple[float, ...]
    desired: tuple[int, ...]
    ready: tuple[int, ...]
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    decisions: tuple[DecisionLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a cell gave; score None where no setting meets the share (hindsight alone)."""

    scenario: str
    policy: str
    seed: int
    score: Score | None
    timeline: Timeline | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleOutcome:
    """The oracle of a scenario and seed, as later runs need it."""

    replicas: tuple[int, ...]
    outcome: Outcome


_OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)
_ORACLE: TypeAdapter[OracleOutcome] = TypeAdapter(OracleOutcome)
_CELL: TypeAdapter[Cell] = TypeAdapter(Cell)


@cache
def _read(path: str) -> Trace:
    return read_trace(Path(path))


def run(
    cells: Sequence[Cell], cache_folder: Path, *, processes: int, done: Callable[[Cell], None]
) -> list[Outcome]:
    """The outcomes of all cells, in their order; `done` is called as each is there.

    Oracles come first: the others are measured against them.
    """
    cache_folder.mkdir(parents=True, exist_ok=True)
    first = [c for c in cells if c.policy.name == ORACLE]
    later = [c for c in cells if c.policy.name != ORACLE]
    measured = {(c.scenario.name, c.seed) for c in first}
    unmeasured = {
        (c.scenario.name, c.seed): _oracle_cell(c)
        for c in later
        if _needs_oracle(c) and (c.scenario.name, c.seed) not in measured
    }
    first.extend(unmeasured.values())
    found: dict[int, Outcome] = {}
    if processes <= 1:
        for cell in (*first, *later):
            found[id(cell)] = run_cell(cell, cache_folder)
            done(cell)
    else:
        with ProcessPoolExecutor(processes) as pool:
            for batch in (first, later):
                futures = {pool.submit(run_cell, cell, cache_folder): cell for cell in batch}
                for future in as_completed(futures):
                    cell = futures[future]
                    found[id(cell)] = future.result()
                    done(cell)
    return [found[id(cell)] for cell in cells]


def run_cell(cell: Cell, cache_folder: Path) -> Outcome:
    """The outcome of one cell, from the cache where it is there."""
    if cell.policy.name == ORACLE:
        return _oracle(cell, cache_folder).outcome
    path = cache_folder / f"{_key(cell)}.json"
    if path.exists():
        return _OUTCOME.validate_json(path.read_bytes())
    oracle = _oracle(cell, cache_folder) if _needs_oracle(cell) else None
    outcome = _run(cell, oracle)
    _store(path, _OUTCOME.dump_json(outcome))
    return outcome


def _needs_oracle(cell: Cell) -> bool:
    return cell.against_oracle or cell.scenario.warm


def _oracle_cell(cell: Cell) -> Cell:
    return replace(cell, policy=Policy(label=ORACLE, name=ORACLE), against_oracle=True)


def _oracle(cell: Cell, cache_folder: Path) -> OracleOutcome:
    cell = _oracle_cell(cell)
    path = cache_folder / f"oracle-{_key(cell)}.json"
    if path.exists():
        return _ORACLE.validate_json(path.read_bytes())
    scenario = cell.scenario
    trace, objectives = scenario.trace(cell.seed), scenario.objectives
    fleet = scenario.fleet
    oracle: Oracle | None = find_oracle(
        fleet,
        trace,
        share=objectives.share,
        ttft_seconds=objectives.ttft_seconds,
        tpot_seconds=objectives.tpot_seconds,
    )
    if oracle is None:
        outcome = Outcome(
            scenario=scenario.name, policy=ORACLE, seed=cell.seed, score=None, timeline=None
        )
        found = OracleOutcome(replicas=(), outcome=outcome)
    else:
        oracle = refined(oracle, fleet, trace, objectives)
        hours = oracle.result.replica_hours
        found = OracleOutcome(
            replicas=oracle.replicas, outcome=_outcome(cell, oracle.result, hours, [])
        )
    _store(path, _ORACLE.dump_json(found))
    return found


def _run(cell: Cell, oracle: OracleOutcome | None) -> Outcome:
    scenario, seed = cell.scenario, cell.seed
    trace, fleet = scenario.trace(seed), _fleet(scenario, oracle)
    known = oracle.outcome.score if oracle is not None else None
    hours = known.replica_hours if known is not None and cell.against_oracle else None
    if cell.policy.in_hindsight:
        tried = _hindsight(cell, fleet, trace)
        if tried is None:
            return Outcome(
                scenario=scenario.name, policy=cell.policy.label, seed=seed, score=None,
                timeline=None,
            )  # fmt: skip
        return _outcome(cell, tried.result, hours, [])
    autoscaler = autoscaler_of(cell.policy, scenario, fleet)
    result = simulate(fleet, trace, autoscaler, seed=seed)
    decisions = autoscaler.decisions if isinstance(autoscaler, Production) else []
    return _outcome(cell, result, hours, decisions)


def _hindsight(cell: Cell, fleet: FleetSpec, trace: Trace) -> Tried | None:
    objectives = cell.scenario.objectives
    if cell.policy.name == STATIC:
        most = fleet.max_replicas or LARGEST_FLEET
        return best_static(fleet, trace, objectives, most=most, seed=cell.seed)
    if cell.policy.name == FORESIGHT:
        return best_foresight(fleet, trace, objectives, seed=cell.seed)
    raise AssertionError(cell.policy.name)


def _fleet(scenario: Scenario, oracle: OracleOutcome | None) -> FleetSpec:
    """The fleet with its first and its largest count."""
    fleet = scenario.fleet
    targets = scenario.targets
    if scenario.warm and oracle is not None and oracle.replicas:
        intervals = max(round(WARM_SECONDS / INTERVAL_SECONDS), 1)
        return replace(
            fleet,
            initial_replicas=max(oracle.replicas[:intervals]),
            max_replicas=2 * max(oracle.replicas),
        )
    bounds = [fleet.max_replicas, targets.replicas.maximum if targets is not None else None]
    known = [bound for bound in bounds if bound is not None]
    return replace(fleet, max_replicas=min(known, default=LARGEST_FLEET))


def autoscaler_of(policy: Policy, scenario: Scenario, fleet: FleetSpec) -> Autoscaler:
    """A fresh autoscaler for one run."""
    maximum = fleet.max_replicas or LARGEST_FLEET
    objectives = scenario.objectives
    if policy.name.partition("+")[0] == OURS:
        targets = scenario.targets or benchmark_targets()
        bounded = replace(targets.replicas, maximum=targets.replicas.maximum or maximum)
        knobs = Knobs(batching=True, admission=True) if policy.name != OURS else Knobs()
        return Production(replace(targets, replicas=bounded), knobs)
    minimum = scenario.targets.replicas.minimum if scenario.targets is not None else 1
    return policy.rule(
        Setting(
            minimum=max(minimum, 1),
            maximum=maximum,
            ttft_seconds=objectives.ttft_seconds,
            tpot_seconds=objectives.tpot_seconds,
            law=fleet.engine_law,
            limits=fleet.engine_limits,
            cold_start_seconds=fleet.cold_start.mean_seconds,
        )
    )


def _outcome(
    cell: Cell, result: RunResult, oracle_hours: float | None, decisions: Sequence[Decision]
) -> Outcome:
    scenario = cell.scenario
    return Outcome(
        scenario=scenario.name,
        policy=cell.policy.label,
        seed=cell.seed,
        score=score(
            result,
            scenario.objectives,
            dollars_per_hour=scenario.fleet.dollars_per_hour,
            oracle_hours=oracle_hours,
        ),
        timeline=_timeline(result, scenario.objectives, decisions),
    )


def _timeline(result: RunResult, objectives: Objectives, decisions: Sequence[Decision]) -> Timeline:
    shares = result.minutes(objectives.ttft_seconds, objectives.tpot_seconds)
    minute = (result.arrival_seconds // _MINUTE_SECONDS).astype(np.int64)
    count = len(shares)
    offered = np.bincount(minute, minlength=count) / _MINUTE_SECONDS
    slow: list[float | None] = []
    for place in range(count):
        values = result.ttft_seconds[minute == place]
        worst = float(np.quantile(values, 0.99, method="higher")) if len(values) else np.inf
        slow.append(worst if np.isfinite(worst) else None)
    ticks = result.ticks
    return Timeline(
        offered_per_second=tuple(float(value) for value in offered),
        share_ratio=tuple(None if np.isnan(s) else float(s) for s in shares),
        ttft_p99_seconds=tuple(slow),
        tick_seconds=tuple(tick.time_seconds for tick in ticks),
        desired=tuple(tick.desired for tick in ticks),
        ready=tuple(tick.ready for tick in ticks),
        running=tuple(tick.running for tick in ticks),
        waiting=tuple(tick.waiting for tick in ticks),
        decisions=tuple(_told(decisions)),
    )


def _told(decisions: Sequence[Decision]) -> Iterator[DecisionLine]:
    """The decisions that changed something, and those whose reason is new."""
    last = None
    for d in decisions:
        if d.replicas_before != d.replicas_after or d.reason is not last:
            yield DecisionLine(
                time_seconds=d.time_seconds,
                before=d.replicas_before,
                after=d.replicas_after,
                reason=d.reason.value,
                binding=None if d.binding is None else d.binding.value,
                rate_per_second=d.demand.arrival_rate_per_second,
                planned_rate_per_second=d.demand.forecast_rate_per_second,
            )
        last = d.reason


def _key(cell: Cell) -> str:
    """A digest of all that the outcome depends on; of the planner's source only for its own."""
    document = json.loads(_CELL.dump_json(cell))
    # Where the file lies does not matter, what is in it does.
    document["scenario"]["trace_path"] = _file_digest(cell.scenario.trace_path)
    ours = cell.policy.name.startswith(OURS)
    sources = _source_digest(_SOURCES if ours else _SOURCES[:1])
    text = json.dumps([CACHE_VERSION, document, sources], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def _file_digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


# What decides a run of another's rule: the engine and the fleet; reports and searches do not.
_BESIDE_RUNS = frozenset({"report", "search.py", "benchmark.py", "backtest.py", "policies.py"})


@cache
def _source_digest(packages: tuple[str, ...]) -> str:
    root = Path(servingslo.__file__).parent
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            if not _BESIDE_RUNS.intersection(path.relative_to(root).parts):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _store(path: Path, content: bytes) -> None:
    """Write at once or not at all: another process may do the same."""
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
