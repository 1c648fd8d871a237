"""Convert a manifest's spec to the planner's types: SI units, enums, dataclasses."""

from collections.abc import Iterable

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from servingslo.api.refusals import allowed, path_of, refused_value, shown
from servingslo.api.v1alpha1 import ServingSLOSpec
from servingslo.api.v1alpha1.behavior import ScaleDownRules, ScaleUpRules
from servingslo.api.v1alpha1.capacity import DynamicBatching
from servingslo.api.v1alpha1.capacity import KVCacheModel as KVCacheModelSpec
from servingslo.api.v1alpha1.capacity import ServiceLaw as ServiceLawSpec
from servingslo.api.v1alpha1.spec import ErrorBudget
from servingslo.errors import InvalidInputError, InvalidSpecError
from servingslo.estimation.pods.batch_limits import StatedLimits
from servingslo.models.engine.service_time import DynamicBatcher, ServiceLaw
from servingslo.models.fleet.latency import Objective
from servingslo.policy.inputs import (
    BatchingTargets,
    CostTargets,
    ErrorBudgetTargets,
    FallbackTargets,
    ForecastTargets,
    KVCacheModel,
    LimitObject,
    ReplicaTargets,
    ScaleTarget,
    Targets,
)
from servingslo.policy.replicas.behavior import Behavior, ScalingPolicy, ScalingRules
from servingslo.runtimes.catalogue import AUTO_RUNTIME
from servingslo.units import SECONDS_PER_DAY, parse_duration_seconds, parse_quantity_bytes

MEASURED = "Measured"


def parse_spec(spec: object) -> ServingSLOSpec:
    """The checked spec of a manifest, with all defaults.

    Raises: InvalidSpecError naming path, value and allowed range of every bad field.
    """
    try:
        return ServingSLOSpec.model_validate(spec)
    except ValidationError as error:
        raise InvalidSpecError(tuple(_problems(error.errors(include_url=False)))) from error


def targets_from_spec(spec: object) -> Targets:
    """The planner's targets of a manifest's spec.

    Raises: InvalidSpecError naming path, value and allowed range of every bad field.
    """
    return targets_of(parse_spec(spec))


def targets_of(spec: ServingSLOSpec) -> Targets:
    """The planner's targets of a checked spec, in SI units."""
    cold_start = None if spec.cold_start == MEASURED else parse_duration_seconds(spec.cold_start)
    return Targets(
        target=ScaleTarget(
            api_version=spec.target_ref.api_version,
            kind=spec.target_ref.kind,
            name=spec.target_ref.name,
        ),
        objectives=tuple(
            Objective(
                metric=objective.metric,
                percentile=float(objective.percentile),
                threshold_seconds=parse_duration_seconds(objective.threshold),
            )
            for objective in spec.objectives
        ),
        runtime=None if spec.runtime == AUTO_RUNTIME else spec.runtime,
        mode=spec.mode,
        actuation=spec.actuation,
        replicas=ReplicaTargets(
            minimum=spec.replicas.min,
            idle_seconds=None
            if spec.replicas.idle_after is None
            else parse_duration_seconds(spec.replicas.idle_after),
            maximum=spec.replicas.max,
            tolerated_failures=spec.replicas.tolerated_failures,
        ),
        utilization_target_ratio=(
            None if spec.utilization.target is None else float(spec.utilization.target)
        ),
        kv_cache_target_ratio=float(spec.kv_cache.target),
        kv_cache_model=None if spec.kv_cache.model is None else _kv_cache(spec.kv_cache.model),
        behavior=Behavior(
            scale_up=_rules(spec.behavior.scale_up), scale_down=_rules(spec.behavior.scale_down)
        ),
        cold_start_seconds=cold_start,
        forecast=ForecastTargets(mode=spec.forecast.mode, season=spec.forecast.season),
        batching=BatchingTargets(
            mode=spec.batching.mode,
            rollout=spec.batching.rollout,
            container=spec.batching.container,
            min_sequences=spec.batching.min_sequences,
            max_sequences=spec.batching.max_sequences,
            min_interval_seconds=parse_duration_seconds(spec.batching.min_interval),
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
        if spec.cost is None
        else CostTargets(
            gpu_hourly=float(spec.cost.gpu_hourly),
            gpus_per_replica=spec.cost.gpus_per_replica,
            currency=spec.cost.currency,
        ),
        error_budget=None if spec.error_budget is None else _error_budget(spec.error_budget),
        gateway_name=spec.gateway.name,
        service_law=None if spec.service_law is None else _service_law(spec.service_law),
        stated_limits=StatedLimits(
            max_num_seqs=spec.engine.max_sequences,
            max_num_batched_tokens=spec.engine.max_batched_tokens,
            batcher=None
            if spec.engine.dynamic_batching is None
            else _batcher(spec.engine.dynamic_batching),
        ),
        model=spec.model,
    )


def _service_law(law: ServiceLawSpec) -> ServiceLaw:
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


def _error_budget(budget: ErrorBudget) -> ErrorBudgetTargets:
    target = None if budget.target is None else float(budget.target.removesuffix("%")) / 100.0
    days = int(budget.window.removesuffix("d"))
    return ErrorBudgetTargets(target_ratio=target, window_seconds=days * SECONDS_PER_DAY)


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


def _rules(rules: ScaleUpRules | ScaleDownRules) -> ScalingRules:
    return ScalingRules(
        stabilization_window_seconds=rules.stabilization_window_seconds,
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
