"""A cell on two pools: a policy for each of them, and one score for the requests through both.

Each pool has its own autoscaler of the policy, which observes only the pool's engines. It gets the
objectives of its pool: the first token for prefill, the later tokens for decode.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import Targets
from servingslo.traces.trace import Trace
from servingslo.units import SECONDS_PER_HOUR
from servingslo_lab.sim.baselines.clairvoyant import Static
from servingslo_lab.sim.cluster import Autoscaler
from servingslo_lab.sim.fleet import FleetSpec
from servingslo_lab.sim.oracle import interval_work
from servingslo_lab.sim.outcome import Outcome, PoolLine, nothing_found, outcome_of, told
from servingslo_lab.sim.past import Remembering
from servingslo_lab.sim.policies import STATIC
from servingslo_lab.sim.pools.cluster import PoolsResult, simulate_pools
from servingslo_lab.sim.pools.fleet import PoolsSpec
from servingslo_lab.sim.production import Production, benchmark_targets
from servingslo_lab.sim.result import Tick
from servingslo_lab.sim.scenario import LARGEST_FLEET, Cell, Scenario, autoscaler_of, fleet_of
from servingslo_lab.sim.scoring import Objectives, PoolCost

PREFILL, DECODE = "prefill", "decode"
DECIDES = {
    PREFILL: frozenset({LatencyMetric.TTFT, LatencyMetric.QUEUE_TIME}),
    DECODE: frozenset({LatencyMetric.TPOT}),
}
"""The objectives of each pool."""
_FIRST_WORK, _GROWTH = 0.8, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Constant replica counts of both pools that were run."""

    prefill: int
    decode: int
    result: PoolsResult


def run_pools(cell: Cell, spec: PoolsSpec) -> Outcome:
    """The outcome of a policy on both pools."""
    scenario = cell.scenario
    trace = scenario.trace(cell.seed)
    if cell.policy.name == STATIC:
        most = _most(scenario, spec)
        pair = best_pair(spec, trace, scenario.objectives, most=most, seed=cell.seed)
        return nothing_found(cell) if pair is None else _outcome(cell, spec, pair.result, {})
    fleets = {
        pool: _with_counts(scenario, pool, fleet, part) for pool, fleet, part in _parts(spec, trace)
    }
    scalers = {
        pool: autoscaler_of(cell.policy, _of_pool(scenario, pool, fleet), fleet, trace)
        for pool, fleet in fleets.items()
    }
    result = simulate_pools(
        replace(spec, prefill=fleets[PREFILL], decode=fleets[DECODE]),
        trace,
        scalers[PREFILL],
        scalers[DECODE],
        seed=cell.seed,
    )
    return _outcome(cell, spec, result, scalers)


def pool_targets(targets: Targets, pool: str) -> Targets:
    """The resource with only this pool's objectives."""
    chosen = tuple(o for o in targets.objectives if o.metric in DECIDES[pool])
    return replace(targets, objectives=chosen)


def best_pair(
    spec: PoolsSpec, trace: Trace, objectives: Objectives, *, most: tuple[int, int], seed: int
) -> Pair | None:
    """The cheapest found pair of constant counts that meets the share; None if none does.

    most: of prefill and of decode.
    Starts with sufficient counts, minimizes one and then the other, in both orders, and returns the
    cheaper pair. Requests can miss in either pool, so a pair between the two may be cheaper; it is
    not searched.
    """

    def attempt(prefill: int, decode: int) -> Pair:
        held = replace(
            spec,
            prefill=replace(spec.prefill, initial_replicas=prefill, max_replicas=None),
            decode=replace(spec.decode, initial_replicas=decode, max_replicas=None),
        )
        result = simulate_pools(held, trace, Static(prefill), Static(decode), seed=seed)
        return Pair(prefill=prefill, decode=decode, result=result)

    def met(pair: Pair) -> bool:
        return objectives.share_of(pair.result.result) >= objectives.share

    enough = _enough(attempt, met, _guesses(spec, trace), most)
    if enough is None:
        return None
    found = []
    for prefill_first in (True, False):
        pair = enough
        for of_prefill in (prefill_first, not prefill_first):
            pair = _fewest(attempt, met, pair, of_prefill=of_prefill)
        found.append(pair)
    return min(found, key=lambda pair: sum(one.dollars for one in costs_of(spec, pair.result)))


def _enough(
    attempt: Callable[[int, int], Pair],
    met: Callable[[Pair], bool],
    counts: tuple[int, int],
    most: tuple[int, int],
) -> Pair | None:
    """Increase the counts until they meet the share, or both are at their bounds."""
    while True:
        prefill, decode = min(counts[0], most[0]), min(counts[1], most[1])
        pair = attempt(prefill, decode)
        if met(pair):
            return pair
        if (prefill, decode) == most:
            return None
        counts = (math.ceil(counts[0] * _GROWTH), math.ceil(counts[1] * _GROWTH))


