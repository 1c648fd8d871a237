"""Days with office hours: what two weeks of past rates are worth to the planner.

Sunday evening to Tuesday noon, after two weeks that were not served but counted. The past is
handed over as the operator reads it: up to fourteen days in bins of five minutes with four digits,
at the first tick and again a day later, what was served by then included.
"""

import hashlib
import math
import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter
from tests.benchmarks import seasons
from tests.benchmarks.matrix import COLD_START_SECONDS, KEPT, SMALL, TRACE, outcomes
from tests.benchmarks.seasons import BIN_SECONDS, DAY, DAY_DEVIATION, HOUR, MONDAY, offices

from servingslo.adapters.prometheus import past_rates
from servingslo.estimation.season import RateHistory
from servingslo.policy.inputs import Observation
from servingslo.sim.backtest import oracle_of
from servingslo.sim.cluster import Wanted, simulate
from servingslo.sim.fleet import ColdStart, FleetSpec
from servingslo.sim.kept import key_of, store
from servingslo.sim.outcome import Outcome, outcome_of
from servingslo.sim.policies import FORESIGHT, ORACLE, OURS, STATIC, policy_of
from servingslo.sim.production import Production, benchmark_targets
from servingslo.sim.scenario import Cell, Scenario, fleet_of
from servingslo.sim.trace import Trace, read_trace, write_trace
from servingslo.sim.workloads import RateCourse, generated, lengths_of

OFFICE_SEEDS = (1, 2)
NAME = "l4 offices"
WITH_HISTORY, WITHOUT_HISTORY = f"{OURS}, two weeks of history", f"{OURS}, no history"
# The strongest rules on slow traces, at the settings that the search found for the card.
PEERS = (
    "hpa-busy", "keda-guide", "hpa-kv:tuned", "keda-slo:tuned", "wva-v1:tuned",
    "wva-queueing:tuned", "dynamo-threshold:tuned", "dynamo-throughput:tuned",
)  # fmt: skip
# Requests a second at night and in office hours; the small card takes about two.
LOW, HIGH = 1.0, 16.0
# The past begins on a Monday, two weeks before the Monday that is served.
BEGIN, END = MONDAY + 13.75 * DAY, MONDAY + 15.5 * DAY
_COURSE_STEP_SECONDS = 60.0
# From before the rise until what it left behind is served, seconds after the begin.
MORNINGS = tuple((day * DAY + 8.9 * HOUR, day * DAY + 9.5 * HOUR) for day in (0.25, 1.25))
_OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)


def _levels(rng: np.random.Generator) -> np.ndarray:
    """How busy each day is, past and served, over what is usual."""
    return np.exp(rng.normal(0.0, DAY_DEVIATION, math.ceil((END - MONDAY) / DAY)))


