"""The status: what was seen, decided and predicted. Unknown values are absent, never zero."""

from typing import Annotated, Any, Literal

from pydantic import Field

from servingslo.api.v1alpha1.status_base import (
    PRESERVE_UNKNOWN,
    OpenStatusModel,
    StatusModel,
    Timestamp,
)
from servingslo.api.v1alpha1.status_latency import AvailabilityStatus, LatencyStatus, ReserveStatus
from servingslo.api.v1alpha1.status_shard import ShardStatus
from servingslo.policy.classes.inputs import MOST_CLASSES
from servingslo.policy.pools.inputs import MOST_POOLS

# The operator writes three. Former versions write nine, and may lead while the CRD is already new.
MAX_DECISION_LINES = 9
MAX_SUMMARY_LENGTH = 512
MAX_REASON_LENGTH = 1024
# Of 64 KiB of JSON, which is what eight pools have at most.
MAX_PACKED_LENGTH = 65_536
MAX_LINE_LENGTH = 1024
MAX_CONDITIONS = 16
MAX_MESSAGE_LENGTH = 32_768  # as metav1.Condition
MAX_NAME_LENGTH = 253  # of an object: a DNS subdomain
MAX_TARGET_LENGTH = MAX_NAME_LENGTH + len(" + 7 more")
# Name and count of each pool: a DNS label, a blank, at most five digits and a slash.
MAX_POOLS_SUMMARY_LENGTH = MOST_POOLS * 72


class ReplicaStatus(StatusModel):
    """Replica counts."""

    current: int | None = Field(None, description="Replicas that the target reports.")
    ready: int | None = Field(None, description="Replicas whose pods are ready.")
    desired: int | None = Field(
        None,
        description="Replicas of the last decision, applied in mode Auto.",
    )


class ObjectiveStatus(StatusModel):
    """One objective with its prediction and observation."""

    metric: str = Field(description="The metric of the objective.")
    percentile: float = Field(description="The percentile of the objective, percent.")
    predicted_seconds: float | None = Field(
        None, description="Predicted percentile at the desired count, seconds."
    )
    observed_seconds: float | None = Field(
        None, description="Observed percentile over the recent window, seconds."
    )
    share_low: float | None = Field(
        None,
        description="Least share of requests within the threshold, 0 to 1. An interval: the "
        "threshold may lie between two histogram buckets.",
    )
    share_high: float | None = Field(
        None, description="Greatest share of requests within the threshold, 0 to 1."
    )


