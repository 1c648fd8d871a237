"""From the manifest's words to the planner's terms: SI units, enums, defaults."""

import time
from dataclasses import replace

import pytest
from tests.unit import api_cases

from servingslo.api.convert import fleet_from_spec, targets_from_spec
from servingslo.api.spec_base import SPEC
from servingslo.errors import InvalidInputError, InvalidSpecError
from servingslo.estimation.pods.batch_limits import StatedLimits
from servingslo.models.engine.service_time import DynamicBatcher, ServiceLaw
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.hpa_behavior import (
    Behavior,
    PolicyType,
    ScalingPolicy,
    ScalingRules,
    SelectPolicy,
)
from servingslo.policy.inputs import (
    AdmissionMode,
    BatchingMode,
    BatchingTargets,
    CostTargets,
    FallbackBehavior,
    FallbackTargets,
    ForecastMode,
    ForecastTargets,
    KVCacheModel,
    LimitKind,
    LimitObject,
    Mode,
    ReplicaTargets,
    ScaleTarget,
    SeasonStated,
    Targets,
)
from servingslo.policy.pools.inputs import Role
from servingslo.units import parse_quantity_bytes

GIB = 1024**3
OF_FEATURES = {
    "features": {},
    "stated_share_ratio": None,
    "promise_period_seconds": 0.0,
    "elsewhere": None,
}
MINIMAL = {
    "targetRef": {"kind": "Deployment", "name": "llama-chat"},
    "objectives": [{"metric": "ttft", "percentile": 99, "threshold": "500ms"}],
    "replicas": {"max": 8},
}


def test_a_minimal_spec_gets_the_planners_defaults() -> None:
    """The defaults of the manifest are those of the planner, none is said twice differently."""
    assert targets_from_spec(MINIMAL) == Targets(
        target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama-chat"),
        objectives=(Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=0.5),),
        replicas=ReplicaTargets(maximum=8),
    )


def test_a_full_spec_reaches_the_planner_field_by_field() -> None:
    """Every field arrives, in SI units."""
    found = targets_from_spec(api_cases.changed({"coldStart": "1m30s", "mode": "Recommend"}))
    # What a feature's field becomes, its own tests show.
    assert replace(found, **OF_FEATURES) == replace(
        Targets(
            target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama-chat"),
            objectives=(
                Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=0.5),
                Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.05),
            ),
            runtime="vllm",
            mode=Mode.RECOMMEND,
            replicas=ReplicaTargets(minimum=1, maximum=8, tolerated_failures=0, idle_seconds=600.0),
            utilization_target_ratio=0.85,
            kv_cache_target_ratio=0.9,
            kv_cache_model=KVCacheModel(
                layers=32,
                kv_heads=8,
                head_dim=128,
                bytes_per_element=2,
                weights_bytes=16.0 * GIB,
                workspace_bytes=4.0 * GIB,
                gpu_memory_bytes=72.0 * GIB,
                gpus=1,
            ),
            behavior=Behavior(
                scale_up=ScalingRules(
                    stabilization_window_seconds=0,
                    policies=(ScalingPolicy(type=PolicyType.PODS, value=4, period_seconds=60),),
                    select_policy=SelectPolicy.MAX,
                ),
                scale_down=ScalingRules(
                    stabilization_window_seconds=60,
                    policies=(
                        ScalingPolicy(type=PolicyType.PERCENT, value=50, period_seconds=120),
                    ),
                    select_policy=SelectPolicy.MIN,
                ),
            ),
            cold_start_seconds=90.0,
            forecast=ForecastTargets(mode=ForecastMode.AUTO, season=SeasonStated.WEEK),
            batching=BatchingTargets(
                mode=BatchingMode.RECOMMEND,
                container="engine",
                min_sequences=8,
                max_sequences=256,
                min_interval_seconds=600.0,
            ),
            admission_mode=AdmissionMode.RECOMMEND,
            admission_via=LimitObject(kind=LimitKind.BACKEND_TRAFFIC_POLICY, name="chat"),
            admission_proxies=2,
            fallback=FallbackTargets(
                behavior=FallbackBehavior.FLOOR, replicas=4, stale_after_seconds=120.0
            ),
            cost=CostTargets(gpu_hourly=3.5, gpus_per_replica=2, currency="EUR"),
            gpus_per_replica=2,
            gateway_name="llama-route",
            stated_limits=StatedLimits(
                max_num_seqs=256,
                max_num_batched_tokens=8192,
                batcher=DynamicBatcher(largest_batch=8, window_seconds=0.005, room=64, instances=2),
            ),
            model="rank",
            service_law=ServiceLaw(
                step_fixed_seconds=0.0065,
                step_per_sequence_seconds=0.00004,
                prefill_per_token_seconds=0.00003,
                context_per_token_seconds=0.00000005,
            ),
        ),
        **OF_FEATURES,
    )


