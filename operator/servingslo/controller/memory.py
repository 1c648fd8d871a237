"""What is planned and its memory: of one target or of several pools; used live and in replays."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servingslo.api.convert import fleet_targets_of, parse_spec, targets_of
from servingslo.policy.inputs import ScaleTarget, Targets
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.pools.stored import (
    TARGET,
    learned_pools,
    renames,
    restore_pools,
    restore_target,
    target_name,
    targets_by_pool,
)
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.stored_state import learned

Plans = Targets | FleetTargets
Memory = PlannerState | FleetState


def plans_from_spec(spec: object) -> Plans:
    """The targets of a spec, of one workload or of several pools.

    Raises: InvalidSpecError naming path, value and allowed range of every bad field.
    """
    checked = parse_spec(spec)
    return fleet_targets_of(checked) or targets_of(checked)


def initial_state(learned: Mapping[str, Any] | None, plans: Plans, now_seconds: float) -> Memory:
    """The memory with which a resource begins: the state learnt before, else an empty one."""
    if isinstance(plans, FleetTargets):
        return restore_pools(learned, plans, now_seconds)
    return restore_target(learned, plans.target, now_seconds) if learned else PlannerState()


def carried_on(state: Memory, before: Plans, now: Plans) -> Memory:
    """The memory under a changed spec: what was learnt stays with its target."""
    if isinstance(state, PlannerState):
        if isinstance(now, Targets) or isinstance(before, FleetTargets):
            return state
        return FleetState(
            pools=_named({before.target: state}, now), demand=state.estimator.forecast
        )
    if isinstance(before, Targets):
        raise TypeError(before)
    known = {
        pool.targets.target: state.pools[pool.name]
        for pool in before.pools
        if pool.name in state.pools
    }
    if isinstance(now, Targets):
        found = known.get(now.target, PlannerState())
        return replace(found, estimator=replace(found.estimator, forecast=state.demand))
    return replace(
        state,
        pools=_named(known, now),
        limits_seconds={},
        variants=state.variants.renamed(renames(targets_by_pool(before), now), len(now.pools)),
    )


def _named(
    known: Mapping[ScaleTarget, PlannerState], targets: FleetTargets
) -> dict[str, PlannerState]:
    """Memories by pool, of those pools whose target has one."""
    wanted = {pool.name: pool.targets.target for pool in targets.pools}
    return {name: known[target] for name, target in wanted.items() if target in known}


def learned_memory(state: Memory, plans: Plans, now_seconds: float) -> dict[str, Any]:
    """The state that must survive a restart, as JSON values, with the targets it is of."""
    if isinstance(state, FleetState):
        if isinstance(plans, Targets):
            raise TypeError(plans)
        return learned_pools(state, plans, now_seconds)
    target = plans.target if isinstance(plans, Targets) else plans.pools[0].targets.target
    return {TARGET: target_name(target), **learned(state, now_seconds)}
