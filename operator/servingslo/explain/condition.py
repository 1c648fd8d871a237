"""A condition of a ServingSLO, and what it says before it is known since when."""

from dataclasses import dataclass
from enum import StrEnum

from servingslo.reasons import Reason


class ConditionType(StrEnum):
    """What a condition is about."""

    READY = "Ready"
    METRICS_FRESH = "MetricsFresh"
    MODEL_TRUSTED = "ModelTrusted"
    SLO_MET = "SLOMet"
    SCALING_LIMITED = "ScalingLimited"
    BATCHING_IN_SYNC = "BatchingInSync"
    ADMISSION_BOUND = "AdmissionBound"


class ConditionStatus(StrEnum):
    """As metav1.ConditionStatus."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition. last_transition_seconds: since the epoch, when the status last changed."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str
    observed_generation: int
    last_transition_seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a condition says, before it is known since when."""

    status: ConditionStatus
    reason: Reason
    message: str
