"""Inputs of a plan: the observation, the tenant's targets, the administrator's limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from servingslo.errors import InvalidInputError
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.pods.batch_limits import NOTHING_STATED, StatedLimits
from servingslo.estimation.sample import GatewaySample, PodSample
from servingslo.estimation.windows.freshness import DEFAULT_STALE_AFTER_SECONDS
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.models.fleet.latency import Objective
from servingslo.policy.hpa_behavior import Behavior
from servingslo.policy.routes import ClassTargets, Elsewhere
from servingslo.reasons import Reason

# Version of a recorded observation; other versions are not read.
OBSERVATION_SCHEMA_VERSION = 1
# Names of the two batch limits, as in the runtimes' profiles.
LIMIT_FIELDS = ("max_num_seqs", "max_num_batched_tokens")


class Mode(StrEnum):
    """What the operator may do with its decisions."""

    AUTO = "Auto"
    RECOMMEND = "Recommend"
    PAUSED = "Paused"


class Actuation(StrEnum):
    """Who sets the replica count: the operator, other clients that receive it, or no client."""

    SCALE = "Scale"
    METRIC = "Metric"
    KEDA = "Keda"
    NONE = "None"


class BatchingMode(StrEnum):
    """What the operator may do with batch limits."""

    OFF = "Off"
    RECOMMEND = "Recommend"
    AUTO = "Auto"


class AdmissionMode(StrEnum):
    """What the operator may do with admission limits."""

    OFF = "Off"
    RECOMMEND = "Recommend"
    AUTO = "Auto"


class LimitKind(StrEnum):
    """Where a bound on requests in flight can be written: an object, or the engines' own flag."""

    BACKEND_TRAFFIC_POLICY = "BackendTrafficPolicy"
    DESTINATION_RULE = "DestinationRule"
    ENGINE_ARGUMENTS = "EngineArguments"


class ForecastMode(StrEnum):
    """Whether the plan uses forecast demand or present demand."""

    AUTO = "Auto"
    OFF = "Off"


class SeasonStated(StrEnum):
    """What the spec says of the season: nothing (it may be detected), or its length."""

    AUTO = "Auto"
    DAY = "1d"
    WEEK = "7d"


