"""The spec: only the fields that this version honours."""

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic.alias_generators import to_snake

from servingslo.api.constraints import (
    MAX_REPLICAS,
    RULES,
    Between,
    Count,
    DurationBetween,
    cel_rule,
    keyed_by,
    not_allowed,
)
from servingslo.api.patterns import MODEL_NAME
from servingslo.api.spec_base import ApiModel, parts_within, with_features, with_rules
from servingslo.api.v1alpha1 import workload
from servingslo.api.v1alpha1.behavior import BehaviorRules
from servingslo.api.v1alpha1.capacity import (
    KVCache,
    Replicas,
    ServiceLaw,
    Utilization,
)
from servingslo.api.v1alpha1.knobs import Admission, Batching, Engine
from servingslo.api.v1alpha1.objectives import (
    MAX_OBJECTIVES,
    OBJECTIVES_SCHEMA,
    REFUSED,
    Objective,
    allowed_metrics,
    check_objectives,
)
from servingslo.api.v1alpha1.pools import (
    FEWEST_POOLS,
    POOLS_RULES,
    SPEC_RULES,
    FleetGpus,
    Pool,
    Transfer,
    check_beside_pools,
    check_fleet,
    check_floor,
    check_maxima,
    check_pools,
)
from servingslo.api.v1alpha1.workload import (
    ColdStart,
    Cost,
    Gateway,
    GpusPerReplica,
    RuntimeName,
    TargetRef,
)
from servingslo.policy.inputs import (
    Actuation,
    AdmissionMode,
    FallbackBehavior,
    ForecastMode,
    Mode,
    SeasonStated,
)
from servingslo.policy.pools.inputs import MOST_POOLS

MOST_PRIORITY = 1_000_000

_NEEDS_VIA = "an object, required when mode is Auto"
# Fields of one route, and those that state several, each with a bound of its own.
_ONE_ROUTE = tuple(part.field_name for part in parts_within() if part.one_route)
_SEVERAL_ROUTES = tuple(part.field_name for part in parts_within() if part.several_routes)
_NOT_OF_RUNTIME = "self.objectives.filter(o, o.metric in {metrics})"


def _metrics_rule(runtime: str) -> dict[str, Any]:
    """Objectives are about what the stated runtime, also of a pool, has."""
    found = _NOT_OF_RUNTIME.format(metrics=REFUSED[runtime])
    return cel_rule(
        f"(self.runtime != '{runtime}' && (!has(self.pools)"
        f" || self.pools.all(p, p.runtime != '{runtime}'))) || {found}.size() == 0",
        allowed=allowed_metrics(runtime),
        got="%s",
        values=(f"{found}[0].metric",),
        field_path=".objectives",
    )


def _only_one_route(several: str) -> str:
    return f"none with {several} yet: one route"


class Forecast(ApiModel):
    """How the demand is estimated that a replica ordered now will meet."""

    mode: ForecastMode = Field(
        ForecastMode.AUTO,
        description="Auto (default: demand as it is expected when capacity ordered now would be "
        "ready, and the reserve that past demand asks for) or Off (demand as it is now).",
    )
    season: SeasonStated = Field(
        SeasonStated.AUTO,
        description="Auto (default: a daily or weekly season, if history shows one), or 1d or "
        "7d: there is one of this length, however weak it looks.",
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
        None,
        description="The floor, of each pool, 1 to replicas.max. Required when behavior is Floor.",
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


class _Stated(ApiModel):
    """What every resource may state."""

    target_ref: TargetRef | None = Field(
        None, description="The workload that is scaled. Required without pools."
    )
    pools: tuple[Pool, ...] | None = Field(
        None,
        min_length=FEWEST_POOLS,
        max_length=MOST_POOLS,
        description="Instead of targetRef, 2 to 8 sets of equal replicas under one promise: "
        "prefill and decode, or the same model on several cards.",
        json_schema_extra={RULES: list(POOLS_RULES), **keyed_by("name")},
    )
    gpus: FleetGpus | None = Field(
        None,
        description="Most GPUs of all pools together, 1 to 100000, enough for every replicas.min "
        "(0 counts as 1); unbounded by default. GPUs of a replica are those of gpusPerReplica.",
    )
    transfer: Transfer | None = Field(
        None,
        description="Mean time until the decode pool has the KV cache of the prefill pool: "
        "Measured (default; assumed from prompt lengths if nothing measures it) or a duration from "
        "1ms to 60s.",
    )
    runtime: RuntimeName = workload.RUNTIME
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
        description="Who sets the replica count: Scale (default: the operator, through /scale), "
        "Metric (an autoscaler that follows servingslo_desired_replicas), Keda (KEDA asks the "
        "operator, if the administrator serves it) or None (it is only reported). Batch limits "
        "and admission follow their own modes.",
    )
    objectives: tuple[Objective, ...] = Field(
        min_length=1,
        max_length=MAX_OBJECTIVES,
        description="Latency objectives, 1 to 8; each metric and percentile once. Every one is met "
        "at its own percentile.",
        json_schema_extra=OBJECTIVES_SCHEMA,
    )
    priority: Annotated[Count, Between(-MOST_PRIORITY, MOST_PRIORITY)] = Field(
        0,
        description="Who comes first where GPUs are shared, -1000000 to 1000000, default 0: a "
        "higher priority plans first, and takes what lower ones have above replicas.min. The "
        "administrator bounds it from above.",
    )
    replicas: Replicas = workload.REPLICAS
    utilization: Utilization = workload.UTILIZATION
    kv_cache: KVCache = workload.KV_CACHE
    behavior: BehaviorRules = Field(
        BehaviorRules(),
        description="How fast replicas may change: names and meaning of HorizontalPodAutoscaler "
        "v2, defaults of our own.",
    )
    cold_start: ColdStart = workload.COLD_START
    service_law: ServiceLaw | None = workload.SERVICE_LAW
    forecast: Forecast = Field(Forecast(), description="Demand to come.")
    engine: Engine = workload.ENGINE
    batching: Batching = workload.BATCHING
    admission: Admission = Field(Admission(), description="Admission limits.")
    gateway: Gateway = Field(Gateway(), description="The gateway in front of the workload.")