def _rates(times: np.ndarray, seed: int) -> np.ndarray:
    levels = _levels(np.random.default_rng([seed, 7]))
    return offices(times, LOW, HIGH) * levels[((times - MONDAY) // DAY).astype(int)]


def served(seed: int) -> Trace:
    """The days that are served, from second 0."""
    # The last moment belongs to the day before it.
    times = np.append(np.arange(BEGIN, END, _COURSE_STEP_SECONDS), END - 1e-3)
    course = RateCourse(
        times_seconds=tuple((times - BEGIN).tolist()),
        rates_per_second=tuple(_rates(times, seed).tolist()),
    )
    lengths = lengths_of(read_trace(TRACE))
    return generated(course, lengths, np.random.default_rng([seed, 8]))


def past(trace: Trace, seed: int, until: float) -> RateHistory:
    """What Prometheus remembers `until` seconds after the begin: fourteen days, bin by bin."""
    rng = np.random.default_rng([seed, 9])
    middles = np.arange(MONDAY, BEGIN, BIN_SECONDS) + 0.5 * BIN_SECONDS
    before = rng.poisson(_rates(middles, seed) * BIN_SECONDS)
    whole = int(until // BIN_SECONDS)
    since = np.bincount((trace.arrival_seconds // BIN_SECONDS).astype(int), minlength=whole)[:whole]
    counts = np.concatenate([before, since])[-int(past_rates.HISTORY_DAYS * DAY / BIN_SECONDS) :]
    return RateHistory(
        start_seconds=BEGIN + whole * BIN_SECONDS - len(counts) * BIN_SECONDS,
        bin_seconds=BIN_SECONDS,
        rates_per_second=tuple(float(f"{count / BIN_SECONDS:.4g}") for count in counts),
    )


class Remembering:
    """The planner on the days that are served; trace: None for a Prometheus that has just begun."""

    def __init__(self, planner: Production, trace: Trace | None, seed: int) -> None:
        self._planner, self._trace, self._seed = planner, trace, seed
        self._due = 0.0

    def decide(self, observation: Observation) -> Wanted:
        """What the planner decides, told what day it is."""
        now, history = observation.time_seconds, None
        if self._trace is not None and now >= self._due:
            history = past(self._trace, self._seed, now)
            self._due = now + DAY
        dated = replace(observation, time_seconds=BEGIN + now, history=history)
        return self._planner.decide(dated)


def scenario_of(seed: int, folder: Path = KEPT) -> Scenario:
    """These days on the small card."""
    source = hashlib.sha256(Path(__file__).read_bytes() + Path(seasons.__file__).read_bytes())
    path = folder / f"offices-{seed}-{source.hexdigest()[:8]}.csv"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_trace(served(seed), path)
    return Scenario(
        name=NAME,
        fleet=FleetSpec(engine=SMALL, cold_start=ColdStart(mean_seconds=COLD_START_SECONDS)),
        trace_path=str(path),
        warm=True,
    )


def outcome_of_ours(seed: int, history: bool, folder: Path = KEPT) -> Outcome:
    """Ours with two weeks of history or with none, from those that are kept if possible."""
    name = WITH_HISTORY if history else WITHOUT_HISTORY
    cell = Cell(scenario=scenario_of(seed, folder), policy=policy_of(OURS), seed=seed)
    read = Path(past_rates.__file__).read_bytes() + Path(__file__).read_bytes()
    source = hashlib.sha256(read).hexdigest()[:16]
    path = folder / f"{key_of(cell)}-offices-{history:d}-{source}.json"
    if path.exists():
        return _OUTCOME.validate_json(path.read_bytes())
    oracle = oracle_of(cell, folder)
    trace = cell.scenario.trace(seed)
    fleet = fleet_of(cell.scenario, trace, oracle.replicas)
    planner = Production(benchmark_targets(max_replicas=fleet.max_replicas))
    told = Remembering(planner, trace if history else None, seed)
    result = simulate(fleet, trace, told, seed=seed)
    score = oracle.outcome.score
    found = outcome_of(cell, result, score.replica_hours if score else None, [])
    found = replace(found, policy=name)
    store(path, _OUTCOME.dump_json(found))
    return found


def outcomes_of_offices(processes: int, seeds: Sequence[int] = OFFICE_SEEDS) -> list[Outcome]:
    """Ours twice, and others."""
    others = outcomes(
        [
            Cell(scenario=scenario_of(seed), policy=policy_of(name, tuned_for=SMALL), seed=seed)
            for seed in seeds
            for name in (ORACLE, FORESIGHT, STATIC, *PEERS)
        ],
        processes,
    )
    with multiprocessing.get_context("spawn").Pool(max(processes, 1)) as pool:
        ours = pool.starmap(outcome_of_ours, product(seeds, (True, False)))
    return [*ours, *others]


def morning_share(outcome: Outcome) -> float | None:
    """Share in SLO of the requests around the rise of both working days."""
    line = outcome.timeline
    if line is None:
        return None
    met = offered = 0.0
    for minute, rate in enumerate(line.offered_per_second):
        share = line.share_ratio[minute]
        if share is not None and any(a <= 60.0 * minute < b for a, b in MORNINGS):
            met += rate * share
            offered += rate
    return met / offered if offered else None