class FallbackBehavior(StrEnum):
    """What happens while metrics are missing."""

    HOLD = "Hold"
    FLOOR = "Floor"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTarget:
    """The workload that is scaled, in the resource's own namespace.

    part: which of its workloads, for a kind that makes several: 'prefill' or '', the main one.
    """

    api_version: str
    kind: str
    name: str
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTargets:
    """Bounds on the replica count, and how many failed replicas the objectives must survive.

    idle_seconds: time without any request after which the last replica is removed, if the minimum
    is 0. zero_at_times: at another time it is. If it never is, a target at 0 was switched off by a
    user. lowered_from: the minimum above the maximum, which holds; None if there is none. usual:
    the stated bounds, if others hold now. Raises: InvalidInputError for a minimum below 0, or of 0
    without idle_seconds.
    """

    minimum: int = 1
    maximum: int | None = None
    tolerated_failures: int = 0
    idle_seconds: float | None = None
    zero_at_times: bool = False
    lowered_from: int | None = None
    usual: "ReplicaTargets | None" = None

    def __post_init__(self) -> None:
        if self.minimum < 0:
            raise InvalidInputError("replicas.min", self.minimum, "0 or more")
        if self.may_sleep and self.idle_seconds is None:
            raise InvalidInputError("replicas.idleAfter", None, "a time, where replicas.min is 0")

    @property
    def may_sleep(self) -> bool:
        """Whether there may be no replica while no requests arrive, now or at another time."""
        return self.minimum == 0 or self.zero_at_times


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheModel:
    """Geometry of the KV cache, for engines that report no capacity. Sizes in bytes."""

    layers: int
    kv_heads: int
    head_dim: int
    bytes_per_element: int
    weights_bytes: float
    workspace_bytes: float
    gpu_memory_bytes: float
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingTargets:
    """What may be done with batch limits; container None means the only engine container."""

    mode: BatchingMode = BatchingMode.RECOMMEND
    container: str | None = None
    min_sequences: int = 1
    max_sequences: int | None = None
    min_interval_seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastTargets:
    """How future demand is estimated."""

    mode: ForecastMode = ForecastMode.AUTO
    season: SeasonStated = SeasonStated.AUTO

    @property
    def season_days(self) -> int | None:
        """Length of the stated season; None if it is to be detected."""
        return {SeasonStated.DAY: 1, SeasonStated.WEEK: 7}.get(self.season)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTargets:
    """Price of a GPU hour, its currency, and the number of GPUs of a replica."""

    gpu_hourly: float
    gpus_per_replica: int = 1
    currency: str = "USD"

    @property
    def replica_hourly(self) -> float:
        """Cost of one replica for an hour."""
        return self.gpu_hourly * self.gpus_per_replica


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackTargets:
    """What to do when metrics are missing for longer than stale_after_seconds."""

    behavior: FallbackBehavior = FallbackBehavior.HOLD
    replicas: int | None = None
    stale_after_seconds: float = DEFAULT_STALE_AFTER_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitObject:
    """The object that holds the bound, in the resource's own namespace; '' for the engines."""

    kind: LimitKind
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The tenant's objectives and bounds: the spec of a ServingSLO in SI units.

    runtime: of the engines; None means recognized by the metrics that their pods export.
    utilization_target_ratio: None means derived from recent demand. cold_start_seconds: None
    means measured from the workload's own pods. cost: None if no price is known.
    admission_enforced: engines accept no more requests in flight than the decided bound.
    admission_via: where the bound is written in mode Auto. admission_proxies: how many proxies
    share it; None means as many as are read. gateway_name: the gateway's name for the workload;
    None if it is the target's own name. service_law: used while no fit is trusted; None if none
    is stated. law_assumed: it is that of the card and model that are named, measured elsewhere
    or nowhere. stated_limits: override command lines and data. model: which model of a server
    with several; None for its only one. stated_share_ratio: of requests that must meet every
    objective; None means the smallest percentile of the objectives. promise_period_seconds: over
    which the attained share is reported. gpus_per_replica: None if it is not stated. priority:
    where GPUs are shared. elsewhere: None if no
    request is served by other pods. classes: of requests, with different routes; () for one kind of
    requests. objectives are those that replicas keep: of all classes that order some. features:
    what is stated of each feature, by its name.
    """

    target: ScaleTarget
    objectives: tuple[Objective, ...]
    runtime: str | None = None
    mode: Mode = Mode.AUTO
    actuation: Actuation = Actuation.SCALE
    replicas: ReplicaTargets = ReplicaTargets()
    utilization_target_ratio: float | None = None
    kv_cache_target_ratio: float = 0.9
    kv_cache_model: KVCacheModel | None = None
    behavior: Behavior = field(default_factory=Behavior)
    cold_start_seconds: float | None = None
    forecast: ForecastTargets = ForecastTargets()
    batching: BatchingTargets = BatchingTargets()
    admission_mode: AdmissionMode = AdmissionMode.OFF
    admission_enforced: bool = False
    admission_via: LimitObject | None = None
    admission_proxies: int | None = None
    fallback: FallbackTargets = FallbackTargets()
    cost: CostTargets | None = None
    gateway_name: str | None = None
    service_law: ServiceLaw | None = None
    law_assumed: bool = False
    stated_limits: StatedLimits = NOTHING_STATED
    model: str | None = None
    stated_share_ratio: float | None = None
    promise_period_seconds: float = 86_400.0
    gpus_per_replica: int | None = None
    priority: int = 0
    classes: tuple[ClassTargets, ...] = ()
    elsewhere: Elsewhere | None = None
    features: Mapping[str, object] = field(default_factory=dict)

    @property
    def promised_share_ratio(self) -> float:
        """Share of requests that must meet every objective."""
        if self.stated_share_ratio is not None:
            return self.stated_share_ratio
        return min(objective.percentile for objective in self.objectives) / 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The administrator's bounds over all resources.

    recommend_only: the kill switch. batching_apply_enabled: batch limits may be changed, in pod
    templates and on running servers. batching_servers_only: only on running servers. max_replicas,
    max_step: largest count and largest change in one decision; None is unbounded. scaler_served:
    KEDA can ask the operator for counts. max_priority: the highest priority that counts; None is
    unbounded.
    """

    recommend_only: bool = False
    batching_apply_enabled: bool = False
    batching_servers_only: bool = False
    max_replicas: int | None = None
    max_step: int | None = None
    tick_seconds: float = 15.0
    scaler_served: bool = True
    max_priority: int | None = None

    @property
    def pod_templates_patched(self) -> bool:
        """Whether batch limits may be changed in pod templates."""
        return self.batching_apply_enabled and not self.batching_servers_only


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalProblem:
    """A problem that makes the planner hold: it cannot observe or change the workload reliably.

    reason: METRICS_*, PROMETHEUS_UNAVAILABLE, TARGET_*, SCALER_CONFLICT, TARGET_CONFLICT,
    PERMISSION_DENIED or CLUSTER_UNAVAILABLE. detail: names and numbers for people. names_cause: the
    detail itself says what is missing and what to do. unasking: a scaler that asks nobody.
    """

    reason: Reason
    detail: str = ""
    names_cause: bool = False
    unasking: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """The cluster's current values of one thing that the operator may change next to the workload.

    values: by name; None if a value is not set. refused: why it may not be changed, None if it may.
    set_by: the field manager that set it last, None if that is not known.
    """

    values: Mapping[str, int | None] = field(default_factory=dict)
    refused: SignalProblem | None = None
    set_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGpus:
    """GPUs of one replica. gpus: None if they are unknown; refused: why."""

    gpus: int | None = None
    refused: str = ""


