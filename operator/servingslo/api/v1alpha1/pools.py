"""Several pools behind one promise: `spec.pools`, and the rules between pools and the rest.

Each rule exists twice with the same words: in CEL for the API server, and in Python.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field
from pydantic.alias_generators import to_camel

from servingslo.api.constraints import Between, Count, DurationBetween, cel_rule, not_allowed
from servingslo.api.patterns import DNS_LABEL
from servingslo.api.spec_base import ApiModel
from servingslo.api.v1alpha1 import workload
from servingslo.api.v1alpha1.behavior import BehaviorRules
from servingslo.api.v1alpha1.capacity import KVCache, Replicas, ServiceLaw, Utilization
from servingslo.api.v1alpha1.knobs import Batching, Engine
from servingslo.api.v1alpha1.workload import (
    LLM_INFERENCE_SERVICE,
    PREFILL_PART,
    ColdStart,
    Cost,
    Gateway,
    GpusPerReplica,
    RuntimeName,
    TargetRef,
)
from servingslo.policy.pools.inputs import Role

FEWEST_POOLS = 2
# A sanity bound, far above any fleet in use.
MAX_FLEET_GPUS = 100_000


class Pool(ApiModel):
    """A set of equal replicas behind one target."""

    name: Annotated[str, DNS_LABEL] = Field(
        description="Name of the pool, a DNS label that no other pool has."
    )
    role: Role = Field(
        Role.COMBINED,
        description="Combined (default: whole requests, on several cards or prices), Prefill (the "
        "prompt and the first token) or Decode (the other tokens); one Prefill needs one Decode.",
    )
    target_ref: TargetRef = Field(
        description="The workload that is scaled. An LLMInferenceService stands for its prefill "
        "workload in the Prefill pool, and for its main one in the others."
    )
    runtime: RuntimeName = workload.RUNTIME
    replicas: Replicas = workload.REPLICAS
    utilization: Utilization = workload.UTILIZATION
    kv_cache: KVCache = workload.KV_CACHE
    behavior: BehaviorRules | None = Field(
        None,
        description="How fast replicas of this pool may change; by default as spec.behavior says.",
    )
    cold_start: ColdStart = workload.COLD_START
    service_law: ServiceLaw | None = workload.SERVICE_LAW
    engine: Engine = workload.ENGINE
    batching: Batching = workload.BATCHING
    gateway: Gateway | None = Field(
        None,
        description="The gateway in front of this pool, if it has a route of its own; by default "
        "as spec.gateway says.",
    )
    gpus_per_replica: GpusPerReplica | None = workload.GPUS_PER_REPLICA
    cost: Cost | None = Field(
        None,
        description="Price of a replica. Required in Combined pools; of Prefill and Decode, in all "
        "pools or in none.",
    )


# What a pool states may be stated beside pools only where it holds for all of them.
_FOR_ALL = ("behavior", "gateway")
_OF_A_POOL = {
    name: field.default
    for name, field in Pool.model_fields.items()
    if not field.is_required() and name not in {"role", *_FOR_ALL}
}

FleetGpus = Annotated[Count, Between(1, MAX_FLEET_GPUS)]
Transfer = Annotated[str, DurationBetween("1ms", "60s", word="Measured")]

_NAMES = "each name once"
_TARGETS = "each target once"
_ROLES = "Combined in every pool, or one Prefill and one Decode"
_COSTS = "a cost in every pool; Prefill and Decode may go without, all of them"
_CURRENCIES = "one currency"
_ZERO = "replicas.min of 0 in every pool or in none"
_MAXIMA = "replicas.max in every pool, required when mode is Auto"
WORKLOAD_OR_POOLS = "a workload, required without pools"
_NOT_BOTH = "none with pools: each pool has a targetRef"
_STATED = "none with pools: each pool states its own"
_OF_POOLS = "none without pools"
_LEAST_GPUS = "at least the GPUs of every replicas.min (0 counts as 1)"
_TRANSFER = "none without Prefill and Decode pools"

# The first pool that shares a name or a target with another.
_SAME_NAME = "a.name == b.name"
_SAME_TARGET = (
    "a.targetRef.kind == b.targetRef.kind && a.targetRef.name == b.targetRef.name"
    " && a.targetRef.apiVersion.split('/')[0] == b.targetRef.apiVersion.split('/')[0]"
    f" && (a.targetRef.kind != '{LLM_INFERENCE_SERVICE}'"
    " || (a.role == 'Prefill') == (b.role == 'Prefill'))"
)


def _once(same: str, allowed: str, value: str) -> dict[str, Any]:
    repeated = f"self.filter(a, !self.exists_one(b, {same}))[0]"
    return cel_rule(
        f"self.all(a, self.exists_one(b, {same}))",
        allowed=allowed,
        got="%s more than once",
        values=(f"{repeated}.{value}",),
    )


POOLS_RULES = (
    _once(_SAME_NAME, _NAMES, "name"),
    _once(_SAME_TARGET, _TARGETS, "targetRef.name"),
    cel_rule(
        "self.all(p, p.role == 'Combined') || (self.size() == 2"
        " && self.exists(p, p.role == 'Prefill') && self.exists(p, p.role == 'Decode'))",
        allowed=_ROLES,
        got="%s",
        values=("self.map(p, p.role)",),
    ),
    cel_rule(
        "self.all(p, has(p.cost)) || self.all(p, p.role != 'Combined' && !has(p.cost))",
        allowed=_COSTS,
        got="none in pool %s",
        values=("self.filter(p, !has(p.cost))[0].name",),
    ),
    cel_rule(
        "self.all(a, !has(a.cost) ||"
        " self.all(b, !has(b.cost) || a.cost.currency == b.cost.currency))",
        allowed=_CURRENCIES,
        got="%s",
        values=("self.filter(p, has(p.cost)).map(p, p.cost.currency)",),
    ),
    cel_rule(
        "self.all(p, p.replicas.min == 0) || self.all(p, p.replicas.min > 0)",
        allowed=_ZERO,
        got="%s",
        values=("self.map(p, p.replicas.min)",),
    ),
)


def _is_default(path: str, default: object) -> str:
    """CEL: whether the field at this path is as if it was not stated."""
    if default is None:
        return f"!has({path})"
    if isinstance(default, ApiModel):
        fields = type(default).model_fields
        return " && ".join(
            _is_default(f"{path}.{to_camel(name)}", getattr(default, name)) for name in fields
        )
    literal = f"'{default}'" if isinstance(default, str) else json.dumps(default)
    return f"{path} == {literal}"


def _of_pools_alone(name: str, default: object) -> dict[str, Any]:
    path = to_camel(name)
    return cel_rule(
        f"!has(self.pools) || ({_is_default(f'self.{path}', default)})",
        allowed=_STATED,
        got="a value",
        field_path=f".{path}",
    )


# Rules of the spec that has the pools. A field counts as stated if it is not its default: the API
# server stores defaults, and leaves them when a resource changes from targetRef to pools.
SPEC_RULES = (
    cel_rule(
        "has(self.targetRef) || has(self.pools)",
        allowed=WORKLOAD_OR_POOLS,
        got="nothing",
        field_path=".targetRef",
        reason="FieldValueRequired",
    ),
    cel_rule(
        "!has(self.targetRef) || !has(self.pools)",
        allowed=_NOT_BOTH,
        got="%s",
        values=("self.targetRef.name",),
        field_path=".targetRef",
    ),
    *(_of_pools_alone(name, default) for name, default in _OF_A_POOL.items()),
    cel_rule(
        "self.mode != 'Auto' || !has(self.pools) || self.pools.all(p, has(p.replicas.max))",
        allowed=_MAXIMA,
        got="none in pool %s",
        values=("self.pools.filter(p, !has(p.replicas.max))[0].name",),
        field_path=".pools",
    ),
    cel_rule(
        "!has(self.gpus) || has(self.pools)",
        allowed=_OF_POOLS,
        got="%s",
        values=("self.gpus",),
        field_path=".gpus",
    ),
    cel_rule(
        "!has(self.gpus) || !has(self.pools) || self.pools.map(p,"
        " (p.replicas.min > 0 ? p.replicas.min : 1)"
        " * (has(p.gpusPerReplica) ? p.gpusPerReplica"
        " : has(p.cost) && has(p.cost.gpusPerReplica) ? p.cost.gpusPerReplica : 1))"
        ".sum() <= self.gpus",
        allowed=_LEAST_GPUS,
        got="%s",
        values=("self.gpus",),
        field_path=".gpus",
    ),
    cel_rule(
        "!has(self.transfer) || (has(self.pools) && self.pools.exists(p, p.role == 'Prefill'))",
        allowed=_TRANSFER,
        got="%s",
        values=("self.transfer",),
        field_path=".transfer",
    ),
    cel_rule(
        "!has(self.fallback.replicas) || !has(self.pools) || self.pools.all(p,"
        " !has(p.replicas.max) || self.fallback.replicas <= p.replicas.max)",
        allowed="at most replicas.max of every pool",
        got="%s",
        values=("self.fallback.replicas",),
        field_path=".fallback.replicas",
    ),
)


def check_pools(pools: Sequence[Pool]) -> None:
    """The rules between pools. Raises: PydanticCustomError for the first that is broken."""
    _differ([pool.name for pool in pools], _NAMES)
    _differ([_target_of(pool) for pool in pools], _TARGETS)
    roles = [pool.role for pool in pools]
    if sorted(roles) != [Role.DECODE, Role.PREFILL] and set(roles) != {Role.COMBINED}:
        raise _refused(_ROLES, [role.value for role in roles])
    unpriced = [pool.name for pool in pools if pool.cost is None]
    if unpriced and (len(unpriced) < len(pools) or Role.COMBINED in roles):
        raise _refused(_COSTS, f"none in pool {unpriced[0]}")
    currencies = [pool.cost.currency for pool in pools if pool.cost is not None]
    if len(set(currencies)) > 1:
        raise _refused(_CURRENCIES, currencies)
    minima = [pool.replicas.min for pool in pools]
    if 0 in minima and any(minima):
        raise _refused(_ZERO, minima)


def check_maxima(pools: Sequence[Pool]) -> None:
    """Mode Auto needs a maximum in each pool. Raises: PydanticCustomError."""
    for pool in pools:
        if pool.replicas.max is None:
            raise _refused(_MAXIMA, f"none in pool {pool.name}")


def check_beside_pools(
    pools: Sequence[Pool] | None, spec: ApiModel, target: TargetRef | None
) -> None:
    """Either a target or pools. spec: that has them. Raises: PydanticCustomError."""
    if pools is None:
        if target is None:
            raise not_allowed(WORKLOAD_OR_POOLS, path=("targetRef",), value=None)
        return
    if target is not None:
        raise not_allowed(_NOT_BOTH, path=("targetRef",), value=target.name)
    for name, default in _OF_A_POOL.items():
        if getattr(spec, name) != default:
            raise not_allowed(_STATED, path=(to_camel(name),), value="a value")


def check_fleet(pools: Sequence[Pool] | None, gpus: int | None, transfer: str | None) -> None:
    """GPUs and transfer fit the pools. Raises: PydanticCustomError."""
    if gpus is not None and pools is None:
        raise not_allowed(_OF_POOLS, path=("gpus",), value=gpus)
    if gpus is not None and pools is not None:
        # All pools are awake or none.
        least = sum(max(pool.replicas.min, 1) * _gpus_of(pool) for pool in pools)
        if least > gpus:
            raise not_allowed(_LEAST_GPUS, path=("gpus",), value=gpus)
    if transfer is not None and all(pool.role is not Role.PREFILL for pool in pools or ()):
        raise not_allowed(_TRANSFER, path=("transfer",), value=transfer)


def check_floor(pools: Sequence[Pool], floor: int | None) -> None:
    """The floor of the fallback is within each pool. Raises: PydanticCustomError."""
    for pool in pools:
        if floor is not None and pool.replicas.max is not None and floor > pool.replicas.max:
            allowed = "at most replicas.max of every pool"
            raise not_allowed(allowed, path=("fallback", "replicas"), value=floor)


def _gpus_of(pool: Pool) -> int:
    of_price = None if pool.cost is None else pool.cost.gpus_per_replica
    return pool.gpus_per_replica or of_price or 1


def _target_of(pool: Pool) -> tuple[str, str, str, str]:
    ref = pool.target_ref
    return ref.name, ref.kind, ref.api_version.split("/")[0], part_of(ref, pool.role)


def part_of(target: TargetRef, role: Role | None) -> str:
    """Which of a target's workloads a pool of that role has; '' for the only or main one."""
    several = target.kind == LLM_INFERENCE_SERVICE
    return PREFILL_PART if several and role is Role.PREFILL else ""


def _differ(values: Sequence[str | tuple[str, ...]], allowed: str) -> None:
    for value in values:
        if values.count(value) > 1:
            shown = value if isinstance(value, str) else value[0]
            raise _refused(allowed, f"{shown} more than once")


def _refused(allowed: str, value: object) -> Exception:
    return not_allowed(allowed, path=("pools",), value=value)
