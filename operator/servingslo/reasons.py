"""Actions and reasons: all reason strings are defined here. They are stable API once released."""

from enum import StrEnum


class Action(StrEnum):
    """The effect of a decision on the replica count."""

    SCALE_UP = "scale-up"
    SCALE_DOWN = "scale-down"
    HOLD = "hold"


class Constraint(StrEnum):
    """The constraints that can require replicas; the largest requirement binds."""

    UTILIZATION = "utilization"
    KV_CACHE = "kv-cache"
    TTFT = "ttft"
    TPOT = "tpot"
    LATENCY = "latency"
    QUEUE_TIME = "queue-time"
    BACKLOG = "backlog"
    ADAPTER_SLOTS = "adapter-slots"
    SATURATION = "saturation"
    RESERVE = "reserve"
    DEADLINE = "deadline"
    WARM = "warm"
    MIN_REPLICAS = "min-replicas"


class Reason(StrEnum):
    """Reasons of decisions, of their steps, of conditions and of events."""

    # What binds
    UTILIZATION_BOUND = "UtilizationBound"
    KV_CACHE_BOUND = "KVCacheBound"
    TTFT_BOUND = "TTFTBound"
    TPOT_BOUND = "TPOTBound"
    LATENCY_BOUND = "LatencyBound"
    QUEUE_TIME_BOUND = "QueueTimeBound"
    BACKLOG_BOUND = "BacklogBound"
    ADAPTER_SLOTS_BOUND = "AdapterSlotsBound"
    SATURATION_BOUND = "SaturationBound"
    RESERVE_BOUND = "ReserveBound"
    DEADLINE_BOUND = "DeadlineBound"
    DISPATCHER_SILENT = "DispatcherSilent"
    WARM_BOUND = "WarmBound"
    TOLERATED_FAILURES = "ToleratedFailures"
    IDLE = "Idle"
    ASLEEP = "Asleep"
    WOKEN_BY_REQUESTS = "WokenByRequests"
    NO_WAKE_UP_SIGNAL = "NoWakeUpSignal"
    DEMAND_MET = "DemandMet"
    INFEASIBLE_OBJECTIVE = "InfeasibleObjective"

    # Bounds and guards
    MIN_REPLICAS_REACHED = "MinReplicasReached"
    MAX_REPLICAS_REACHED = "MaxReplicasReached"
    ADMINISTRATOR_LIMIT = "AdministratorLimit"
    SCALE_UP_POLICY = "ScaleUpPolicy"
    SCALE_DOWN_POLICY = "ScaleDownPolicy"
    STABILIZED = "Stabilized"
    STEP_DOWN_UNSAFE = "StepDownUnsafe"
    PENDING_PODS = "PendingPods"
    UNSCHEDULABLE_PODS = "UnschedulablePods"
    QUEUED = "Queued"
    QUOTA_REACHED = "QuotaReached"
    PODS_REFUSED = "PodsRefused"
    PODS_FAILING = "PodsFailing"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    WARMING_UP = "WarmingUp"
    UNRELIABLE_PODS = "UnreliablePods"
    NODES_OF_AN_ENGINE = "NodesOfAnEngine"
    ENGINES_ASLEEP = "EnginesAsleep"
    SLOW_PODS = "SlowPods"
    POOL_UNSEEN = "PoolUnseen"
    OTHER_POOL_AWAKE = "OtherPoolAwake"
    OTHER_POOL_SHORT = "OtherPoolShort"
    GPUS_REACHED = "GPUsReached"
    BUDGET_REACHED = "BudgetReached"
    BUDGET_MOVED = "BudgetMoved"
    BUDGET_SHORT = "BudgetShort"
    BUDGET_SUFFICIENT = "BudgetSufficient"
    SELECTS_NOTHING = "SelectsNothing"
    OUTSIDE_BUDGET = "OutsideBudget"
    GPUS_UNKNOWN = "GPUsUnknown"
    PRIORITY_BOUNDED = "PriorityBounded"
    LEAST_COST = "LeastCost"
    MOVE_DOES_NOT_PAY = "MoveDoesNotPay"

    # Signals
    METRICS_FRESH = "MetricsFresh"
    METRICS_STALE = "MetricsStale"
    METRICS_MISSING = "MetricsMissing"
    METRICS_PARTIAL = "MetricsPartial"
    METRICS_NOT_A_NUMBER = "MetricsNotANumber"
    METRICS_IMPLAUSIBLE = "MetricsImplausible"
    METRICS_TOO_MANY = "MetricsTooMany"
    SEVERAL_RUNTIMES = "SeveralRuntimes"
    SEVERAL_MODELS = "SeveralModels"
    MODEL_NOT_SERVED = "ModelNotServed"
    METRIC_NOT_OF_RUNTIME = "MetricNotOfRuntime"
    PROMETHEUS_UNAVAILABLE = "PrometheusUnavailable"
    FALLBACK_FLOOR = "FallbackFloor"
    GATEWAY_COUNTS = "GatewayCounts"
    GATEWAY_REFUSALS_ADDED = "GatewayRefusalsAdded"
    GATEWAY_SILENT = "GatewaySilent"
    GATEWAY_STALE = "GatewayStale"
    GATEWAY_UNDERCOUNTS = "GatewayUndercounts"
    GATEWAY_IMPLAUSIBLE = "GatewayImplausible"
    ENGINES_COUNT_REFUSALS = "EnginesCountRefusals"
    REFUSALS_UNSEEN = "RefusalsUnseen"
    RETRIES_EXCLUDED = "RetriesExcluded"
    PODS_UNSCRAPED = "PodsUnscraped"
    LATENCY_FROM_MEANS = "LatencyFromMeans"
    LATENCY_OF_WORST_POD = "LatencyOfWorstPod"
    MORE_REPLICAS_DO_NOT_HELP = "MoreReplicasDoNotHelp"

    # Model
    MODEL_TRUSTED = "ModelTrusted"
    MODEL_LEARNING = "ModelLearning"
    MODEL_DOES_NOT_PREDICT = "ModelDoesNotPredict"
    MODEL_NOT_IDENTIFIABLE = "ModelNotIdentifiable"
    NO_TOKENS_GENERATED = "NoTokensGenerated"
    GPUS_DISAGREE = "GPUsDisagree"
    LIMITS_UNKNOWN = "LimitsUnknown"
    LIMITS_ASSUMED = "LimitsAssumed"
    LIMITS_LEARNT = "LimitsLearnt"
    CONFIGURATION_CHANGED = "ConfigurationChanged"
    LEARNED_DROPPED = "LearnedDropped"
    LAW_FROM_SPEC = "LawFromSpec"
    LAW_ASSUMED = "LawAssumed"
    LAW_FROM_SPEC_DOES_NOT_PREDICT = "LawFromSpecDoesNotPredict"

    # Season and surges
    SEASON_FOUND = "SeasonFound"
    SEASON_NOT_FOUND = "SeasonNotFound"
    HISTORY_TOO_SHORT = "HistoryTooShort"
    SEASON_EXPECTED = "SeasonExpected"

    # Ownership and mode
    SCALER_CONFLICT = "ScalerConflict"
    TARGET_CONFLICT = "TargetConflict"
    SCALED_TO_ZERO_BY_USER = "ScaledToZeroByUser"
    REPLICAS_CHANGED_BY_USER = "ReplicasChangedByUser"
    REPLICAS_REVERTED = "ReplicasReverted"
    HANDED_OVER = "HandedOver"
    NOBODY_SCALES = "NobodyScales"
    SCALER_NOT_SERVED = "ScalerNotServed"
    REPORTED_ONLY = "ReportedOnly"
    RECOMMEND_ONLY = "RecommendOnly"
    PAUSED = "Paused"
    KILL_SWITCH = "KillSwitch"

    # Resource and target
    READY = "Ready"
    INVALID_SPEC = "InvalidSpec"
    TARGET_NOT_FOUND = "TargetNotFound"
    TARGET_NOT_SCALABLE = "TargetNotScalable"
    TARGET_NOT_READABLE = "TargetNotReadable"
    PERMISSION_DENIED = "PermissionDenied"
    CLUSTER_UNAVAILABLE = "ClusterUnavailable"
    INTERNAL_ERROR = "InternalError"

    # Writes
    SCALED = "Scaled"
    WRITE_CONFLICT = "WriteConflict"
    WRITE_FAILED = "WriteFailed"
    LEASE_LOST = "LeaseLost"
    ANOTHER_OPERATOR = "AnotherOperator"

    # Objectives
    WITHIN_OBJECTIVES = "WithinObjectives"
    OBJECTIVES_MISSED = "ObjectivesMissed"
    BELOW_BUCKET_RESOLUTION = "BelowBucketResolution"
    NO_TRAFFIC = "NoTraffic"
    NOT_OBSERVED = "NotObserved"

    # Batching
    BATCHING_IN_SYNC = "BatchingInSync"
    BATCHING_OFF = "BatchingOff"
    BATCHING_RECOMMENDED = "BatchingRecommended"
    BATCHING_CHANGED = "BatchingChanged"
    BATCHING_ROLLED_BACK = "BatchingRolledBack"
    BATCHING_CANARY_STARTED = "BatchingCanaryStarted"
    BATCHING_CANARY_HELD = "BatchingCanaryHeld"
    BATCHING_CANARY_RUNNING = "BatchingCanaryRunning"
    BATCHING_CANARY_FAILED = "BatchingCanaryFailed"
    BATCHING_CANARY_NOT_COMPARED = "BatchingCanaryNotCompared"
    BATCHING_CANARY_NOT_POSSIBLE = "BatchingCanaryNotPossible"
    BATCHING_LEFT_TO_USER = "BatchingLeftToUser"
    BATCHING_REVERTED = "BatchingReverted"
    BATCHING_TOO_SOON = "BatchingTooSoon"
    BATCHING_GAIN_TOO_SMALL = "BatchingGainTooSmall"
    LIMITS_STATED = "LimitsStated"
    NOT_PERMITTED = "NotPermitted"
    KIND_NOT_SUPPORTED = "KindNotSupported"
    ARGUMENTS_NOT_UNDERSTOOD = "ArgumentsNotUnderstood"
    CONTAINER_NOT_FOUND = "ContainerNotFound"

    # Admission
    ADMISSION_OFF = "AdmissionOff"
    ADMISSION_RECOMMENDED = "AdmissionRecommended"
    ADMISSION_UNKNOWN = "AdmissionUnknown"
    LIMIT_VERIFIED = "LimitVerified"
    LIMIT_UNVERIFIED = "LimitUnverified"
    LIMIT_NOT_HELD = "LimitNotHeld"
    LIMIT_NOT_ENFORCEABLE = "LimitNotEnforceable"
    LIMIT_SET_BY_ANOTHER = "LimitSetByAnother"
    LIMIT_RELEASED = "LimitReleased"
    LIMIT_SET = "LimitSet"
    LIMIT_RAISED = "LimitRaised"
    LIMIT_LOWERED = "LimitLowered"
    LIMIT_OPENED = "LimitOpened"
    LIMIT_PUT_BACK = "LimitPutBack"

    # Degradation
    NOT_DEGRADED = "NotDegraded"
    DEGRADED = "Degraded"
    MAX_SHARE_REACHED = "MaxShareReached"
    FALLBACK_FULL = "FallbackFull"
    FALLBACK_UNSEEN = "FallbackUnseen"
    ROUTE_NOT_USABLE = "RouteNotUsable"
    WEIGHTS_SET_BY_ANOTHER = "WeightsSetByAnother"
    WEIGHTS_RELEASED = "WeightsReleased"
    DEGRADATION_RAISED = "DegradationRaised"
    DEGRADATION_LOWERED = "DegradationLowered"
    WEIGHTS_PUT_BACK = "WeightsPutBack"

    # Nodes before pods
    NODES_SUFFICIENT = "NodesSufficient"
    NODES_BUFFERED = "NodesBuffered"
    MAX_BUFFER_REACHED = "MaxBufferReached"
    NODE_LEAD_UNKNOWN = "NodeLeadUnknown"
    BUFFER_NOT_USABLE = "BufferNotUsable"
    BUFFER_SET_BY_ANOTHER = "BufferSetByAnother"
    BUFFER_RELEASED = "BufferReleased"
    BUFFER_RAISED = "BufferRaised"
    BUFFER_LOWERED = "BufferLowered"
    BUFFER_PUT_BACK = "BufferPutBack"
    # Sleep
    ENGINES_PUT_TO_SLEEP = "EnginesPutToSleep"
    ENGINES_WOKEN = "EnginesWoken"


BOUND_REASON = {
    Constraint.UTILIZATION: Reason.UTILIZATION_BOUND,
    Constraint.KV_CACHE: Reason.KV_CACHE_BOUND,
    Constraint.TTFT: Reason.TTFT_BOUND,
    Constraint.TPOT: Reason.TPOT_BOUND,
    Constraint.LATENCY: Reason.LATENCY_BOUND,
    Constraint.QUEUE_TIME: Reason.QUEUE_TIME_BOUND,
    Constraint.BACKLOG: Reason.BACKLOG_BOUND,
    Constraint.ADAPTER_SLOTS: Reason.ADAPTER_SLOTS_BOUND,
    Constraint.SATURATION: Reason.SATURATION_BOUND,
    Constraint.RESERVE: Reason.RESERVE_BOUND,
    Constraint.DEADLINE: Reason.DEADLINE_BOUND,
    Constraint.WARM: Reason.WARM_BOUND,
    Constraint.MIN_REPLICAS: Reason.MIN_REPLICAS_REACHED,
}
