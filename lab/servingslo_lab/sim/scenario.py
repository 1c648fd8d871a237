"""Definition of a replay: a trace on a fleet, and one policy on it with one seed."""

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import Targets
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.replicas.bounds_in_force import greatest_maximum
from servingslo_lab.sim.baselines.setting import Setting
from servingslo_lab.sim.bounds.oracle import INTERVAL_SECONDS, interval_work
from servingslo_lab.sim.fleets.cluster import Autoscaler
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.past import Past, Remembering
from servingslo_lab.sim.policies import COLD, KNOBS, Policy, is_ours
from servingslo_lab.sim.pools.cases import POOL_CASES, pool_case
from servingslo_lab.sim.pools.fleet import AnyPools
from servingslo_lab.sim.production import Knobs, Production, benchmark_targets
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.standard import SHARE_TARGET, TPOT_SECONDS, TTFT_SECONDS, standard_case
from servingslo_lab.sim.traces.trace import Trace, read_trace
from servingslo_lab.sim.traces.transforms import scaled, window

# Largest fleet without an oracle and without a maximum in the resource.
LARGEST_FLEET = 1000
# A fleet that has run for long has enough replicas for its first minutes. A trace cut from a day
# begins at once with a rate that took hours to build up, so a warm fleet covers this long.
WARM_SECONDS = 240.0
# Initial work a second for each replica of a warm fleet without an oracle.
_WARM_WORK = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A trace on a fleet, or on several pools; fleet is then that of the first pool.

    trace_path: a CSV file: the trace itself, or the source of lengths for a standard case.
    case: name of a standard case, or of one of several pools, whose trace is then generated from
    the seed of each run; None for the file itself. part: of a standard case's time.
    skipped_seconds: skipped at the file's start. scale: factor of the file's rate, by overlaid
    copies. targets: the resource; None for the benchmark's. warm: the fleet begins with the
    replicas that the first minutes need, and without another bound may grow to twice the oracle's
    peak. past: rates before the trace that the planner gets, and a day later those in it; None for
    no history. pool_targets: the resource with a spec of pools, by the names of `pools`; targets
    then has its objectives.
    """

    name: str
    fleet: FleetSpec
    trace_path: str
    case: str | None = None
    part: float = 1.0
    skipped_seconds: float = 0.0
    scale: float = 1.0
    targets: Targets | None = None
    warm: bool = False
    past: Past | None = None
    pools: AnyPools | None = None
    pool_targets: FleetTargets | None = None

    def trace(self, seed: int) -> Trace:
        """The trace for this seed."""
        source = _read(self.trace_path)
        if self.case is not None and self.case in POOL_CASES:
            return pool_case(self.case, source, seed=seed)
        if self.case is not None:
            return standard_case(
                self.case, self.fleet.engine, source, seed=seed, part=self.part
            ).trace
        if self.skipped_seconds > 0:
            end = math.nextafter(source.duration_seconds, math.inf)  # the last arrival is inside
            source = window(source, self.skipped_seconds, end)
        if self.scale != 1.0:
            return scaled(source, self.scale, np.random.default_rng(seed))
        return source

    def targets_of(self, pool: str) -> Targets:
        """The resource as it is for one of several pools."""
        if self.pool_targets is not None:
            return self.pool_targets.pool(pool).targets
        return self.targets or benchmark_targets()

    @property
    def objectives(self) -> Objectives:
        """The objectives of a request: the thresholds of the resource."""
        if self.targets is None:
            return Objectives(
                ttft_seconds=TTFT_SECONDS, tpot_seconds=TPOT_SECONDS, share=SHARE_TARGET
            )
        return objectives_of(self.targets)

    @property
    def bound(self) -> int | None:
        """The largest replica count that resource and fleet allow; None without a bound."""
        stated = [self.fleet.max_replicas, greatest_maximum(self.targets) if self.targets else None]
        return min((bound for bound in stated if bound is not None), default=None)


@cache
def _read(path: str) -> Trace:
    return read_trace(Path(path))


def objectives_of(targets: Targets) -> Objectives:
    """Thresholds of the resource, infinite if there is none, and its highest percentile."""

    def least(metric: LatencyMetric) -> float:
        found = [o.threshold_seconds for o in targets.objectives if o.metric is metric]
        return min(found, default=math.inf)

    return Objectives(
        ttft_seconds=least(LatencyMetric.TTFT),
        tpot_seconds=least(LatencyMetric.TPOT),
        latency_seconds=least(LatencyMetric.LATENCY),
        share=max((o.percentile for o in targets.objectives), default=99.0) / 100.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One policy on one scenario with one seed.

    against_oracle: costs are compared with it. with_timeline: the outcome has the run over time.
    """

    scenario: Scenario
    policy: Policy
    seed: int
    against_oracle: bool = True
    with_timeline: bool = True


def fleet_of(scenario: Scenario, trace: Trace, oracle_replicas: tuple[int, ...]) -> FleetSpec:
    """The fleet with its initial and largest count; oracle_replicas: empty without an oracle."""
    fleet = scenario.fleet
    most = scenario.bound
    if most is None:
        most = 2 * max(oracle_replicas) if scenario.warm and oracle_replicas else LARGEST_FLEET
    if not scenario.warm:
        return replace(fleet, max_replicas=most)
    intervals = max(round(WARM_SECONDS / INTERVAL_SECONDS), 1)
    if oracle_replicas:
        first = max(oracle_replicas[:intervals])
    else:
        work = float(interval_work(fleet, trace)[:intervals].max())
        first = max(math.ceil(work / _WARM_WORK), 1)
    least = max(scenario.targets.replicas.minimum, 1) if scenario.targets is not None else 1
    return replace(fleet, initial_replicas=max(min(first, most), least), max_replicas=most)


def autoscaler_of(policy: Policy, scenario: Scenario, fleet: FleetSpec, trace: Trace) -> Autoscaler:
    """A new autoscaler for one run of this trace."""
    maximum = fleet.max_replicas or LARGEST_FLEET
    objectives = scenario.objectives
    if is_ours(policy.name):
        targets = scenario.targets or benchmark_targets()
        bounded = replace(targets.replicas, maximum=targets.replicas.maximum or maximum)
        knobs = Knobs(batching=True, admission=True) if policy.name == KNOBS else Knobs()
        planner = Production(replace(targets, replicas=bounded), knobs)
        if scenario.past is None or policy.name == COLD:
            return planner
        return Remembering(planner, scenario.past, trace.arrival_seconds)
    minimum = scenario.targets.replicas.minimum if scenario.targets is not None else 1
    return policy.rule(
        Setting(
            minimum=max(minimum, 1),
            maximum=maximum,
            ttft_seconds=objectives.ttft_seconds,
            tpot_seconds=objectives.tpot_seconds,
            percentile=100.0 * objectives.share,
            law=fleet.engine_law,
            limits=fleet.engine_limits,
            cold_start_seconds=fleet.cold_start.mean_seconds,
            engine=fleet.engine,
        )
    )
