"""The status: what was seen, decided and predicted. Unknown values are absent, never zero."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MAX_DECISION_LINES = 9
MAX_LINE_LENGTH = 1024
MAX_CONDITIONS = 16
MAX_MESSAGE_LENGTH = 32_768  # as metav1.Condition
PRESERVE_UNKNOWN = {"x-kubernetes-preserve-unknown-fields": True}

Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class StatusModel(BaseModel):
    """A part of the status, built by snake_case names, written in camelCase."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )


class OpenStatusModel(StatusModel):
    """A part of the status with further fields of no fixed schema."""

    model_config = ConfigDict(extra="allow", json_schema_extra=dict(PRESERVE_UNKNOWN))


class ReplicaStatus(StatusModel):
    """Replica counts."""

    current: int | None = Field(None, description="Replicas that the target reports.")
    ready: int | None = Field(None, description="Replicas whose pods are ready.")
    pending: int | None = Field(None, description="Replicas ordered but not ready yet.")
    desired: int | None = Field(
        None,
        description="Replicas of the last decision, applied in mode Auto.",
    )


class ObjectiveStatus(StatusModel):
    """One objective with its prediction and observation."""

    metric: str = Field(description="The metric of the objective.")
    percentile: float = Field(description="The percentile of the objective, percent.")
    threshold_seconds: float = Field(description="The threshold in seconds.")
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


class LedgerStatus(StatusModel):
    """Where the requests went, per second: offered = admitted + refused + queueing."""

    reason: str | None = Field(
        None,
        description="Who counts refusals: GatewayCounts, GatewayRefusalsAdded, "
        "GatewayUndercounts or EnginesCountRefusals; RefusalsUnseen if neither does.",
        max_length=63,
    )
    offered_per_second: float | None = Field(None, description="All requests, retries included.")
    admitted_per_second: float | None = Field(None, description="Let into the engines.")
    refused_per_second: float | None = Field(
        None, description="Refused by gateway and engines; absent if unknown."
    )
    queueing_per_second: float | None = Field(
        None, description="Growth of the gateway's own queue, negative while it drains."
    )
    retried_per_second: float | None = Field(
        None, description="The part of the offered load that is treated as retries."
    )


class ObservedStatus(StatusModel):
    """What was measured."""

    sampled_at: Timestamp | None = Field(
        None, description="When the measurement was taken; unchanged while nothing changes."
    )
    arrivals_per_second: float | None = Field(
        None, description="Arrival rate, requests per second."
    )
    forecast_per_second: float | None = Field(
        None,
        description="Arrival rate expected when capacity ordered now would be ready, per second.",
    )
    lead_seconds: float | None = Field(
        None,
        description="How far ahead the forecast looks, seconds: a scrape, a tick and a cold start.",
    )
    running: float | None = Field(None, description="Requests being decoded.")
    waiting: float | None = Field(None, description="Requests waiting for a slot.")
    backlog: float | None = Field(None, description="Requests to drain on top of new arrivals.")
    prompt_tokens: float | None = Field(None, description="Mean prompt length, tokens.")
    output_tokens: float | None = Field(None, description="Mean output length, tokens.")
    cached_fraction: float | None = Field(
        None, description="Share of prompt tokens served by the prefix cache, 0 to 1."
    )
    kv_usage: float | None = Field(None, description="KV cache use, 0 to 1.")
    aborted_fraction: float | None = Field(
        None, description="Share of the requests that ended whose clients gave up, 0 to 1."
    )
    ledger: LedgerStatus | None = Field(
        None, description="Where the requests of the last scrapes went."
    )
    objectives: tuple[ObjectiveStatus, ...] = Field(
        (), description="Each objective with its prediction and its observation."
    )


class LearnedStatus(StatusModel):
    """What must survive a restart of the operator."""

    schema_version: int | None = Field(
        None, description="Version of the form of state; another version is not read."
    )
    saved_at: Timestamp | None = Field(None, description="When it was written.")
    # The form belongs to the estimators and changes with them; it is versioned by schemaVersion and
    # read by the operator alone, so that a field-by-field schema here would only have to be
    # migrated with each of them.
    state: dict[str, Any] | None = Field(
        None,
        description="Fit, windows and scale events. Read by the operator alone, at most 4 KiB.",
        json_schema_extra=dict(PRESERVE_UNKNOWN),
    )