def test_a_spec_of_one_target_is_a_fleet_of_one_pool() -> None:
    """The pool has no name, and the targets of the spec."""
    (pool,) = fleet_from_spec(MINIMAL).pools
    assert (pool.name, pool.role) == ("", Role.COMBINED)
    assert pool.targets == targets_from_spec(MINIMAL)


def test_a_spec_of_pools_is_no_plan_of_one_target() -> None:
    """Whoever plans one target is refused with the field, not given the first pool."""
    with pytest.raises(InvalidSpecError, match=r"spec\.pools: \['prefill', 'decode'\]"):
        targets_from_spec(api_cases.changed({}, "pooled"))


def test_a_pool_is_planned_as_a_target_of_its_own_would_be() -> None:
    """The first pool states all that the base does: its targets are those of the base."""
    spec = api_cases.changed({"gateway": {"name": "route"}}, "pooled")
    fleet = fleet_from_spec(spec)
    first, second = fleet.pools
    assert (first.name, first.role, second.name, second.role) == (
        "prefill",
        Role.PREFILL,
        "decode",
        Role.DECODE,
    )
    alone = {
        "targetRef.name": "llama-prefill",
        "model": None,
        "admission": None,
        "forecast": None,
        **{part.field_name: None for part in SPEC.parts() if part.one_route},
    }
    found = targets_from_spec(api_cases.changed(alone))
    assert replace(first.targets, **OF_FEATURES) == replace(found, **OF_FEATURES)
    assert second.targets == Targets(
        target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama-decode"),
        objectives=first.targets.objectives,
        replicas=ReplicaTargets(maximum=12, idle_seconds=600.0),
        fallback=first.targets.fallback,
        cost=CostTargets(gpu_hourly=2.5, currency="EUR"),
        gateway_name="route",
    )
    assert (fleet.gpus_max, fleet.transfer_seconds) == (10000, 0.02)


def test_behavior_is_of_the_resource_unless_a_pool_states_it() -> None:
    """A pool without rules of its own changes as fast as the resource says."""
    rules = {"scaleDown": {"stabilizationWindowSeconds": 5}}
    changes = {"behavior": rules, "transfer": "Measured", "gpus": None}
    fleet = fleet_from_spec(api_cases.changed(changes, "pooled"))
    windows = [one.targets.behavior.scale_down.stabilization_window_seconds for one in fleet.pools]
    assert windows == [60, 5]
    assert (fleet.gpus_max, fleet.transfer_seconds) == (None, None)


@pytest.mark.parametrize(
    ("metric", "expected"), [pytest.param(m.value, m, id=m.value) for m in LatencyMetric]
)
def test_every_metric_of_the_models_has_its_name_in_manifests(
    metric: str, expected: LatencyMetric
) -> None:
    """The four metrics are written as the API page says."""
    spec = MINIMAL | {"objectives": [{"metric": metric, "percentile": 95, "threshold": "1s"}]}
    (objective,) = targets_from_spec(spec).objectives
    assert objective.metric is expected


def test_scale_down_keeps_its_window_when_only_policies_are_given() -> None:
    """Naming a policy does not silently drop the default window of its direction."""
    rules = {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}
    behavior = targets_from_spec(MINIMAL | {"behavior": {"scaleDown": rules}}).behavior
    assert behavior.scale_down.stabilization_window_seconds == 45
    assert behavior.of_young().scale_down.stabilization_window_seconds == 300
    assert behavior.scale_up == ScalingRules()


def test_a_stated_window_holds_at_any_age() -> None:
    """The longer one of a young workload is a default, as the HorizontalPodAutoscaler's is."""
    rules = {"stabilizationWindowSeconds": 5}
    behavior = targets_from_spec(MINIMAL | {"behavior": {"scaleDown": rules}}).behavior
    assert behavior.of_young().scale_down.stabilization_window_seconds == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("16Gi", 16 * GIB, id="binary"),
        pytest.param("80G", 80e9, id="decimal"),
        pytest.param("1.5Ti", 1.5 * 1024 * GIB, id="fraction"),
        pytest.param("16e9", 16e9, id="exponent"),
        pytest.param("12E", 12e18, id="exa-not-exponent"),
        pytest.param("1500m", 1.5, id="milli"),
        pytest.param("0", 0.0, id="zero"),
        pytest.param("+2Ki", 2048.0, id="sign"),
        pytest.param(".5k", 500.0, id="no-leading-digit"),
    ],
)
def test_quantities_are_bytes(text: str, expected: float) -> None:
    """Sizes are read as Kubernetes reads them."""
    assert parse_quantity_bytes(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["", "Gi", "16 Gi", "16GB", "1e", "1.2.3", "16Gi\n", "nan", "0x10"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """Nothing is guessed from a size that Kubernetes would refuse."""
    with pytest.raises(InvalidInputError, match="weights"):
        parse_quantity_bytes(text, "weights")


def test_a_long_quantity_is_refused_at_once() -> None:
    """Of the library's own callers none need check its length before."""
    began = time.process_time()
    with pytest.raises(InvalidInputError):
        parse_quantity_bytes("9" * 100_000 + "x")
    assert time.process_time() - began < 1.0
