"""The status of a resource with several pools: sums at the top, then each pool."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servingslo.api.status_base import STATUS, StatusModel
from servingslo.api.v1alpha1.status import MAX_NAME_LENGTH, ObservedStatus, PoolStatus
from servingslo.api.v1alpha1.status_latency import AvailabilityStatus
from servingslo.controller.reporting import status as status_of
from servingslo.explain.conditions.condition import ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.pools import counts_line
from servingslo.policy.decision import Decision
from servingslo.policy.knobs.engine_limits.memory import memory_of
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.pools.stored import target_name

# Fields at the top that are of the pool that the decision is about; objectives of a whole path are
# observed as one.
_OF_LEADING = ("bindingConstraint", "observed", "predicted", "model", "admission", "errorBudget")
# Fields of a pool that are as in the status of a single target.
_COST_FIELDS = ("currency", "perHour", "savedPerHour")
_OF_POOL = ("replicas", "bindingConstraint", "observed", "model", "gpus", "batching", "cost")


def pools_status_fields(
    fleet: FleetDecision, targets: FleetTargets, state: FleetState, *, generation: int
) -> dict[str, Any]:
    """The fields of a status that follow from a decision over pools, as JSON."""
    by_pool = {
        name: status_of.status_fields(
            decision,
            generation=generation,
            last_batch_change_seconds=memory_of(state.pools[name].knobs).last_change_seconds,
        )
        for name, decision in fleet.pools.items()
    }
    leading = by_pool[fleet.binding_pool]
    if fleet.objectives:
        whole = replace(fleet.pools[fleet.binding_pool], objectives=fleet.objectives)
        leading = {**leading, "observed": status_of.part_fields(ObservedStatus.of(whole))}
    return {
        **dict.fromkeys(leading),
        **{name: leading[name] for name in _OF_LEADING},
        "observedGeneration": generation,
        "replicas": _sums([one["replicas"] or {} for one in by_pool.values()]),
        "cost": _cost([one["cost"] or {} for one in by_pool.values()]),
        **{one.field: _shown(one.model, one.key.of(fleet.features)) for one in STATUS.parts()},
        "availability": _shown(AvailabilityStatus, fleet.availability),
        "poolsSummary": counts_line(fleet),
        "pools": [_pool(fleet, targets, pool.name, by_pool[pool.name]) for pool in targets.pools],
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
    fleet: FleetDecision, targets: FleetTargets, name: str, fields: dict[str, Any]
) -> dict[str, Any]:
    decision, pool = fleet.pools[name], targets.pool(name)
    predicted: dict[str, Any] = fields["predicted"] or {}
    status = {
        "name": name,
        "role": pool.role.value,
        "target": target_name(pool.targets.target),
        "reason": decision.reason.value,
        "slo": None if targets.disaggregated else _slo(decision),
        "utilization": predicted.get("utilization"),
        "coldStartSeconds": _cold_start(decision),
        **{field: fields[field] for field in _OF_POOL},
    }
    checked = PoolStatus.model_validate(
        {key: value for key, value in status.items() if value is not None}
    )
    return checked.model_dump(by_alias=True, mode="json", exclude_none=True)


def _slo(decision: Decision) -> str | None:
    """Whether the objectives are met, as in the condition of a single target."""
    verdict = verdicts(decision).get(ConditionType.SLO_MET)
    return None if verdict is None else verdict.status.value


def _cost(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the pools cost together; a price of tokens belongs to a pool."""
    sums = _sums(parts) or {}
    return {name: sums[name] for name in _COST_FIELDS if name in sums} or None


def _cold_start(decision: Decision) -> float | None:
    return None if decision.cold_start is None else decision.cold_start.seconds


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
