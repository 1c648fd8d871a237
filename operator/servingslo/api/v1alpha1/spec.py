"""The spec: only the fields that this version honours."""

from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from servingslo.api.constraints import (
    RULES,
    Between,
    Count,
    DurationBetween,
    Number,
    cel_rule,
    not_allowed,
)
from servingslo.api.v1alpha1.base import ApiModel, with_rules
from servingslo.api.v1alpha1.behavior import BehaviorRules
from servingslo.api.v1alpha1.capacity import (
    MAX_GPUS,
    MAX_REPLICAS,
    KVCache,
    Replicas,
    ServiceLaw,
    Utilization,
)
from servingslo.api.v1alpha1.knobs import Admission, Batching, Engine
from servingslo.api.v1alpha1.patterns import (
    API_VERSION_NAME,
    CURRENCY_CODE,
    DAYS,
    DNS_NAME,
    KIND_NAME,
    MODEL_NAME,
    RUNTIME_NAME,
    SHARE,
)
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    Actuation,
    FallbackBehavior,
    ForecastMode,
    Mode,
    SeasonStated,
)
from servingslo.runtimes.catalogue import AUTO_RUNTIME, CATALOGUE, names

KIND = "ServingSLO"
MAX_OBJECTIVES = 8
# Above any card in use, in any currency that is counted in tens per dollar.
MAX_GPU_HOURLY = 10_000

# Metrics that no objective can be about on a runtime, as (runtime, metric).
_REFUSED = tuple((one.name, metric) for one in CATALOGUE for metric, _ in one.refused)
_NOT_OF_RUNTIME = "self.objectives.filter(o, o.metric in {metrics})"


def _metrics_rule(runtime: str) -> dict[str, Any]:
    """Objectives are about what the stated runtime has."""
    metrics = [metric for name, metric in _REFUSED if name == runtime]
    found = _NOT_OF_RUNTIME.format(metrics=metrics)
    return cel_rule(
        f"self.runtime != '{runtime}' || {found}.size() == 0",
        allowed=_allowed_metrics(runtime),
        got="%s",
        values=(f"{found}[0].metric",),
        field_path=".objectives",
    )


def _allowed_metrics(runtime: str) -> str:
    refused = [metric for name, metric in _REFUSED if name == runtime]
    has = " or ".join(metric.value for metric in LatencyMetric if metric.value not in refused)
    return f"{has} where runtime is {runtime}, which answers a request at once"


# The first objective whose metric and percentile stand elsewhere, too.
_REPEATED = (
    "self.filter(a, !self.exists_one(b, a.metric == b.metric && a.percentile == b.percentile))[0]"
)


class TargetRef(ApiModel):
    """The workload that is scaled."""

    model_config = with_rules(
        cel_rule(
            f"self.kind != '{KIND}'",
            allowed=f"any kind with a /scale subresource, not {KIND} itself",
            got="%s",
            values=("self.kind",),
            field_path=".kind",
        )
    )

    api_version: Annotated[str, API_VERSION_NAME] = Field(
        "apps/v1", description="API version of the workload, apps/v1 by default."
    )
    kind: Annotated[str, KIND_NAME] = Field(
        description="Kind of the workload: Deployment or StatefulSet. Another kind with a /scale "
        "subresource needs the chart's extraScalableKinds."
    )
    name: Annotated[str, DNS_NAME] = Field(
        description="Name of the workload, in the namespace of this resource."
    )

    @model_validator(mode="after")
    def _not_itself(self) -> Self:
        if self.kind == KIND:
            allowed = f"any kind with a /scale subresource, not {KIND} itself"
            raise not_allowed(allowed, path=("kind",), value=self.kind)
        return self


class Objective(ApiModel):
    """One latency objective."""

    metric: LatencyMetric = Field(
        description="What is bounded: ttft (time to first token), tpot (decode time divided by "
        "output tokens - 1), latency (whole request) or queueTime (wait before the first step)."
    )
    percentile: Annotated[Number, Between(50, 99.9)] = Field(
        description="Share of requests in percent that must stay within the threshold, 50 to 99.9."
    )
    threshold: Annotated[str, DurationBetween("1ms", "1h")] = Field(
        description="The bound, a duration from 1ms to 1h such as 500ms or 2s."
    )