class ObservedStatus(StatusModel):
    """What was measured."""

    arrivals_per_second: float | None = Field(
        None, description="Arrival rate, requests per second."
    )
    forecast_per_second: float | None = Field(
        None,
        description="Arrival rate expected when capacity ordered now would be ready, per second.",
    )
    objectives: tuple[ObjectiveStatus, ...] = Field(
        (), description="Each objective with its prediction and its observation."
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

    fit_error: float | None = Field(
        None,
        description="Mean relative error of the law's predictions of how long an engine is busy "
        "between two scrapes, on samples that were not fitted. A law is trusted while that is at "
        "most 0.15 and its step time at twice the concurrency seen is known to a fifth; each batch "
        "limit that is assumed adds 0.1 here, as an independent error, and is not judged.",
    )
    source: str | None = Field(
        None,
        description="Where the law comes from: fit, last-trusted (an earlier fit), spec "
        "(spec.serviceLaw), of Triton counters (fitted to its metrics) or statistics (read from "
        "its servers); saturation or none: no law is in use.",
    )
    runtime: str | None = Field(None, description="The engine that the pods were read as.")


class GpusStatus(StatusModel):
    """What the GPUs of the pods show, if DCGM's exporter is scraped."""

    utilization: float | None = Field(
        None, description="Share of the last minutes in which they were busy, 0 to 1."
    )
    law_utilization: float | None = Field(
        None,
        description="Share of the same time in which the service law explains that they were.",
    )
    power_watts: float | None = Field(None, description="Power of all of them, watts.")
    joules_per_token: float | None = Field(
        None, description="Energy of an output token, idle time included, joules."
    )
    missing: str | None = Field(None, description="What is not exported.")


class PredictedStatus(StatusModel):
    """What the desired count is predicted to give."""

    utilization: float | None = Field(
        None, description="Arrival rate divided by saturation rate, 0 to 1."
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

    admitted_per_second: float | None = Field(
        None, description="Requests per second that ready replicas can serve within the objectives."
    )
    queue_limit: int | None = Field(None, description="Requests that may wait at each replica.")
    in_flight_limit: int | None = Field(
        None, description="Requests that may run and wait at each replica together."
    )
    shed_fraction: float | None = Field(
        None, description="Share of the present arrivals beyond the admitted rate, 0 to 1."
    )
    proxy_limit: int | None = Field(
        None, description="Requests that may be in flight at each proxy, as its object says now."
    )
    proxies: int | None = Field(None, description="Proxies that share the bound.")


class DegradationStatus(StatusModel):
    """What goes to the fallback of spec.degradation."""

    share: float | None = Field(
        None, description="Share of the requests that the route sends to the fallback, 0 to 1."
    )
    degraded_per_second: float | None = Field(
        None, description="Requests per second that the fallback answered."
    )
    reason: str | None = Field(
        None, max_length=MAX_REASON_LENGTH, description="Why the share is what it is."
    )


class CostStatus(StatusModel):
    """What the desired count costs, in the currency of spec.cost."""

    currency: str | None = Field(None, description="Currency of the amounts.")
    per_hour: float | None = Field(None, description="Cost of all replicas for an hour.")
    per_million_tokens: float | None = Field(
        None, description="Cost of a million output tokens at the present demand."
    )
    per_million_tokens_with_prompts: float | None = Field(
        None, description="The same, prompt tokens counted as well."
    )
    saved_per_hour: float | None = Field(
        None, description="What the recommended batch limits would save in an hour."
    )


class ErrorBudgetStatus(StatusModel):
    """What is left of the error budget, and how fast it burns."""

    remaining: float | None = Field(
        None,
        description="Share of the budget that is left, by as many misses as there may have been: "
        "requests that missed two objectives are counted twice. Negative when overspent.",
    )
    remaining_at_most: float | None = Field(
        None, description="The same by as many misses as there were at least."
    )
    fast_burn: float | None = Field(
        None, description="How many times as fast as allowed it was spent in the last hour."
    )
    slow_burn: float | None = Field(None, description="The same over the last three days.")
    covered: float | None = Field(
        None, description="Share of the window of which Prometheus knows anything, 0 to 1."
    )


class PoolStatus(StatusModel):
    """One pool of a resource with pools."""

    name: str = Field(description="Name of the pool.")
    role: str = Field(description="Combined, Prefill or Decode.")
    target: str = Field(description="Kind and name of the workload, such as Deployment/llama.")
    replicas: ReplicaStatus | None = Field(None, description="Replica counts of this pool.")
    reason: str | None = Field(
        None, max_length=MAX_REASON_LENGTH, description="Why this count of this pool."
    )
    binding_constraint: str | None = Field(
        None, description="The constraint that requires the most replicas of this pool."
    )
    slo: Literal["True", "False", "Unknown"] | None = Field(
        None,
        description="Whether this pool keeps the objectives; absent of prefill and decode, which "
        "keep them together.",
    )
    observed: ObservedStatus | None = Field(None, description="What was measured of this pool.")
    utilization: float | None = Field(
        None, description="Predicted arrival rate divided by saturation rate, 0 to 1."
    )
    cold_start_seconds: float | None = Field(
        None, description="Time from ordering a replica until it serves, as planned with."
    )
    cost: CostStatus | None = Field(None, description="What the desired count costs.")
    model: ModelStatus | None = Field(None, description="The service law in use.")
    gpus: GpusStatus | None = Field(None, description="What the GPUs of its pods show.")
    batching: BatchingStatus | None = Field(
        None, description="Batch limits in force and recommended."
    )


class ClassStatus(StatusModel):
    """One class of requests of a resource with classes."""

    name: str = Field(description="Name of the class.")
    state: str = Field(
        description="Open (let in), Full (some are refused), Closed (its lane is at its least), "
        "Unbound (more is in flight than its lane allows) or Unseen (the gateway does not count "
        "it)."
    )
    offered_per_second: float | None = Field(
        None, description="Requests of the class at the gateway, refused ones included."
    )
    refused_per_second: float | None = Field(None, description="Those that the gateway refused.")
    in_flight: float | None = Field(None, description="Passed on and not answered yet.")
    mean_seconds: float | None = Field(
        None, description="Mean time from the gateway to the answer, seconds."
    )
    lane: int | None = Field(
        None, description="Requests of the class that may be in flight at each proxy."
    )
    error_budget_remaining: float | None = Field(
        None, description="Share of the class's own error budget that is left."
    )


class Condition(StatusModel):
    """One condition, in the form of metav1.Condition."""

    type: str = Field(
        description="Ready, MetricsFresh, ModelTrusted, SLOMet, ScalingLimited, BatchingInSync, "
        "AdmissionBound or FallbackUsable.",
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


class ServingSLOStatus(StatusModel):
    """What the operator saw, decided and predicts."""

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
    replicas: ReplicaStatus | None = Field(
        None, description="Replica counts; with pools, the sums over all of them."
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
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    )
    classes: tuple[ClassStatus, ...] | None = Field(
        None,
        max_length=MOST_CLASSES,
        description="Each class of spec.classes.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    )
    binding_constraint: str | None = Field(
        None, description="The constraint that requires the most replicas."
    )
    observed: ObservedStatus | None = Field(None, description="What was measured.")
    predicted: PredictedStatus | None = Field(
        None, description="What the desired count is predicted to give."
    )
    model: ModelStatus | None = Field(None, description="The service law in use.")
    gpus: GpusStatus | None = Field(None, description="What the GPUs of the pods show.")
    batching: BatchingStatus | None = Field(
        None, description="Batch limits in force and recommended."
    )
    admission: AdmissionStatus | None = Field(
        None, description="Admission limits that the ready replicas can keep."
    )
    degradation: DegradationStatus | None = Field(
        None, description="What goes to the fallback, if spec.degradation is set."
    )
    cost: CostStatus | None = Field(None, description="What the desired count costs.")
    error_budget: ErrorBudgetStatus | None = Field(
        None, description="The error budget, if spec.errorBudget is set."
    )
    reserve: ReserveStatus | None = Field(
        None, description="The reserve, if past demand asks for one."
    )
    latency: LatencyStatus | None = Field(
        None, description="The parts of the time of a request, and which of them grew."
    )
    availability: AvailabilityStatus | None = Field(
        None, description="The share of answered requests, if spec.availability is set."
    )
    conditions: tuple[Condition, ...] = Field(
        (),
        max_length=MAX_CONDITIONS,
        description="Conditions, one of each type.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
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
    shard: ShardStatus | None = Field(
        None, description="Which of several shards decides; absent for shard 0."
    )
    working_state: WorkingState | None = Field(None, description="What only machines read.")
