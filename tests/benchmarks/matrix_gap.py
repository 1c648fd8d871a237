"""Why the oracle costs more than the proven lower bound: percentiles, whole replicas, and the rest.

The bound counts the engine time of requests at full batches. A fleet that is large and steady needs
more than that to meet percentiles: what it can take is found by trying. A fleet of fractional
replicas that took as much in every minute would cost the bound times the first factor; with whole
replicas in every minute, times the second. What the oracle costs over that is the third: arrivals
that are not steady within a minute, small fleets, and requests that outlive their minute cost more;
a hundredth of the requests that may miss, all in the worst minutes, saves.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.benchmarks.simulator import Still

from servingslo.models.engine.service_time import FloatArray
from servingslo.units import SECONDS_PER_HOUR
from servingslo_lab.sim.bounds.bound import least_work_seconds
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.scenario import Scenario
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.workloads import constant, generated, lengths_of

SOURCE = Path(__file__)
MINUTE_SECONDS = 60.0
# Large enough that a replica more or less says little; the first part fills the fleet.
_REPLICAS, _SECONDS, _FILLING_SECONDS = 24, 720.0, 120.0
_LEAST, _MOST, _STEPS = 0.1, 1.0, 7
_PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Replica-hours of fleets between bound and oracle.

    fluid_hours: of fractional replicas that take as much as those of a large steady fleet, minute
    by minute. whole_hours: of whole ones.
    """

    fluid_hours: float
    whole_hours: float


def gap_of(where: Scenario, seed: int, taken: float) -> Gap:
    """The fleets between bound and oracle on this trace, whose replicas take so much work."""
    trace = where.trace(seed)
    work = _least_work(where.fleet, trace)
    minute = (trace.arrival_seconds // MINUTE_SECONDS).astype(np.int64)
    needed = np.bincount(minute, weights=work) / MINUTE_SECONDS / taken
    whole = sum(max(math.ceil(count - 1e-9), 1) for count in needed)
    return Gap(
        fluid_hours=float(work.sum()) / taken / SECONDS_PER_HOUR,
        whole_hours=whole * MINUTE_SECONDS / SECONDS_PER_HOUR,
    )


def _least_work(fleet: FleetSpec, trace: Trace) -> FloatArray:
    """As the bound has it, fixed costs laid on tokens or on memory, whichever is more."""
    return max((least_work_seconds(fleet, trace, part) for part in _PARTS), key=np.sum)


def capacity(where: Scenario, seed: int) -> float:
    """Least work a second that each of many replicas takes at steady demand, the share just met."""
    fleet, objectives, trace = where.fleet, where.objectives, where.trace(seed)
    mean_work_seconds = float(_least_work(fleet, trace).mean())
    lengths = lengths_of(trace)
    held = FleetSpec(
        engine=fleet.engine, law=fleet.law, limits=fleet.limits, initial_replicas=_REPLICAS
    )

    def met(load: float) -> bool:
        course = constant(load * _REPLICAS / mean_work_seconds, _SECONDS)
        offered = generated(course, lengths, np.random.default_rng(1))
        found = simulate(held, offered, Still(), seed=1)
        steady = offered.arrival_seconds > _FILLING_SECONDS
        good = found.good(
            objectives.ttft_seconds, objectives.tpot_seconds, objectives.latency_seconds
        )
        return float(good[steady].mean()) >= objectives.share

    low, high = _LEAST, _MOST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return low
