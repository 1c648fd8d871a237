"""The status of a decision: of several pools sums at the top, then each pool."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servingslo.api.status_base import STATUS, StatusModel
from servingslo.api.v1alpha1.status import MAX_NAME_LENGTH, PoolStatus
from servingslo.controller.reporting import status as status_of
from servingslo.explain.conditions.condition import ConditionType, Verdict
from servingslo.explain.pools import counts_line
from servingslo.policy.knobs.catalogue import KNOBS
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.pools.stored import target_name

# Fields at the top that are of the pool that the decision is about; objectives of a whole path are
# observed as one.
_OF_LEADING = ("bindingConstraint", "observed", "predicted", "model", "admission")
_COST_FIELDS = ("currency", "perHour", "savedPerHour")
Told = Mapping[str, Mapping[ConditionType, Verdict]]


def fleet_status_fields(
    fleet: FleetDecision,
    targets: FleetTargets,
    state: FleetState,
    told: Told,
    *,
    generation: int,
) -> dict[str, Any]:
    """The fields of a status that follow from a decision, as JSON. told: the verdicts by pool.

    The status of a single target is that of its decision.
    """
    name = fleet.binding_pool
    leading = fleet.pools[name]
    if fleet.objectives:
        leading = replace(leading, objectives=fleet.objectives)
    fields = status_of.status_fields(
        leading,
        generation=generation,
        last_batch_change_seconds=_changed_seconds(state, name),
    )
    if fleet.only is not None:
        return fields
    pools = [_pool(fleet, targets, state, told, pool) for pool in targets.pools]
    return {
        **dict.fromkeys(fields),
        **{name: fields[name] for name in _OF_LEADING},
        "observedGeneration": generation,
        "replicas": _sums([one.get("replicas", {}) for one in pools]),
        "cost": _cost([one.get("cost", {}) for one in pools]),
        **{
            one.field: _shown(one.model, one.key.of(fleet.features))
            for one in STATUS.parts()
            if one.decided
        },
        "poolsSummary": counts_line(fleet),
        "pools": pools,
    }


def _shown(part: type[StatusModel], report: object | None) -> dict[str, Any] | None:
    return None if report is None else status_of.part_fields(part.of(report))


def target_line(spec: Mapping[str, Any]) -> str | None:
    """The workload that is scaled; of pools the first and how many more: 'llama-h100 + 1 more'.

    None of a spec that names none, which an older CRD may have let through.
    """
    pools = spec.get("pools")
    first, *others = pools if isinstance(pools, list) and pools else [spec]
    reference = first.get("targetRef") if isinstance(first, Mapping) else None
    name = reference.get("name") if isinstance(reference, Mapping) else None
    if not isinstance(name, str):
        return None
    more = f" + {len(others)} more" if others else ""
    return f"{name[:MAX_NAME_LENGTH]}{more}"


def _pool(
    fleet: FleetDecision, targets: FleetTargets, state: FleetState, told: Told, pool: PoolTargets
) -> dict[str, Any]:
    decision = fleet.pools[pool.name]
    # Prefill and decode keep the objectives together.
    met = None if targets.disaggregated else told[pool.name].get(ConditionType.SLO_MET)
    status = PoolStatus.of(
        decision,
        role=pool.role.value,
        target=target_name(pool.targets.target),
        slo=None if met is None else met.status.value,
        batching=status_of.batching_status(decision.batching, _changed_seconds(state, pool.name)),
    )
    fields = status_of.part_fields(status)
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}


def _changed_seconds(state: FleetState, pool: str) -> float | None:
    """When the batch limits of a pool were changed last."""
    memories = state.of(pool).knobs
    every = (knob.changed_seconds(memories.get(knob.name)) for knob in KNOBS)
    return max((one for one in every if one is not None), default=None)


def _cost(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the pools cost together; a price of tokens belongs to a pool."""
    sums = _sums(parts) or {}
    return {name: sums[name] for name in _COST_FIELDS if name in sums} or None


def _sums(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Sums of the numbers that all parts have; other values are those of the first."""
    found: dict[str, Any] = {}
    for name, value in parts[0].items():
        values = [part.get(name) for part in parts]
        if all(isinstance(one, int | float) for one in values):
            found[name] = sum(values)
        elif not isinstance(value, int | float):
            found[name] = value
    return found or None