class Forecast(ApiModel):
    """How the demand is estimated that a replica ordered now will meet."""

    mode: ForecastMode = Field(
        ForecastMode.AUTO,
        description="Auto (default: demand as it is expected when capacity ordered now would be "
        "ready) or Off (demand as it is now).",
    )
    season: SeasonStated = Field(
        SeasonStated.AUTO,
        description="Auto (default: a daily or weekly season, if history shows one), or 1d or "
        "7d: there is one of this length, however weak it looks.",
    )


class Cost(ApiModel):
    """The price of a replica, so that plans are priced as well."""

    gpu_hourly: Annotated[Number, Between(0.001, MAX_GPU_HOURLY)] = Field(
        description="Price of one GPU for an hour, 0.001 to 10000."
    )
    gpus_per_replica: Annotated[Count, Between(1, MAX_GPUS)] = Field(
        1, description="GPUs of one replica, 1 (default) to 1024."
    )
    currency: Annotated[str, CURRENCY_CODE] = Field(
        "USD", description="Currency of the price, three capital letters; USD by default."
    )


class Gateway(ApiModel):
    """How the gateway knows the workload, where the administrator has one read."""

    name: Annotated[str, DNS_NAME] | None = Field(
        None,
        description="Name that the gateway has for the workload, in the namespace of this "
        "resource: of the HTTPRoute (Envoy Gateway), of the InferencePool (inference extension) or "
        "of the workload (Istio); by default targetRef.name.",
    )


class Fallback(ApiModel):
    """What happens while metrics are missing."""

    model_config = with_rules(
        cel_rule(
            "self.behavior != 'Floor' || has(self.replicas)",
            allowed="1 or more, required when behavior is Floor",
            got="nothing",
            field_path=".replicas",
            reason="FieldValueRequired",
        )
    )

    behavior: FallbackBehavior = Field(
        FallbackBehavior.HOLD,
        description="Hold (default: keep the replica count) or Floor (at least replicas, never "
        "fewer than now).",
    )
    replicas: Annotated[Count, Between(1, MAX_REPLICAS)] | None = Field(
        None, description="The floor, 1 to replicas.max. Required when behavior is Floor."
    )
    stale_after: Annotated[str, DurationBetween("1s", "24h")] = Field(
        "2m", description="How long metrics may be missing, 1s to 24h, default 2m."
    )

    @model_validator(mode="after")
    def _floor_has_replicas(self) -> Self:
        if self.behavior is FallbackBehavior.FLOOR and self.replicas is None:
            raise not_allowed(
                "1 or more, required when behavior is Floor", path=("replicas",), value=None
            )
        return self


class ErrorBudget(ApiModel):
    """How many requests may miss any objective, over days."""

    target: Annotated[str, SHARE] | None = Field(
        None,
        description="Share of requests that must meet all objectives, 50% to 99.999%, such as "
        "99.5%; by default the smallest percentile of the objectives.",
    )
    window: Annotated[str, DAYS] = Field(
        "28d",
        description="How far back, 1d to 90d, default 28d. Prometheus must keep metrics so long: "
        "status.errorBudget.covered is the share of it that is known.",
    )


