"""What survives a restart of several pools, and of a change between one target and pools.

Each memory is stored with the target that it was learnt from. So what was learnt follows the target
wherever it stands in the spec, also from `targetRef` into a pool and back.
"""

from collections.abc import Mapping
from typing import Any

from servingslo.estimation import stored_estimator as estimator_memory
from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.stored_fields import is_number
from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState, VariantMemory
from servingslo.policy.pools.variants.learning import SPLIT, SplitState
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.stored_state import LEARNED_VERSION, learned, lost_parts, restore

POOLS, TARGET = "pools", "target"

Json = Mapping[str, Any]


def target_name(target: ScaleTarget) -> str:
    """The target as it is named in stored state, such as 'Deployment/llama'."""
    return "/".join(filter(None, (target.kind, target.name, target.part)))


def learned_pools(state: FleetState, targets: FleetTargets, now_seconds: float) -> dict[str, Any]:
    """The state of all pools that must survive a restart, as JSON values; 4 KiB for each pool."""
    return {
        "version": LEARNED_VERSION,
        "atSeconds": round(now_seconds, 1),
        "demand": estimator_memory.learned(EstimatorState(forecast=state.demand)),
        "through": None if state.through_ratio is None else round(state.through_ratio, 4),
        "split": SPLIT.dump(state.variants.split),
        POOLS: {
            pool.name: {
                TARGET: target_name(pool.targets.target),
                **learned(state.pools.get(pool.name, PlannerState()), now_seconds),
            }
            for pool in targets.pools
        },
    }


def restore_pools(stored: object, targets: FleetTargets, now_seconds: float) -> FleetState:
    """The memory from stored state, of pools or of one target; other parts are left unknown."""
    if not isinstance(stored, Mapping) or stored.get("version") != LEARNED_VERSION:
        return FleetState()
    known = stored_by_target(stored)
    through = stored.get("through")
    through_ratio = min(max(float(through), 0.0), 1.0) if is_number(through) else None
    variants = VariantMemory(split=SPLIT.load(stored.get("split")) or SplitState())
    return FleetState(
        pools={
            pool.name: restore(known[target_name(pool.targets.target)], now_seconds)
            for pool in targets.pools
            if target_name(pool.targets.target) in known
        },
        demand=estimator_memory.restore(stored.get("demand")).forecast,
        through_ratio=through_ratio,
        smoothed_through_ratio=through_ratio,
        variants=variants.renamed(renames(_stored_targets(stored), targets), len(targets.pools)),
    )


def restore_target(stored: object, target: ScaleTarget, now_seconds: float) -> PlannerState:
    """The memory of one target, from state that was stored for it or for a pool with it."""
    if not isinstance(stored, Mapping) or POOLS not in stored:
        return restore(stored, now_seconds)
    return restore(stored_by_target(stored).get(target_name(target)), now_seconds)


def targets_by_pool(targets: FleetTargets) -> dict[str, str]:
    """The target of each pool, as it is named in stored state."""
    return {pool.name: target_name(pool.targets.target) for pool in targets.pools}


def renames(before: Mapping[str, str], now: FleetTargets) -> dict[str, str]:
    """Present names of pools by former ones. before: targets by former name of the pool."""
    present = {target: name for name, target in targets_by_pool(now).items()}
    return {name: present[target] for name, target in before.items() if target in present}


def _stored_targets(stored: Json) -> dict[str, str]:
    """Targets by the name of the pool that they were stored under."""
    pools = stored.get(POOLS)
    parts = pools if isinstance(pools, Mapping) else {}
    return {
        str(name): str(part[TARGET])
        for name, part in parts.items()
        if isinstance(part, Mapping) and TARGET in part
    }


def stored_by_target(stored: Json) -> dict[str, Json]:
    """Stored memories by the target that they are of."""
    pools = stored.get(POOLS)
    parts = list(pools.values()) if isinstance(pools, Mapping) else [stored]
    return {
        str(part[TARGET]): part for part in parts if isinstance(part, Mapping) and TARGET in part
    }


def lost_pool_parts(stored: object, now_seconds: float) -> tuple[str, ...]:
    """Parts of stored state that cannot be restored; nothing if none was stored."""
    pools = stored.get(POOLS) if isinstance(stored, Mapping) else None
    if not isinstance(pools, Mapping):
        return lost_parts(stored, now_seconds)
    return tuple(
        f"{name}.{part}" for name, each in pools.items() for part in lost_parts(each, now_seconds)
    )