def _fewest(
    attempt: Callable[[int, int], Pair],
    met: Callable[[Pair], bool],
    enough: Pair,
    *,
    of_prefill: bool,
) -> Pair:
    """The least count of one pool with which the pair still meets the share."""
    low, best = 0, enough
    while (high := best.prefill if of_prefill else best.decode) - low > 1:
        middle = (low + high) // 2
        pair = attempt(middle, best.decode) if of_prefill else attempt(best.prefill, middle)
        if met(pair):
            best = pair
        else:
            low = middle
    return best


def _guesses(spec: PoolsSpec, trace: Trace) -> tuple[int, int]:
    prefill, decode = (
        max(math.ceil(float(interval_work(fleet, part).mean()) / _FIRST_WORK), 1)
        for _, fleet, part in _parts(spec, trace)
    )
    return prefill, decode


def _parts(spec: PoolsSpec, trace: Trace) -> Iterator[tuple[str, FleetSpec, Trace]]:
    """Each pool with its part of the work: the first token, or the others without the prompt."""
    ones = np.ones_like(trace.output_tokens)
    yield PREFILL, spec.prefill, replace(trace, output_tokens=ones)
    yield DECODE, replace(spec.decode, cached_ratio=1.0), trace


def _with_counts(scenario: Scenario, pool: str, fleet: FleetSpec, part: Trace) -> FleetSpec:
    counts = fleet_of(_of_pool(scenario, pool, fleet), part, ())
    return replace(counts, cached_ratio=fleet.cached_ratio if pool == PREFILL else 0.0)


def _of_pool(scenario: Scenario, pool: str, fleet: FleetSpec) -> Scenario:
    targets = pool_targets(scenario.targets or benchmark_targets(), pool)
    return replace(scenario, fleet=fleet, pools=None, targets=targets)


def _most(scenario: Scenario, spec: PoolsSpec) -> tuple[int, int]:
    prefill, decode = (
        _of_pool(scenario, pool, fleet).bound or LARGEST_FLEET
        for pool, fleet in ((PREFILL, spec.prefill), (DECODE, spec.decode))
    )
    return prefill, decode


def costs_of(spec: PoolsSpec, result: PoolsResult) -> tuple[PoolCost, PoolCost]:
    """The cost of each pool."""
    prefill, decode = (
        PoolCost(
            name=name,
            replica_hours=seconds / SECONDS_PER_HOUR,
            dollars=seconds / SECONDS_PER_HOUR * fleet.dollars_per_hour,
        )
        for name, fleet, seconds in (
            (PREFILL, spec.prefill, result.prefill_replica_seconds),
            (DECODE, spec.decode, result.decode_replica_seconds),
        )
    )
    return prefill, decode


def _outcome(
    cell: Cell, spec: PoolsSpec, result: PoolsResult, scalers: dict[str, Autoscaler]
) -> Outcome:
    """The total score, with the costs, replicas and decisions of each pool."""
    ticks = {PREFILL: result.prefill_ticks, DECODE: result.decode_ticks}
    whole = replace(result.result, ticks=_sums(*ticks.values()))
    costs = costs_of(spec, result)
    hours = max(sum(one.replica_hours for one in costs), math.ulp(1.0))
    price = sum(one.dollars for one in costs) / hours
    found = outcome_of(cell, whole, None, [], dollars_per_hour=price)
    if found.score is None or found.timeline is None:
        raise AssertionError(cell.policy.name)
    actions = sum(replace(whole, ticks=of_pool).scale_actions for of_pool in ticks.values())
    lines = [
        replace(line, pool=pool)
        for pool, scaler in scalers.items()
        if isinstance(scaler, Production | Remembering)
        for line in told(scaler.decisions)
    ]
    return replace(
        found,
        score=replace(
            found.score,
            pools=costs,
            actions_per_hour=actions / (whole.duration_seconds / SECONDS_PER_HOUR),
        ),
        timeline=replace(
            found.timeline,
            pools=tuple(_line(pool, of_pool) for pool, of_pool in ticks.items()),
            decisions=tuple(sorted(lines, key=lambda line: line.time_seconds)),
        ),
    )


def _sums(prefill: Sequence[Tick], decode: Sequence[Tick]) -> tuple[Tick, ...]:
    return tuple(
        Tick(
            time_seconds=one.time_seconds,
            desired=one.desired + other.desired,
            ready=one.ready + other.ready,
            running=one.running + other.running,
            waiting=one.waiting + other.waiting,
        )
        for one, other in zip(prefill, decode, strict=True)
    )


def _line(name: str, ticks: Sequence[Tick]) -> PoolLine:
    return PoolLine(
        name=name,
        ready=tuple(tick.ready for tick in ticks),
        waiting=tuple(tick.waiting for tick in ticks),
    )