if TYPE_CHECKING:
    _WithFeatures = _Stated
else:
    _WithFeatures = with_features(_Stated)


class ServingSLOSpec(_WithFeatures):
    """Objectives of one LLM serving workload and the bounds within which it may be scaled."""

    model_config = with_rules(
        cel_rule(
            "self.mode != 'Auto' || has(self.pools) || has(self.replicas.max)",
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
        *map(_metrics_rule, REFUSED),
        *SPEC_RULES,
        cel_rule(
            " || ".join(
                (
                    "self.admission.mode != 'Auto' || has(self.admission.via)",
                    *(f"has(self.{several})" for several in _SEVERAL_ROUTES),
                )
            ),
            allowed=_NEEDS_VIA,
            got="nothing",
            field_path=".admission.via",
            reason="FieldValueRequired",
        ),
        *(
            cel_rule(
                f"!has(self.{several}) || !has(self.{field})",
                allowed=_only_one_route(several),
                got="a value",
                field_path=f".{field}",
            )
            for several in _SEVERAL_ROUTES
            for field in _ONE_ROUTE
        ),
        *(rule for part in parts_within() for rule in part.rules),
    )

    fallback: Fallback = Field(Fallback(), description="What happens while metrics are missing.")
    gpus_per_replica: GpusPerReplica | None = workload.GPUS_PER_REPLICA
    cost: Cost | None = workload.COST

    @model_validator(mode="after")
    def _objectives_differ(self) -> Self:
        check_objectives(self.objectives)
        return self

    @model_validator(mode="after")
    def _metrics_of_runtime(self) -> Self:
        runtimes = dict.fromkeys((self.runtime, *(pool.runtime for pool in self.pools or ())))
        for runtime in runtimes:
            for objective in self.objectives:
                if objective.metric.value in REFUSED.get(runtime, ()):
                    raise not_allowed(
                        allowed_metrics(runtime),
                        path=("objectives",),
                        value=objective.metric.value,
                    )
        return self

    @model_validator(mode="after")
    def _pools_agree(self) -> Self:
        check_beside_pools(self.pools, self, self.target_ref)
        if self.pools is not None:
            check_pools(self.pools)
        check_fleet(self.pools, self.gpus, self.transfer)
        return self

    @model_validator(mode="after")
    def _routes_agree(self) -> Self:
        several = [one for one in _SEVERAL_ROUTES if getattr(self, to_snake(one)) is not None]
        if not several and self.admission.mode is AdmissionMode.AUTO and not self.admission.via:
            raise not_allowed(_NEEDS_VIA, path=("admission", "via"), value=None)
        for field in _ONE_ROUTE:
            if several and getattr(self, to_snake(field)) is not None:
                raise not_allowed(_only_one_route(several[0]), path=(field,), value="a value")
        return self

    @model_validator(mode="after")
    def _features_agree(self) -> Self:
        for part in parts_within():
            part.check(self)
        return self

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        maximum, floor = self.replicas.max, self.fallback.replicas
        if self.pools is not None:
            if self.mode is Mode.AUTO:
                check_maxima(self.pools)
            check_floor(self.pools, floor)
            return self
        if self.mode is Mode.AUTO and maximum is None:
            raise not_allowed(
                "1 or more, required when mode is Auto", path=("replicas", "max"), value=None
            )
        if maximum is not None and floor is not None and floor > maximum:
            raise not_allowed(
                f"at most replicas.max, {maximum}", path=("fallback", "replicas"), value=floor
            )
        return self
