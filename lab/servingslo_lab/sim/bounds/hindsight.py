"""The best schedules in hindsight, found by trying them on the trace itself.

They are a refined oracle, the best constant replica count, and the best rule that knows mean demand
one cold start ahead. All were run, so their numbers are achievable; none is a proven minimum.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from servingslo_lab.sim.baselines.clairvoyant import Foresight, Static
from servingslo_lab.sim.bounds.oracle import INTERVAL_SECONDS, Oracle, Schedule, interval_work
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.replicas.backend import Backend
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import Trace

LARGEST_ATTEMPTS = 36
_WORK_STEPS = 8
_LEAST_WORK, _MOST_WORK = 0.2, 1.2
_FIRST_WORK, _GROWTH = 0.8, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A schedule that was run. setting: the replica count or work per replica that was found."""

    setting: float
    result: RunResult


def refined(
    oracle: Oracle,
    fleet: FleetSpec,
    trace: Trace,
    objectives: Objectives,
    *,
    backend: Backend | None = None,
    attempts: int = LARGEST_ATTEMPTS,
) -> Oracle:
    """The oracle with one replica less in each interval, if the trace still meets its share.

    Tries intervals in order of the remaining load, many at once, half as many after each failure.
    At most one replica could still be saved in any interval that failed alone. So the gap to the
    least schedule of this interval length is small, but not proven.
    """
    replicas = np.array(oracle.replicas)
    work = interval_work(fleet, trace)[: len(replicas)]
    fixed = replicas <= 1
    best, batch = oracle, len(replicas)
    for _ in range(attempts):
        risk = np.where(fixed, np.inf, work / np.maximum(replicas - 1, 1))
        order = np.argsort(risk, kind="stable")
        chosen = order[np.isfinite(risk[order])][:batch]
        if not len(chosen):
            break
        trial = replicas.copy()
        trial[chosen] -= 1
        tried = _followed(trial.tolist(), fleet, trace, backend)
        if objectives.share_of(tried) >= objectives.share:
            replicas = trial
            fixed |= replicas <= 1
            best = Oracle(
                replicas=tuple(int(n) for n in trial),
                work_per_replica=oracle.work_per_replica,
                result=tried,
            )
        elif len(chosen) == 1:
            fixed[chosen] = True
        else:
            batch = max(len(chosen) // 2, 1)
    return best


def _followed(
    replicas: list[int], fleet: FleetSpec, trace: Trace, backend: Backend | None
) -> RunResult:
    free = replace(
        fleet,
        initial_replicas=replicas[0],
        max_replicas=None,
        cold_start=ColdStart(mean_seconds=1e-3, variation_ratio=0.0),
        mean_seconds_to_failure=None,
        gpu_quota=None,
        scrape_interval_seconds=INTERVAL_SECONDS,
        scrape_lag_seconds=0.0,
    )
    return simulate(free, trace, Schedule(tuple(replicas)), seed=0, backend=backend)


def best_static(
    fleet: FleetSpec,
    trace: Trace,
    objectives: Objectives,
    *,
    most: int,
    seed: int,
    backend: Backend | None = None,
) -> Tried | None:
    """The least constant replica count up to `most` that meets the share; None if none does."""

    def attempt(count: int) -> RunResult:
        held = replace(fleet, initial_replicas=count, max_replicas=None)
        return simulate(held, trace, Static(count), seed=seed, backend=backend)

    # Counts far above demand are not informative, so the search starts from the trace's work.
    low, high, best = 0, most + 1, None
    guess = math.ceil(float(interval_work(fleet, trace).mean()) / _FIRST_WORK)
    while high - low > 1:
        middle = min(max(guess, low + 1), high - 1) if best is None else (low + high) // 2
        result = attempt(middle)
        guess = math.ceil(middle * _GROWTH)
        if objectives.share_of(result) < objectives.share:
            low = middle
        else:
            high, best = middle, Tried(setting=middle, result=result)
    return best


def best_foresight(
    fleet: FleetSpec,
    trace: Trace,
    objectives: Objectives,
    *,
    seed: int,
    backend: Backend | None = None,
) -> Tried | None:
    """The cheapest rule of its kind that meets the share; None if none does."""
    work = interval_work(fleet, trace)

    def attempt(allowed: float) -> RunResult:
        rule = Foresight(
            work,
            interval_seconds=INTERVAL_SECONDS,
            per_replica=allowed,
            ahead_seconds=fleet.cold_start.mean_seconds,
        )
        return simulate(fleet, trace, rule, seed=seed, backend=backend)

    return _most_that_holds(attempt, objectives)


def _most_that_holds(attempt: Callable[[float], RunResult], objectives: Objectives) -> Tried | None:
    low, high, best = _LEAST_WORK, _MOST_WORK, None
    for _ in range(_WORK_STEPS):
        middle = (low + high) / 2
        result = attempt(middle)
        if objectives.share_of(result) < objectives.share:
            high = middle
        else:
            low, best = middle, Tried(setting=middle, result=result)
    return best
