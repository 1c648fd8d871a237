"""A condition of a ServingSLO, and its verdict before the time of its transition is known."""

from enum import StrEnum

from servingslo.reasons import Reason
from servingslo.records import record


class ConditionType(StrEnum):
    """The subject of a condition."""

    READY = "Ready"
    METRICS_FRESH = "MetricsFresh"
    MODEL_TRUSTED = "ModelTrusted"
    SLO_MET = "SLOMet"
    SCALING_LIMITED = "ScalingLimited"
    BATCHING_IN_SYNC = "BatchingInSync"
    ADMISSION_BOUND = "AdmissionBound"
    FALLBACK_USABLE = "FallbackUsable"
    NODE_BUFFER_USABLE = "NodeBufferUsable"
    STALLED = "Stalled"


class ConditionStatus(StrEnum):
    """As metav1.ConditionStatus."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@record(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition. last_transition_seconds: since the epoch, when the status last changed."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str
    observed_generation: int
    last_transition_seconds: float


@record(frozen=True, slots=True)
class Verdict:
    """Status, reason and message of a condition, before the time of its transition is known."""

    status: ConditionStatus
    reason: Reason
    message: str
