"""Convert a manifest's spec to the planner's types: SI units, enums, dataclasses."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from servingslo.api.refusals import allowed, path_of, refused_value, shown
from servingslo.api.spec_base import OF_REPLICAS, SPEC, features_of, states_of
from servingslo.api.v1alpha1 import ServingSLOSpec
from servingslo.api.v1alpha1.behavior import ScaleDownRules, ScaleUpRules
from servingslo.api.v1alpha1.capacity import DynamicBatching
from servingslo.api.v1alpha1.capacity import KVCacheModel as KVCacheModelSpec
from servingslo.api.v1alpha1.objectives import objectives_of
from servingslo.api.v1alpha1.pools import WORKLOAD_OR_POOLS, Pool, part_of
from servingslo.api.v1alpha1.workload import TargetRef
from servingslo.errors import InvalidInputError, InvalidSpecError
from servingslo.estimation.pods.batch_limits import StatedLimits
from servingslo.models.engine.service_time import DynamicBatcher, ServiceLaw
from servingslo.models.known_engines import known_engine
from servingslo.policy.hpa_behavior import Behavior, ScalingPolicy, ScalingRules
from servingslo.policy.inputs import (
    BatchingTargets,
    CostTargets,
    FallbackTargets,
    ForecastTargets,
    KVCacheModel,
    LimitObject,
    ReplicaTargets,
    ScaleTarget,
    Targets,
)
from servingslo.policy.pools.admission import one_writer
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets
from servingslo.runtimes.catalogue import AUTO_RUNTIME
from servingslo.units import parse_duration_seconds, parse_quantity_bytes

MEASURED = "Measured"


def parse_spec(spec: object) -> ServingSLOSpec:
    """The checked spec of a manifest, with all defaults.

    Raises: InvalidSpecError naming path, value and allowed range of every bad field.
    """
    try:
        return ServingSLOSpec.model_validate(spec)
    except ValidationError as error:
        problems = [*_problems(error.errors(include_url=False))]
        if isinstance(spec, Mapping) and not spec.keys() & {"targetRef", "pools"}:
            # Rules between fields are not checked beside a bad field, such as a misspelt one.
            missing = InvalidInputError("spec.targetRef", None, WORKLOAD_OR_POOLS)
            problems = [*(one for one in problems if one.field != missing.field), missing]
        raise InvalidSpecError(tuple(problems)) from error


def targets_from_spec(spec: object) -> Targets:
    """The planner's targets of a manifest's spec of one target, in SI units.

    Raises: InvalidSpecError as `fleet_from_spec`, and for a spec of pools.
    """
    fleet = fleet_from_spec(spec)
    if fleet.only is None:
        pools = [pool.name for pool in fleet.pools]
        allowed = "targetRef, where one target is planned"
        raise InvalidSpecError((InvalidInputError("spec.pools", pools, allowed),))
    return fleet.only.targets


def fleet_from_spec(spec: object) -> FleetTargets:
    """The pools of a manifest's spec, each with the targets of the whole resource and its own.

    The floor of the fallback holds for each pool. Raises: InvalidSpecError naming path, value and
    allowed range of every bad field.
    """
    checked = parse_spec(spec)
    if checked.target_ref is not None:
        return FleetTargets.of(_targets(checked, checked, checked.target_ref))
    fleet = FleetTargets(
        pools=tuple(
            PoolTargets(
                name=pool.name, role=pool.role, targets=_targets(checked, pool, pool.target_ref)
            )
            for pool in checked.pools or ()
        ),
        gpus_max=checked.gpus,
        transfer_seconds=_seconds_unless_measured(checked.transfer),
    )
    return one_writer(fleet, {part.key.name for part in SPEC.parts() if part.of_route})


def _targets(spec: ServingSLOSpec, own: ServingSLOSpec | Pool, target: TargetRef) -> Targets:
    """own: what states the fields of a set of replicas: the spec itself, or one of its pools."""
    behavior, gateway = own.behavior or spec.behavior, own.gateway or spec.gateway
    gpus = own.gpus_per_replica or (None if own.cost is None else own.cost.gpus_per_replica)
    where = f"spec.pools[{own.name}]" if isinstance(own, Pool) else "spec"
    targets = Targets(
        target=ScaleTarget(
            api_version=target.api_version,
            kind=target.kind,
            name=target.name,
            part=part_of(target, own.role if isinstance(own, Pool) else None),
        ),
        objectives=objectives_of(spec.objectives),
        runtime=None if own.runtime == AUTO_RUNTIME else own.runtime,
        mode=spec.mode,
        actuation=spec.actuation,
        replicas=ReplicaTargets(
            minimum=own.replicas.min,
            idle_seconds=None
            if own.replicas.idle_after is None
            else parse_duration_seconds(own.replicas.idle_after),
            maximum=own.replicas.max,
            tolerated_failures=own.replicas.tolerated_failures,
            **states_of(own.replicas, OF_REPLICAS),
        ),
        utilization_target_ratio=(
            None if own.utilization.target is None else float(own.utilization.target)
        ),
        kv_cache_target_ratio=float(own.kv_cache.target),
        kv_cache_model=None if own.kv_cache.model is None else _kv_cache(own.kv_cache.model),
        behavior=Behavior(
            scale_up=_rules(behavior.scale_up, Behavior().scale_up),
            scale_down=_rules(behavior.scale_down, Behavior().scale_down),
        ),
        cold_start_seconds=_seconds_unless_measured(own.cold_start),
        forecast=ForecastTargets(mode=spec.forecast.mode, season=spec.forecast.season),
        batching=BatchingTargets(
            mode=own.batching.mode,
            container=own.batching.container,
            min_sequences=own.batching.min_sequences,
            max_sequences=own.batching.max_sequences,
            min_interval_seconds=parse_duration_seconds(own.batching.min_interval),
        ),
        admission_mode=spec.admission.mode,
        admission_via=None
        if spec.admission.via is None
        else LimitObject(kind=spec.admission.via.kind, name=spec.admission.via.name or ""),
        admission_proxies=spec.admission.proxies,
        fallback=FallbackTargets(
            behavior=spec.fallback.behavior,
            replicas=spec.fallback.replicas,
            stale_after_seconds=parse_duration_seconds(spec.fallback.stale_after),
        ),
        cost=None
        if own.cost is None
        else CostTargets(
            gpu_hourly=float(own.cost.gpu_hourly),
            gpus_per_replica=own.cost.gpus_per_replica or own.gpus_per_replica or 1,
            currency=own.cost.currency,
        ),
        gpus_per_replica=gpus,
        priority=spec.priority,
        gateway_name=gateway.name,
        service_law=_service_law(own, gpus or 1, where),
        law_assumed=own.service_law is None and own.engine.card is not None,
        stated_limits=StatedLimits(
            max_num_seqs=own.engine.max_sequences,
            max_num_batched_tokens=own.engine.max_batched_tokens,
            batcher=None
            if own.engine.dynamic_batching is None
            else _batcher(own.engine.dynamic_batching),
        ),
        model=spec.model,
    )
    features = features_of(spec) | features_of(own.replicas, OF_REPLICAS)
    return replace(targets, features=features, **states_of(spec))


def _seconds_unless_measured(text: str | None) -> float | None:
    return None if text is None or text == MEASURED else parse_duration_seconds(text)


def _service_law(own: ServingSLOSpec | Pool, gpus: int, where: str) -> ServiceLaw | None:
    """The law that is stated, else that of the card and the model that are named.

    Raises: InvalidSpecError where the names say too little, or the model does not fit.
    """
    law, engine = own.service_law, own.engine
    if law is None:
        if engine.card is None or engine.model is None:
            return None
        fields = (f"{where}.engine.card", f"{where}.engine.model", f"{where}.gpusPerReplica")
        try:
            return known_engine(engine.card, engine.model, gpus, fields=fields).law
        except InvalidInputError as error:
            raise InvalidSpecError((error,)) from error
    return ServiceLaw(
        step_fixed_seconds=float(law.step_fixed_seconds),
        step_per_sequence_seconds=float(law.step_per_sequence_seconds),
        prefill_per_token_seconds=float(law.prefill_per_token_seconds),
        context_per_token_seconds=float(law.context_per_token_seconds),
    )


def _batcher(stated: DynamicBatching) -> DynamicBatcher:
    return DynamicBatcher(
        largest_batch=stated.max_batch_size,
        window_seconds=parse_duration_seconds(stated.max_queue_delay),
        room=stated.max_queue_size,
        instances=stated.instances,
    )


def _kv_cache(model: KVCacheModelSpec) -> KVCacheModel:
    return KVCacheModel(
        layers=model.layers,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        bytes_per_element=model.bytes_per_element,
        weights_bytes=parse_quantity_bytes(model.weights),
        workspace_bytes=parse_quantity_bytes(model.workspace),
        gpu_memory_bytes=parse_quantity_bytes(model.gpu_memory),
        gpus=model.gpus,
    )


def _rules(rules: ScaleUpRules | ScaleDownRules, default: ScalingRules) -> ScalingRules:
    window = rules.stabilization_window_seconds
    return ScalingRules(
        stabilization_window_seconds=(
            default.stabilization_window_seconds if window is None else window
        ),
        young_window_seconds=default.young_window_seconds if window is None else 0,
        policies=tuple(
            ScalingPolicy(
                type=policy.type, value=policy.value, period_seconds=policy.period_seconds
            )
            for policy in rules.policies
        ),
        select_policy=rules.select_policy,
    )


def _problems(errors: Iterable[ErrorDetails]) -> Iterable[InvalidInputError]:
    for error in errors:
        if _counts_refused_items(error):
            continue
        context = error.get("ctx", {})
        inner = context.get("path", ())
        value = shown(context["value"]) if inner else refused_value(error)
        path = path_of((*error["loc"], *inner), "spec")
        yield InvalidInputError(path, value, allowed(error, context))


def _counts_refused_items(error: ErrorDetails) -> bool:
    """Whether a list counts as too short only because its items were refused one by one."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]