NO_GPUS_KNOWN = ReplicaGpus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """GPUs that a resource may order now, all its pools together, of a number that several share.

    kind, budget: what and which one, '' for the resource's own bound. gpus_per_replica: of the
    observed workload. kept_per_gpu: requests per second that one more GPU keeps within their
    objectives. unknown: why the GPUs of some replica are unknown; '' if they are known. Then
    nothing may grow. holders: who has GPUs that this resource lacks, for people. priority_bounded:
    its stated priority is above the administrator's.
    """

    budget: str
    kind: str = "budget"
    gpus: int = 0
    gpus_per_replica: int = 1
    kept_per_gpu: float = 0.0
    unknown: str = ""
    holders: str = ""
    priority_bounded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One control tick of one workload, raw: the reader decides nothing.

    desired_replicas: of the target's /scale spec. current_replicas: of its /scale status.
    replicas_set_by: the field manager that set the count last, None if the target does not report
    it. runtime: whose metrics and flags were read from the pods; None if unknown. problems: data
    that could not be read, or another owner of the field. batching_change_refused: why batching
    arguments cannot be patched, if the reader knows. history: past arrival rates of this workload,
    only at the tick at which they were read. features: what readers of features last read, by
    the feature's name. in_force: current values next to the workload itself, by the knob of
    its actuator. woken_by_others: another scaler brings the target back from zero by a signal of
    its own. not_woken: why a gateway would count no request without a pod; '' if there is no doubt.
    pool: of a resource with several pools, the one observed; else ''. grant: None if no budget
    bounds the resource. fallback: the gateway's counts of the fallback, if there is one. classes:
    the gateway's counts of each class of requests, of which `gateway` is the sum.
    """

    schema_version: int = OBSERVATION_SCHEMA_VERSION
    time_seconds: float
    namespace: str
    name: str
    pool: str = ""
    uid: str = ""
    generation: int = 0
    desired_replicas: int | None = None
    replicas_set_by: str | None = None
    current_replicas: int | None = None
    rollout_in_progress: bool = False
    runtime: str | None = None
    pods: tuple[PodSample, ...] = ()
    gateway: GatewaySample | None = None
    problems: tuple[SignalProblem, ...] = ()
    batching_change_refused: SignalProblem | None = None
    history: RateHistory | None = None
    features: Mapping[str, object] = field(default_factory=dict)
    in_force: Mapping[str, InForce] = field(default_factory=dict)
    woken_by_others: bool = False
    not_woken: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    grant: Grant | None = None
    classes: Mapping[str, GatewaySample] = field(default_factory=dict)
    fallback: GatewaySample | None = None
