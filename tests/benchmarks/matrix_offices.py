"""Days with office hours: what two weeks of past rates are worth to the planner.

Sunday evening to Tuesday noon, after two weeks that were not served but counted. The past is
handed over as the operator reads it (`servingslo_lab.sim.past`).
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.benchmarks import seasons
from tests.benchmarks.matrix import COLD_START_SECONDS, KEPT, SMALL, TRACE, outcomes
from tests.benchmarks.seasons import BIN_SECONDS, DAY, DAY_DEVIATION, HOUR, MONDAY, offices

from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.past import Past
from servingslo_lab.sim.policies import FORESIGHT, ORACLE, OURS, STATIC, Policy, policy_of
from servingslo_lab.sim.scenario import Cell, Scenario
from servingslo_lab.sim.traces.trace import Trace, read_trace
from servingslo_lab.sim.traces.trace_files import write_trace
from servingslo_lab.sim.traces.workloads import RateCourse, generated, lengths_of

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


def past(seed: int) -> Past:
    """What Prometheus remembers of the two weeks before the begin, bin by bin."""
    rng = np.random.default_rng([seed, 9])
    middles = np.arange(MONDAY, BEGIN, BIN_SECONDS) + 0.5 * BIN_SECONDS
    counts = rng.poisson(_rates(middles, seed) * BIN_SECONDS)
    rates = tuple(float(f"{count / BIN_SECONDS:.4g}") for count in counts)
    return Past(begin_seconds=BEGIN, rates_per_second=rates)


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


def outcomes_of_offices(processes: int, seeds: Sequence[int] = OFFICE_SEEDS) -> list[Outcome]:
    """Ours twice, and others."""
    return outcomes([*_cells_of_ours(seeds), *_cells_of_others(seeds)], processes)


def _cells_of_ours(seeds: Sequence[int]) -> list[Cell]:
    return [
        Cell(
            scenario=replace(scenario_of(seed), past=known),
            policy=Policy(label=label, name=OURS),
            seed=seed,
        )
        for seed in seeds
        for label, known in ((WITH_HISTORY, past(seed)), (WITHOUT_HISTORY, None))
    ]


def _cells_of_others(seeds: Sequence[int]) -> list[Cell]:
    return [
        Cell(scenario=scenario_of(seed), policy=policy_of(name, tuned_for=SMALL), seed=seed)
        for seed in seeds
        for name in (ORACLE, FORESIGHT, STATIC, *PEERS)
    ]


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
