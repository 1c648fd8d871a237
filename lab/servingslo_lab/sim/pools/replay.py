"""A cell on several pools: a policy for all of them, and one score for the requests.

The joint planner observes all pools. Every other policy has an autoscaler for each pool, which
observes only that pool's engines. Of prefill and decode it gets the objectives of its pool: the
first token for prefill, the later tokens for decode.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from servingslo.models.objectives import LatencyMetric
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Targets
from servingslo.policy.pools.inputs import Role
from servingslo.units import SECONDS_PER_HOUR
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.result import Tick
from servingslo_lab.sim.fleets.service import RULES
from servingslo_lab.sim.outcome import Outcome, PoolLine, nothing_found, outcome_of, told
from servingslo_lab.sim.past import Remembering
from servingslo_lab.sim.policies import (
    COLD,
    EACH,
    OPTIMUM,
    OURS,
    RATIO,
    RATIO_RULE,
    SINGLE,
    STATIC,
    policy_of,
)
from servingslo_lab.sim.pools.cluster import simulate_pools
from servingslo_lab.sim.pools.fleet import AnyPools, VariantsSpec
from servingslo_lab.sim.pools.hindsight import best_counts, cheapest_single, parts_of
from servingslo_lab.sim.pools.optimum import optimum
from servingslo_lab.sim.pools.production import ProductionPools, fleet_targets
from servingslo_lab.sim.pools.scaling import Each, FixedRatio, FleetAutoscaler
from servingslo_lab.sim.pools.together import PoolsResult
from servingslo_lab.sim.production import Production
from servingslo_lab.sim.replicas.routing import LEAST_LOADED, LEAST_OF_TWO
from servingslo_lab.sim.scenario import LARGEST_FLEET, Cell, Scenario, autoscaler_of, fleet_of
from servingslo_lab.sim.scoring import PoolCost
from servingslo_lab.sim.traces.trace import Trace

DECIDES = {
    Role.PREFILL: frozenset({LatencyMetric.TTFT, LatencyMetric.QUEUE_TIME}),
    Role.DECODE: frozenset({LatencyMetric.TPOT}),
}
"""The objectives of each role for autoscalers that see one pool."""


def run_pools(cell: Cell, spec: AnyPools) -> Outcome:
    """The outcome of a policy on all pools."""
    scenario = cell.scenario
    trace = scenario.trace(cell.seed)
    if cell.policy.name == OPTIMUM and isinstance(spec, VariantsSpec):
        best = optimum(spec, trace, scenario.objectives)
        return nothing_found(cell) if best is None else _outcome(cell, spec, best, None)
    if cell.policy.name in {STATIC, SINGLE}:
        search = best_counts if cell.policy.name == STATIC else cheapest_single
        most = _most(scenario, spec)
        found = search(spec, trace, scenario.objectives, most=most, seed=cell.seed)
        return nothing_found(cell) if found is None else _outcome(cell, spec, found.result, None)
    fleets = first_fleets(scenario, spec, trace)
    scaler = scaler_of(cell, spec, fleets, trace)
    result = simulate_pools(spec.with_fleets(fleets), trace, scaler, seed=cell.seed)
    return _outcome(cell, spec, result, scaler)


def scaler_of(
    cell: Cell, spec: AnyPools, fleets: Mapping[str, FleetSpec], trace: Trace
) -> FleetAutoscaler:
    """A new autoscaler of all pools for one run of this trace."""
    scenario, policy = cell.scenario, cell.policy
    if policy.name in {OURS, COLD}:
        own = {name: scenario.targets_of(name) for name in fleets}
        targets = fleet_targets(own, spec, fleets, scenario.pool_targets)
        past = None if policy.name == COLD else scenario.past
        return ProductionPools(targets, past, trace.arrival_seconds)
    rule = policy
    if policy.name == EACH:
        rule = replace(policy, name=OURS)
    elif policy.name == RATIO:
        rule = policy_of(RATIO_RULE)
    scalers = {
        name: autoscaler_of(rule, _of_pool(scenario, spec, name, fleet), fleet, trace)
        for name, fleet in fleets.items()
    }
    if policy.name != RATIO:
        return Each(scalers)
    prefill, decode = fleets
    most = _most(scenario, spec)
    best = best_counts(spec, trace, scenario.objectives, most=most, seed=cell.seed)
    ratio = 1.0 if best is None else best.counts[prefill] / best.counts[decode]
    return FixedRatio(decode, scalers[decode], prefill, ratio=ratio, most=most[prefill])


def pool_targets(targets: Targets, role: Role) -> Targets:
    """The resource with only the objectives of this role; all of them for Combined pools."""
    decided = DECIDES.get(role)
    if decided is None:
        return targets
    chosen = tuple(o for o in targets.objectives if o.metric in decided)
    return replace(targets, objectives=chosen)


def first_fleets(scenario: Scenario, spec: AnyPools, trace: Trace) -> dict[str, FleetSpec]:
    """The pools with their initial and largest counts."""
    found = {}
    for name, fleet, part in parts_of(spec, trace):
        counted = fleet_of(_of_pool(scenario, spec, name, fleet), part, ())
        found[name] = replace(counted, cached_ratio=spec.fleets[name].cached_ratio)
    if scenario.warm and isinstance(spec, VariantsSpec):
        return _warm_variants(scenario, spec, found)
    return found


def _warm_variants(
    scenario: Scenario, spec: VariantsSpec, alone: Mapping[str, FleetSpec]
) -> dict[str, FleetSpec]:
    """Enough replicas for the first minutes, without a search for the best mixture.

    alone: each pool with the count that it needs alone. By load, the pool that is cheapest alone
    has it and the others have one replica. Evenly by pod, as many pods are needed as the slowest
    pool needs alone. By weights, each pool has its share.
    """
    counts = {name: fleet.initial_replicas for name, fleet in alone.items()}
    cheapest = min(counts, key=lambda name: counts[name] * alone[name].dollars_per_hour)
    if spec.weights:
        whole = math.fsum(spec.weights.values())
        first = {n: math.ceil(counts[n] * spec.weights[n] / whole) for n in counts}
    else:
        by_load = RULES[spec.routing] in {LEAST_LOADED, LEAST_OF_TWO}
        needed = counts[cheapest] if by_load else max(counts.values()) - len(counts) + 1
        first = {name: needed if name == cheapest else 1 for name in counts}
    return {
        name: replace(
            fleet,
            initial_replicas=max(first[name], scenario.targets_of(name).replicas.minimum, 1),
        )
        for name, fleet in alone.items()
    }


def _of_pool(scenario: Scenario, spec: AnyPools, name: str, fleet: FleetSpec) -> Scenario:
    targets = pool_targets(scenario.targets_of(name), spec.roles[name])
    return replace(scenario, fleet=fleet, pools=None, pool_targets=None, targets=targets)


def _most(scenario: Scenario, spec: AnyPools) -> dict[str, int]:
    return {
        name: _of_pool(scenario, spec, name, fleet).bound or LARGEST_FLEET
        for name, fleet in spec.fleets.items()
    }


def costs_of(spec: AnyPools, result: PoolsResult) -> tuple[PoolCost, ...]:
    """The cost of each pool."""
    return tuple(
        PoolCost(
            name=name,
            replica_hours=result.replica_seconds[name] / SECONDS_PER_HOUR,
            dollars=result.replica_seconds[name] / SECONDS_PER_HOUR * fleet.dollars_per_hour,
        )
        for name, fleet in spec.fleets.items()
    )


def _outcome(
    cell: Cell, spec: AnyPools, result: PoolsResult, scaler: FleetAutoscaler | None
) -> Outcome:
    """The total score, with the costs, replicas and decisions of each pool."""
    whole = replace(result.result, ticks=_sums(list(result.ticks.values())))
    costs = costs_of(spec, result)
    hours = max(sum(one.replica_hours for one in costs), math.ulp(1.0))
    price = sum(one.dollars for one in costs) / hours
    found = outcome_of(cell, whole, None, [], dollars_per_hour=price)
    if found.score is None:
        raise AssertionError(cell.policy.name)
    actions = sum(replace(whole, ticks=of_pool).scale_actions for of_pool in result.ticks.values())
    score = replace(
        found.score,
        pools=costs,
        actions_per_hour=actions / (whole.duration_seconds / SECONDS_PER_HOUR),
    )
    if found.timeline is None:
        return replace(found, score=score)
    lines = [
        replace(line, pool=pool) for pool in spec.fleets for line in told(_decisions(scaler, pool))
    ]
    timeline = replace(
        found.timeline,
        pools=tuple(_line(pool, of_pool) for pool, of_pool in result.ticks.items()),
        decisions=tuple(sorted(lines, key=lambda line: line.time_seconds)),
    )
    return replace(found, score=score, timeline=timeline)


def _decisions(scaler: FleetAutoscaler | None, pool: str) -> Sequence[Decision]:
    """The planner's decisions for a pool; empty for other rules."""
    if isinstance(scaler, Each):
        own = scaler.scalers[pool]
        return own.decisions if isinstance(own, Production | Remembering) else ()
    return scaler.of_pool(pool) if isinstance(scaler, ProductionPools) else ()


def _sums(ticks: Sequence[Sequence[Tick]]) -> tuple[Tick, ...]:
    return tuple(
        Tick(
            time_seconds=each[0].time_seconds,
            desired=sum(tick.desired for tick in each),
            ready=sum(tick.ready for tick in each),
            running=sum(tick.running for tick in each),
            waiting=sum(tick.waiting for tick in each),
        )
        for each in zip(*ticks, strict=True)
    )


def _line(name: str, ticks: Sequence[Tick]) -> PoolLine:
    return PoolLine(
        name=name,
        ready=tuple(tick.ready for tick in ticks),
        waiting=tuple(tick.waiting for tick in ticks),
    )