class ModelStatus(StatusModel):
    """The service law in use."""

    step_fixed_seconds: float | None = Field(None, description="Fixed time of one step, seconds.")
    step_per_sequence_seconds: float | None = Field(
        None, description="Step time added by each decoding sequence, seconds."
    )
    prefill_per_token_seconds: float | None = Field(
        None, description="Step time added by each prefilled token, seconds."
    )
    step_per_context_token_seconds: float | None = Field(
        None, description="Step time added by each attended context token, seconds."
    )
    relative_error: float | None = Field(
        None,
        description="Calibration: largest deviation from 1 of observed over predicted percentiles "
        "of the objectives, learnt slowly, within 0.7 and 2; predictions are corrected by it.",
    )
    fit_error: float | None = Field(
        None,
        description="Mean relative error of the law's predictions of how long an engine is busy "
        "between two scrapes, on samples that were not fitted. A law is trusted while that is at "
        "most 0.15 and its step time at twice the concurrency seen is known to a fifth; each batch "
        "limit that is assumed adds 0.1 here, as an independent error, and is not judged.",
    )
    samples: int | None = Field(None, description="Samples that the fit rests on.")
    source: str | None = Field(
        None,
        description="Where the law comes from: fit, last-trusted (an earlier fit), spec "
        "(spec.serviceLaw), of Triton counters (fitted to its metrics) or statistics (read from "
        "its servers); saturation or none: no law is in use.",
    )
    max_num_seqs: int | None = Field(
        None, description="Most running sequences of an engine that predictions are made with."
    )
    max_num_seqs_source: str | None = Field(
        None,
        description="Where it is known from: stated (spec.engine), exported (the engine's own "
        "gauges), args (the container's command line), learnt (from measurements) or default (of "
        "the engine's version and card).",
    )
    max_num_batched_tokens: int | None = Field(
        None, description="Most tokens of a step that predictions are made with."
    )
    max_num_batched_tokens_source: str | None = Field(
        None, description="Where it is known from, in the same words."
    )
    runtime: str | None = Field(None, description="The engine that the pods were read as.")
    runtime_source: str | None = Field(
        None, description="How it is known: stated (spec.runtime) or recognized (its metrics)."
    )


class PredictedStatus(StatusModel):
    """What the desired count is predicted to give."""

    utilization: float | None = Field(
        None, description="Arrival rate divided by saturation rate, 0 to 1."
    )
    kv_usage: float | None = Field(None, description="KV cache use, 0 to 1.")
    ttft_seconds: float | None = Field(
        None, description="Time to first token at the objective's percentile, seconds."
    )
    tpot_seconds: float | None = Field(
        None, description="Time per output token at the objective's percentile, seconds."
    )
    latency_seconds: float | None = Field(
        None, description="Time of the whole request at the objective's percentile, seconds."
    )
    queue_seconds: float | None = Field(
        None, description="Wait before the first step at the objective's percentile, seconds."
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
    recommended: BatchLimits | None = Field(None, description="Limits that would serve best.")
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


class Condition(StatusModel):
    """One condition, in the form of metav1.Condition."""

    type: str = Field(
        description="Ready, MetricsFresh, ModelTrusted, SLOMet, ScalingLimited, BatchingInSync or "
        "AdmissionBound.",
        max_length=316,
    )
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: str = Field(description="One CamelCase word for machines.", max_length=1024)
    message: str = Field(description="One sentence for people.", max_length=MAX_MESSAGE_LENGTH)
    last_transition_time: Timestamp = Field(description="When the status last changed.")
    observed_generation: int | None = Field(
        None, description="Generation of the spec that this condition describes."
    )


class DecisionRecord(OpenStatusModel):
    """The last decision in full.

    Steps and predictions carry numbers, words and flags in turn and grow with each feature: a
    structural schema has no such union, so only the head is fixed.
    """

    time: Timestamp | None = Field(None, description="When it was decided.")
    action: str | None = Field(None, description="scale-up, scale-down or hold.")
    reason: str | None = Field(None, description="Why, one CamelCase word.")
    replicas_before: int | None = Field(None, description="Replicas before the decision.")
    replicas_after: int | None = Field(None, description="Replicas after the decision.")
    recommended_replicas: int | None = Field(
        None, description="Replicas wanted before the guards that only limit acting."
    )
    binding: str | None = Field(None, description="The constraint that binds.")
    limited_by: str | None = Field(None, description="The guard that held the planner back.")
    detail: str | None = Field(None, description="What else a person should know.")


class ServingSLOStatus(StatusModel):
    """What the operator saw, decided and predicts."""

    observed_generation: int | None = Field(
        None, description="Generation of the spec that this status describes."
    )
    replicas: ReplicaStatus | None = Field(None, description="Replica counts.")
    binding_constraint: str | None = Field(
        None, description="The constraint that requires the most replicas."
    )
    observed: ObservedStatus | None = Field(None, description="What was measured.")
    predicted: PredictedStatus | None = Field(
        None, description="What the desired count is predicted to give."
    )
    model: ModelStatus | None = Field(None, description="The service law in use.")
    batching: BatchingStatus | None = Field(
        None, description="Batch limits in force and recommended."
    )
    admission: AdmissionStatus | None = Field(
        None, description="Admission limits that the ready replicas can keep."
    )
    cost: CostStatus | None = Field(None, description="What the desired count costs.")
    error_budget: ErrorBudgetStatus | None = Field(
        None, description="The error budget, if spec.errorBudget is set."
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
        None, description="The last decision in full, at most 8 KiB."
    )
    decisions: tuple[Annotated[str, Field(max_length=MAX_LINE_LENGTH)], ...] = Field(
        (),
        max_length=MAX_DECISION_LINES,
        description="The nine decisions before the last one, one line each, newest first.",
    )
    learned: LearnedStatus | None = Field(
        None, description="What must survive a restart of the operator."
    )