class ServingSLOSpec(ApiModel):
    """Objectives of one LLM serving workload and the bounds within which it may be scaled."""

    model_config = with_rules(
        cel_rule(
            "self.mode != 'Auto' || has(self.replicas.max)",
            allowed="1 or more, required when mode is Auto",
            got="nothing",
            field_path=".replicas.max",
            reason="FieldValueRequired",
        ),
        cel_rule(
            "!has(self.fallback.replicas) || !has(self.replicas.max)"
            " || self.fallback.replicas <= self.replicas.max",
            allowed="at most replicas.max, %s",
            got="%s",
            values=("self.replicas.max", "self.fallback.replicas"),
            field_path=".fallback.replicas",
        ),
        *map(_metrics_rule, dict.fromkeys(name for name, _ in _REFUSED)),
    )

    target_ref: TargetRef = Field(description="The workload that is scaled.")
    runtime: Annotated[str, RUNTIME_NAME] = Field(
        AUTO_RUNTIME,
        description="The engine, which decides names of metrics and flags: Auto (default: the one "
        f"whose metrics the pods export), {', '.join(one.name for one in CATALOGUE)}, or one that "
        "the administrator added.",
    )
    model: Annotated[str, MODEL_NAME] | None = Field(
        None,
        description="Which model of the server, for runtime triton, by the server's own name; "
        "needed if a server has several.",
    )
    mode: Mode = Field(
        Mode.AUTO,
        description="Auto (default), Recommend (decide and report, change nothing) or Paused.",
    )
    actuation: Actuation = Field(
        Actuation.SCALE,
        description="Who carries the replica count out: Scale (default: the operator, through "
        "/scale), Metric (an autoscaler that follows the gauge servingslo_desired_replicas, as a "
        "ScaledObject of KEDA), Keda (KEDA, through the operator's external scaler, if the "
        "administrator serves it) or None (the count is only reported). Batch limits and "
        "admission follow their own modes.",
    )
    objectives: tuple[Objective, ...] = Field(
        min_length=1,
        max_length=MAX_OBJECTIVES,
        description="Latency objectives, 1 to 8; each metric and percentile once. Every one is met "
        "at its own percentile.",
        json_schema_extra={
            RULES: [
                cel_rule(
                    "self.all(a, self.exists_one(b,"
                    " a.metric == b.metric && a.percentile == b.percentile))",
                    allowed="each metric and percentile once",
                    got="%s p%s more than once",
                    values=(f"{_REPEATED}.metric", f"{_REPEATED}.percentile"),
                )
            ]
        },
    )
    replicas: Replicas = Field(Replicas(), description="Bounds on the replica count.")
    utilization: Utilization = Field(Utilization(), description="Bound on utilization.")
    kv_cache: KVCache = Field(KVCache(), description="Bound on KV cache use.")
    behavior: BehaviorRules = Field(
        BehaviorRules(),
        description="How fast replicas may change: names and meaning of HorizontalPodAutoscaler "
        "v2, defaults of our own.",
    )
    cold_start: Annotated[str, DurationBetween("1s", "24h", word="Measured")] = Field(
        "Measured",
        description="Time from ordering a replica until it serves: Measured (default, from this "
        "workload's own pods) or a duration from 1s to 24h.",
    )
    service_law: ServiceLaw | None = Field(
        None,
        description="Time of an engine's step, as `servingslo fit` found it on the same engine: "
        "used while no law fitted here is trusted, and only while it predicts the measurements. "
        "Without one, measured saturation decides until then.",
    )
    forecast: Forecast = Field(Forecast(), description="Demand to come.")
    engine: Engine = Field(
        Engine(),
        description="Limits that the engine runs with, if no other source has them or it is wrong.",
    )
    batching: Batching = Field(Batching(), description="Batch limits of the engine.")
    admission: Admission = Field(Admission(), description="Admission limits.")
    gateway: Gateway = Field(Gateway(), description="The gateway in front of the workload.")
    error_budget: ErrorBudget | None = Field(
        None,
        description="Account of the requests that missed any objective, from the counters of "
        "Prometheus; its target is the promised share.",
    )
    fallback: Fallback = Field(Fallback(), description="What happens while metrics are missing.")
    cost: Cost | None = Field(
        None, description="Price of a replica; without one no costs are reported."
    )

    @model_validator(mode="after")
    def _objectives_differ(self) -> Self:
        seen = set()
        for objective in self.objectives:
            key = (objective.metric, objective.percentile)
            if key in seen:
                raise not_allowed(
                    "each metric and percentile once",
                    path=("objectives",),
                    value=f"{objective.metric} p{objective.percentile:g}",
                )
            seen.add(key)
        return self

    @field_validator("runtime")
    @classmethod
    def _runtime_is_known(cls, runtime: str) -> str:
        if runtime not in (AUTO_RUNTIME, *names()):
            raise not_allowed(", ".join((AUTO_RUNTIME, *names())))
        return runtime

    @model_validator(mode="after")
    def _metrics_of_runtime(self) -> Self:
        for objective in self.objectives:
            if (self.runtime, objective.metric.value) in _REFUSED:
                raise not_allowed(
                    _allowed_metrics(self.runtime),
                    path=("objectives",),
                    value=objective.metric.value,
                )
        return self

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        maximum, floor = self.replicas.max, self.fallback.replicas
        if self.mode is Mode.AUTO and maximum is None:
            raise not_allowed(
                "1 or more, required when mode is Auto", path=("replicas", "max"), value=None
            )
        if maximum is not None and floor is not None and floor > maximum:
            raise not_allowed(
                f"at most replicas.max, {maximum}", path=("fallback", "replicas"), value=floor
            )
        return self
