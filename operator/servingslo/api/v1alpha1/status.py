"""The status: what was seen, decided and predicted. Unknown values are absent, never zero."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from servingslo.api.constraints import keyed_by
from servingslo.api.status_base import (
    MAX_REASON_LENGTH,
    PRESERVE_UNKNOWN,
    OpenStatusModel,
    StatusModel,
    Timestamp,
    rounded,
    told,
    with_features,
)
from servingslo.api.v1alpha1.status_reserve import ReserveStatus
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import ObjectiveReport, PredictedCount
from servingslo.policy.pools.inputs import MOST_POOLS
from servingslo.policy.replicas.ownership import advises
from servingslo.reasons import Reason

# The operator writes three. Former versions write nine, and may lead while the CRD is already new.
MAX_DECISION_LINES = 9
MAX_SUMMARY_LENGTH = 512
# Of 64 KiB of JSON, which is what eight pools have at most.
MAX_PACKED_LENGTH = 65_536
MAX_LINE_LENGTH = 1024
MAX_CONDITIONS = 16
MAX_MESSAGE_LENGTH = 32_768  # as metav1.Condition
MAX_NAME_LENGTH = 253  # of an object: a DNS subdomain
MAX_TARGET_LENGTH = MAX_NAME_LENGTH + len(" + 7 more")
# Name and count of each pool: a DNS label, a blank, at most five digits and a slash.
MAX_POOLS_SUMMARY_LENGTH = MOST_POOLS * 72


def _desired(decision: Decision) -> int | None:
    """The count that the target gets, or should get from another client; None while paused."""
    if decision.limited_by is Reason.PAUSED:
        return None
    advice = advises(decision.limited_by, decision.handed_over)
    return decision.recommended_replicas if advice else decision.replicas_after


def _greatest_share(report: ObjectiveReport) -> float | None:
    """None if the least share says the same."""
    high = report.share_high_ratio
    return None if high is None or rounded(high) == rounded(report.share_low_ratio) else high


def predicted_count(decision: Decision) -> PredictedCount | None:
    """The prediction for the desired count."""
    found = (one for one in decision.predicted_counts if one.replicas == _desired(decision))
    return next(found, None)


def _utilization(decision: Decision) -> float | None:
    found = predicted_count(decision)
    return None if found is None else found.utilization_ratio


class ReplicaStatus(StatusModel):
    """Replica counts."""

    current: int | None = told("replicas.current", "Replicas that the target reports.")
    ready: int | None = told(
        "replicas.ready", "Replicas whose pods are ready.", gauge="servingslo_replicas_ready"
    )
    desired: int | None = told(
        _desired,
        "Replicas of the last decision, applied in mode Auto.",
    )


class ObjectiveStatus(StatusModel):
    """One objective with its prediction and observation."""

    gauge_labels = (("metric", "metric"), ("percentile", "percentile"))

    metric: str = told("metric", "The metric of the objective.", default=...)
    percentile: float = told(
        "percentile", "The percentile of the objective, percent.", default=..., exact=True
    )
    predicted_seconds: float | None = told(
        "predicted_seconds",
        "Predicted percentile at the desired count, seconds.",
        gauge="servingslo_predicted_seconds",
    )
    observed_seconds: float | None = told(
        "observed_seconds",
        "Observed percentile over the recent window, seconds.",
        gauge="servingslo_observed_seconds",
    )
    share_low: float | None = told(
        "share_low_ratio",
        "Least share of requests within the threshold, 0 to 1. An interval: the "
        "threshold may lie between two histogram buckets.",
        gauge="servingslo_within_objective_ratio",
    )
    share_high: float | None = told(
        _greatest_share, "Greatest share of requests within the threshold, 0 to 1."
    )


class ObservedStatus(StatusModel):
    """What was measured."""

    arrivals_per_second: float | None = told(
        "demand.arrival_rate_per_second",
        "Arrival rate, requests per second.",
        gauge="servingslo_arrivals_per_second",
    )
    forecast_per_second: float | None = told(
        "demand.forecast_rate_per_second",
        "Arrival rate expected when capacity ordered now would be ready, per second.",
        gauge="servingslo_forecast_arrivals_per_second",
    )
    objectives: tuple[ObjectiveStatus, ...] = told(
        "objectives",
        default=(),
        description="Each objective with its prediction and its observation.",
    )


class LearnedStatus(StatusModel):
    """What must survive a restart of the operator."""

    saved_at: Timestamp | None = Field(None, description="When it was written.")
    # The form belongs to the estimators and changes with them: a field-by-field schema here would
    # only have to be migrated with each of them, and `kubectl describe` would list every number.
    data: str | None = Field(
        None,
        max_length=MAX_PACKED_LENGTH,
        description="workingState.learned, as former versions wrote it; still read.",
    )
    schema_version: int | None = Field(None, description="Written by former versions.")
    state: dict[str, Any] | None = Field(
        None,
        description="What data holds, as former versions wrote it; still read.",
        json_schema_extra=dict(PRESERVE_UNKNOWN),
    )


class WorkingState(StatusModel):
    """What only machines read; the name keeps it behind all that people read."""

    decision: str | None = Field(
        None,
        max_length=MAX_PACKED_LENGTH,
        description="The whole last decision with its steps and numbers of the last minutes, as "
        "base64 of zlib of JSON: servingslo explain shows it.",
    )
    learned: str | None = Field(
        None,
        max_length=MAX_PACKED_LENGTH,
        description="Fit, windows and scale events, as base64 of zlib of JSON.",
    )


class ModelStatus(StatusModel):
    """The service law in use."""

    fit_error: float | None = told(
        "model.fit_error",
        "Mean relative error of the law's predictions of an engine's busy time, on samples not "
        "fitted; a law is trusted up to 0.15. Each assumed batch limit adds 0.1, which is not "
        "judged.",
        gauge="servingslo_model_fit_error_ratio",
    )
    source: str | None = told(
        "model.source",
        "Where the law comes from: fit, last-trusted (an earlier fit), spec "
        "(spec.serviceLaw), assumed (spec.engine.card and model), of Triton counters (fitted to "
        "its metrics) or statistics (read from its servers); saturation or none: no law is in use.",
    )
    runtime: str | None = told("runtime.name", "The engine that the pods were read as.")


class GpusStatus(StatusModel):
    """What the GPUs of the pods show, if DCGM's exporter is scraped."""

    utilization: float | None = told(
        "utilization_ratio",
        "Share of the last minutes in which they were busy, 0 to 1.",
        gauge="servingslo_gpu_utilization_ratio",
    )
    law_utilization: float | None = told(
        "law_ratio",
        "Share of the same time in which the service law explains that they were.",
        gauge="servingslo_gpu_law_utilization_ratio",
    )
    power_watts: float | None = told(
        "power_watts", "Power of all of them, watts.", gauge="servingslo_gpu_power_watts"
    )
    joules_per_token: float | None = told(
        "joules_per_token",
        "Energy of an output token, idle time included, joules.",
        gauge="servingslo_joules_per_output_token",
    )
    missing: str | None = told(lambda gpus: gpus.missing or None, "What is not exported.")


