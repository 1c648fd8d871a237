"""What survives a restart, and a change of the spec, also between one target and pools.

Each memory is stored with the target that it was learnt from. So what was learnt follows the target
wherever it stands in the spec, also from `targetRef` into a pool and back.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servingslo.estimation import stored_estimator as estimator_memory
from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.stored_fields import is_number
from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.pools.division import DIVIDER
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.stored_state import LEARNED_VERSION, learned, lost_parts, restore

POOLS, TARGET = "pools", "target"

Json = Mapping[str, Any]


def target_name(target: ScaleTarget) -> str:
    """The target as it is named in stored state, such as 'Deployment/llama'."""
    return "/".join(filter(None, (target.kind, target.name, target.part)))


def learned_fleet(state: FleetState, targets: FleetTargets, now_seconds: float) -> dict[str, Any]:
    """The state that must survive a restart, as JSON values; 4 KiB for each pool.

    That of a single target is stored without a list of pools.
    """
    parts = {
        name: {TARGET: target, **learned(state.of(name), now_seconds)}
        for name, target in _targets_by_pool(targets).items()
    }
    if targets.only is not None:
        return parts[targets.only.name]
    return {
        "version": LEARNED_VERSION,
        "atSeconds": round(now_seconds, 1),
        "demand": estimator_memory.learned(EstimatorState(forecast=state.demand)),
        "through": None if state.through_ratio is None else round(state.through_ratio, 4),
        POOLS: parts,
    }


def restore_fleet(stored: object, targets: FleetTargets, now_seconds: float) -> FleetState:
    """The memory from stored state, of pools or of one target; other parts are left unknown."""
    if not isinstance(stored, Mapping) or stored.get("version") != LEARNED_VERSION:
        return FleetState()
    known = _stored_by_target(stored)
    if targets.only is not None and not {POOLS, TARGET} & stored.keys():
        # Former versions stored no name of the target.
        known = {target_name(targets.only.targets.target): stored}
    through = stored.get("through")
    through_ratio = min(max(float(through), 0.0), 1.0) if is_number(through) else None
    return FleetState(
        pools={
            name: restore(known[target], now_seconds)
            for name, target in _targets_by_pool(targets).items()
            if target in known
        },
        demand=estimator_memory.restore(stored.get("demand")).forecast,
        through_ratio=through_ratio,
        smoothed_through_ratio=through_ratio,
    )


def carried_on(state: FleetState, before: FleetTargets, now: FleetTargets) -> FleetState:
    """The memory under a changed spec: what was learnt stays with its target.

    A single target in place of another one begins anew.
    """
    if before.only is not None and now.only is not None:
        return state if _targets_by_pool(before) == _targets_by_pool(now) else FleetState()
    demand = state.demand if before.only is None else state.of(before.only.name).estimator.forecast
    dividers = {one.key.name for one in DIVIDER.parts()}
    known = {
        pool.targets.target: state.pools[pool.name]
        for pool in before.pools
        if pool.name in state.pools
    }
    carried = replace(
        state,
        pools={
            pool.name: known[pool.targets.target]
            for pool in now.pools
            if pool.targets.target in known
        },
        demand=demand,
        limits_seconds={},
        # What waits for a move between pools waits anew.
        features={name: one for name, one in state.features.items() if name not in dividers},
    )
    if now.only is None:
        return carried
    own = carried.of(now.only.name)
    own = replace(own, estimator=replace(own.estimator, forecast=demand))
    return FleetState(pools={now.only.name: own})


def _targets_by_pool(targets: FleetTargets) -> dict[str, str]:
    """The target of each pool, as it is named in stored state."""
    return {pool.name: target_name(pool.targets.target) for pool in targets.pools}


def _stored_by_target(stored: Json) -> dict[str, Json]:
    """Stored memories by the target that they are of."""
    pools = stored.get(POOLS)
    parts = list(pools.values()) if isinstance(pools, Mapping) else [stored]
    return {
        str(part[TARGET]): part for part in parts if isinstance(part, Mapping) and TARGET in part
    }


def lost_fleet_parts(stored: object, now_seconds: float) -> tuple[str, ...]:
    """Parts of stored state that cannot be restored; nothing if none was stored."""
    pools = stored.get(POOLS) if isinstance(stored, Mapping) else None
    if not isinstance(pools, Mapping):
        return lost_parts(stored, now_seconds)
    return tuple(
        f"{name}.{part}" for name, each in pools.items() for part in lost_parts(each, now_seconds)
    )
