"""Decisions that goldens and unit tests render: one busy, one blind, one new."""

from servingslo.estimation.gateway.ledger import RequestLedger
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.policy.decision import (
    Decision,
)
from servingslo.policy.decision_parts import (
    ColdStartReport,
    ConstraintNeed,
    CostReport,
    DecisionStep,
    DemandReport,
    ModelUse,
    ObjectiveReport,
    PredictedCount,
    ReplicaView,
)
from servingslo.policy.knobs.decisions import (
    AdmissionDecision,
    BatchingDecision,
    LimitsPlan,
    RolloutCost,
)
from servingslo.reasons import Action, Constraint, Reason

NOON_SECONDS = 1_795_262_400.0  # 2026-11-21T12:00:00Z

SCALE_UP = Decision(
    time_seconds=NOON_SECONDS,
    namespace="inference",
    name="llama-chat",
    action=Action.SCALE_UP,
    reason=Reason.KV_CACHE_BOUND,
    replicas_before=3,
    replicas_after=5,
    recommended_replicas=5,
    apply_replicas=True,
    replicas=ReplicaView(current=3, ready=3, pending=0),
    binding=Constraint.KV_CACHE,
    needs=(
        ConstraintNeed(constraint=Constraint.UTILIZATION, replicas=4),
        ConstraintNeed(constraint=Constraint.KV_CACHE, replicas=5),
        ConstraintNeed(constraint=Constraint.TTFT, replicas=4),
    ),
    steps=(
        DecisionStep(
            stage="sizing",
            knob="replicas",
            before=3,
            after=5,
            reason=Reason.KV_CACHE_BOUND,
            inputs={"forecast_rate_per_second": 48.6123, "kv_capacity_tokens": 131072.0},
        ),
    ),
    demand=DemandReport(
        arrival_rate_per_second=41.2345,
        forecast_rate_per_second=48.6123,
        planned_probability=0.662,
        lead_seconds=120.0,
        backlog_requests=12.0,
        running_requests=96.0,
        waiting_requests=17.0,
        prompt_tokens_mean=1155.2,
        output_tokens_mean=211.1,
        cached_ratio=0.125,
        kv_usage_ratio=0.93,
        ledger=RequestLedger(
            reason=Reason.GATEWAY_COUNTS,
            offered_per_second=47.25,
            admitted_per_second=33.0,
            refused_per_second=14.25,
            retried_per_second=6.0155,
        ),
    ),
    objectives=(
        ObjectiveReport(
            metric="ttft",
            percentile=99.0,
            threshold_seconds=0.5,
            predicted_seconds=0.38,
            observed_seconds=0.91,
            share_low_ratio=0.962,
            share_high_ratio=0.978,
        ),
    ),
    predicted_counts=(
        PredictedCount(
            replicas=4, utilization_ratio=0.8, kv_usage_ratio=0.97, meets_objectives=False
        ),
        PredictedCount(
            replicas=5,
            utilization_ratio=0.64,
            kv_usage_ratio=0.78,
            meets_objectives=True,
            greatest_rate_per_second=55.71,
        ),
    ),
    model=ModelUse(
        trusted=True,
        reason=Reason.MODEL_TRUSTED,
        source="fit",
        law=ServiceLaw(
            step_fixed_seconds=0.0151,
            step_per_sequence_seconds=0.00015,
            prefill_per_token_seconds=0.00008,
            context_per_token_seconds=4e-7,
        ),
        relative_error=0.12,
        fit_error=0.043,
        sample_count=212,
    ),
    knobs={
        "batch-limits": BatchingDecision(
            reason=Reason.BATCHING_RECOMMENDED,
            container="vllm",
            current_max_num_seqs=64,
            recommended_max_num_seqs=96,
            current_max_num_batched_tokens=2048,
            recommended_max_num_batched_tokens=2048,
            replicas_saved=1,
            today=LimitsPlan(
                replicas=5, max_num_seqs=64, max_num_batched_tokens=2048, in_flight_limit=57
            ),
            better=LimitsPlan(
                replicas=4, max_num_seqs=96, max_num_batched_tokens=2048, in_flight_limit=71
            ),
            rollout=RolloutCost(
                restarted_replicas=3, surge_replica_seconds=270.0, payback_seconds=270.0
            ),
        ),
        "admission": AdmissionDecision(
            reason=Reason.ADMISSION_RECOMMENDED,
            admitted_rate_per_second=33.4,
            queue_limit=9,
            in_flight_limit=57,
            shed_ratio=0.19,
        ),
    },
    metrics_age_seconds=4.2,
    cold_start=ColdStartReport(
        seconds=90.0,
        source="measured",
        sample_count=6,
        scheduling_seconds=3.0,
        image_seconds=27.0,
        loading_seconds=60.0,
    ),
    cost=CostReport(
        currency="USD",
        per_hour=12.5,
        per_million_output_tokens=0.399,
        per_million_tokens=0.0617,
        saved_per_hour=2.5,
    ),
)

BLIND = Decision(
    time_seconds=NOON_SECONDS + 300,
    namespace="inference",
    name="llama-chat",
    action=Action.HOLD,
    reason=Reason.PROMETHEUS_UNAVAILABLE,
    replicas_before=5,
    replicas_after=5,
    recommended_replicas=5,
    apply_replicas=False,
    replicas=ReplicaView(current=5, ready=4, pending=1),
    limited_by=Reason.PROMETHEUS_UNAVAILABLE,
    steps=(
        DecisionStep(
            stage="signals",
            knob="replicas",
            before=5,
            after=5,
            reason=Reason.PROMETHEUS_UNAVAILABLE,
            inputs={"detail": "no answer within 5 s"},
        ),
    ),
    model=ModelUse(trusted=False, reason=Reason.LIMITS_UNKNOWN, source="saturation"),
    knobs={
        "batch-limits": BatchingDecision(reason=Reason.LIMITS_UNKNOWN),
        "admission": AdmissionDecision(reason=Reason.ADMISSION_UNKNOWN),
    },
    metrics=Reason.PROMETHEUS_UNAVAILABLE,
    detail="no answer within 5 s",
)