class PredictedStatus(StatusModel):
    """What the desired count is predicted to give."""

    utilization: float | None = told(
        "utilization_ratio",
        "Arrival rate divided by saturation rate, 0 to 1.",
        gauge="servingslo_utilization_ratio",
    )


class BatchLimits(StatusModel):
    """Batch limits of one engine, and the plan that goes with them."""

    max_num_seqs: int | None = Field(None, description="Most running sequences.")
    max_num_batched_tokens: int | None = Field(None, description="Most tokens in one step.")
    replicas: int | None = Field(
        None, description="Replicas that the demand planned for needs with these limits."
    )
    in_flight_limit: int | None = Field(
        None, description="Requests that may then run and wait at each replica together."
    )


class BatchingStatus(StatusModel):
    """Batch limits in force and recommended."""

    current: BatchLimits | None = Field(None, description="Limits in force.")
    recommended: BatchLimits | None = Field(
        None, description="Limits that would serve best, where they are others."
    )
    last_change: Timestamp | None = Field(None, description="When the limits were last changed.")


class AdmissionStatus(StatusModel):
    """Admission limits that the ready replicas can keep."""

    admitted_per_second: float | None = told(
        "admission.admitted_rate_per_second",
        "Requests per second that ready replicas can serve within the objectives.",
        gauge="servingslo_admitted_requests_per_second",
    )
    queue_limit: int | None = told(
        "admission.queue_limit",
        "Requests that may wait at each replica.",
        gauge="servingslo_queue_limit_requests",
    )
    in_flight_limit: int | None = told(
        "admission.in_flight_limit",
        "Requests that may run and wait at each replica together.",
        gauge="servingslo_in_flight_limit_requests",
    )
    shed_fraction: float | None = told(
        "admission.shed_ratio", "Share of the present arrivals beyond the admitted rate, 0 to 1."
    )
    proxy_limit: int | None = told(
        "gateway_limit.after",
        "Requests that may be in flight at each proxy, as its object says now.",
        gauge="servingslo_proxy_limit_requests",
    )
    proxies: int | None = told("gateway_limit.proxies", "Proxies that share the bound.")


class CostStatus(StatusModel):
    """What the desired count costs, in the currency of spec.cost."""

    currency: str | None = told("currency", "Currency of the amounts.")
    per_hour: float | None = told("per_hour", "Cost of all replicas for an hour.")
    per_million_tokens: float | None = told(
        "per_million_output_tokens", "Cost of a million output tokens at the present demand."
    )
    per_million_tokens_with_prompts: float | None = told(
        "per_million_tokens", "The same, prompt tokens counted as well."
    )
    saved_per_hour: float | None = told(
        "saved_per_hour", "What the recommended batch limits would save in an hour."
    )


class PoolStatus(StatusModel):
    """One pool of a resource with pools."""

    name: str = told("pool", "Name of the pool.", default=...)
    role: str = Field(description="Combined, Prefill or Decode.")
    target: str = Field(description="Kind and name of the workload, such as Deployment/llama.")
    replicas: ReplicaStatus | None = told("", "Replica counts of this pool.")
    reason: str | None = told(
        "reason", max_length=MAX_REASON_LENGTH, description="Why this count of this pool."
    )
    binding_constraint: str | None = told(
        "binding", "The constraint that requires the most replicas of this pool."
    )
    slo: Literal["True", "False", "Unknown"] | None = Field(
        None,
        description="Whether this pool keeps the objectives; absent of prefill and decode, which "
        "keep them together.",
    )
    observed: ObservedStatus | None = told("", "What was measured of this pool.")
    utilization: float | None = told(
        _utilization, "Predicted arrival rate divided by saturation rate, 0 to 1."
    )
    cold_start_seconds: float | None = told(
        "cold_start.seconds",
        "Time from ordering a replica until it serves, as planned with.",
        exact=True,
    )
    cost: CostStatus | None = told("cost", "What the desired count costs.")
    model: ModelStatus | None = told("", "The service law in use.")
    gpus: GpusStatus | None = told("gpus", "What the GPUs of its pods show.")
    batching: BatchingStatus | None = Field(
        None, description="Batch limits in force and recommended."
    )


class Condition(StatusModel):
    """One condition, in the form of metav1.Condition."""

    type: str = Field(
        description="Ready, MetricsFresh, ModelTrusted, SLOMet, ScalingLimited, BatchingInSync, "
        "AdmissionBound, FallbackUsable, NodeBufferUsable or Stalled (only a person mends it).",
        max_length=316,
    )
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: str = Field(
        description="One CamelCase word for machines.", max_length=MAX_REASON_LENGTH
    )
    message: str = Field(description="One sentence for people.", max_length=MAX_MESSAGE_LENGTH)
    last_transition_time: Timestamp = Field(description="When the status last changed.")
    observed_generation: int | None = Field(
        None, description="Generation of the spec that this condition describes."
    )


class DecisionRecord(OpenStatusModel):
    """When the last decision was made; its line is the first of `decisions`.

    Former versions wrote its parts as fields here; they are still read.
    """

    time: Timestamp | None = Field(None, description="When it was decided.")
    document: str | None = Field(
        None,
        max_length=MAX_PACKED_LENGTH,
        description="workingState.decision, as former versions wrote it; still read.",
    )


class _Decided(StatusModel):
    """What follows from a decision."""

    observed_generation: int | None = Field(
        None, description="Generation of the spec that this status describes."
    )
    reason: str | None = Field(
        None,
        max_length=MAX_REASON_LENGTH,
        description="The reason of what is wrong; of the last decision while nothing is.",
    )
    summary: str | None = Field(
        None,
        max_length=MAX_SUMMARY_LENGTH,
        description="Whether the objectives are met, why this count, and what limits it.",
    )
    target: str | None = Field(
        None,
        max_length=MAX_TARGET_LENGTH,
        description="The workload that is scaled; with pools, the first and how many more.",
    )
    replicas: ReplicaStatus | None = told(
        "", "Replica counts; with pools, the sums over all of them."
    )
    pools_summary: str | None = Field(
        None,
        max_length=MAX_POOLS_SUMMARY_LENGTH,
        description="Replicas of each pool, such as prefill 3/decode 5.",
    )
    pools: tuple[PoolStatus, ...] | None = Field(
        None,
        max_length=MOST_POOLS,
        description="Each pool of spec.pools.",
        json_schema_extra=keyed_by("name"),
    )
    binding_constraint: str | None = told(
        "binding", "The constraint that requires the most replicas."
    )
    observed: ObservedStatus | None = told("", "What was measured.")
    predicted: PredictedStatus | None = told(
        predicted_count, "What the desired count is predicted to give."
    )
    model: ModelStatus | None = told("", "The service law in use.")
    gpus: GpusStatus | None = told("gpus", "What the GPUs of the pods show.")
    batching: BatchingStatus | None = Field(
        None, description="Batch limits in force and recommended."
    )
    admission: AdmissionStatus | None = told(
        "", "Admission limits that the ready replicas can keep."
    )
    cost: CostStatus | None = told("cost", "What the desired count costs.")
    reserve: ReserveStatus | None = told("reserve", "The reserve, if past demand asks for one.")


if TYPE_CHECKING:
    _WithFeatures = _Decided
else:
    _WithFeatures = with_features(_Decided)


class ServingSLOStatus(_WithFeatures):
    """What the operator saw, decided and predicts."""

    conditions: tuple[Condition, ...] = Field(
        (),
        max_length=MAX_CONDITIONS,
        description="Conditions, one of each type.",
        json_schema_extra=keyed_by("type"),
    )
    last_decision: DecisionRecord | None = Field(
        None, description="The last decision that differed from the one before."
    )
    decisions: tuple[Annotated[str, Field(max_length=MAX_LINE_LENGTH)], ...] = Field(
        (),
        max_length=MAX_DECISION_LINES,
        description="The last three decisions, one line each, newest first.",
    )
    learned: LearnedStatus | None = Field(
        None, description="What must survive a restart of the operator."
    )
    working_state: WorkingState | None = Field(None, description="What only machines read.")
