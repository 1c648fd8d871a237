"""A decision as data. Conditions, events, the log line and metrics all derive from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servingslo.estimation.pods.gpus import GpuUse
from servingslo.estimation.requests.served_models import ServedModels
from servingslo.policy.decision_parts import (
    ColdStartReport,
    ConstraintNeed,
    CostReport,
    DecisionStep,
    DemandReport,
    HandOver,
    LimitsUse,
    ModelUse,
    ObjectiveReport,
    PredictedCount,
    PromiseReport,
    ReplicaView,
    ReserveReport,
    RuntimeUse,
)
from servingslo.policy.knobs.decisions import (
    ADMISSION,
    BATCH_LIMITS,
    GATEWAY_LIMITS,
    AdmissionDecision,
    BatchingDecision,
    KnobDecision,
    LimitDecision,
    WrittenBound,
)
from servingslo.reasons import Action, Constraint, Reason

_NO_BATCHING = BatchingDecision(reason=Reason.BATCHING_OFF)
_NO_ADMISSION = AdmissionDecision(reason=Reason.ADMISSION_OFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Everything one tick decided for one workload.

    replicas_before: the count the plan started from (the test of the write). replicas_after:
    the count to set; equal on hold; None if the target's count is unknown.
    recommended_replicas: what the planner wants before guards that only limit acting (mode,
    ownership); equal to replicas_after in mode Auto. apply_replicas: whether the write may
    happen (mode Auto, no kill switch, no conflict, a change). needs: each constraint's own
    requirement, at the demand planned for. limited_by: the guard that kept the planner from its
    requirement, None if none did. metrics: METRICS_FRESH or why not. metrics_age_seconds: of
    the oldest group that was used. metrics_missing: which series are missing, in words; '' if
    none is known to be. cost: None if no price is stated. cold_start: None in decisions that
    were stored without it. limits: in force on the newest ready pods. runtime: of the engines,
    as read. gpus: None if nothing is known about them. models: None if each engine serves one
    model without adapters. handed_over: None if the operator itself sets the count, or if
    acting is switched off. promise: None before any observation. reserve: None if the past
    asks for none. features: what each feature reports, by its name. knobs: the decision of
    each knob, by its name; without those that have nothing to report. pool: of a resource
    with several, else ''.
    """

    time_seconds: float
    namespace: str
    name: str
    pool: str = ""
    action: Action
    reason: Reason
    replicas_before: int | None
    replicas_after: int | None
    recommended_replicas: int | None
    apply_replicas: bool
    replicas: ReplicaView
    binding: Constraint | None = None
    limited_by: Reason | None = None
    needs: tuple[ConstraintNeed, ...] = ()
    steps: tuple[DecisionStep, ...] = ()
    demand: DemandReport = field(default_factory=DemandReport)
    objectives: tuple[ObjectiveReport, ...] = ()
    predicted_counts: tuple[PredictedCount, ...] = ()
    model: ModelUse
    knobs: Mapping[str, KnobDecision] = field(default_factory=dict)
    metrics: Reason = Reason.METRICS_FRESH
    metrics_age_seconds: float | None = None
    metrics_missing: str = ""
    cost: CostReport | None = None
    cold_start: ColdStartReport | None = None
    limits: LimitsUse = field(default_factory=LimitsUse)
    runtime: RuntimeUse = field(default_factory=RuntimeUse)
    gpus: GpuUse | None = None
    models: ServedModels | None = None
    handed_over: HandOver | None = None
    promise: PromiseReport | None = None
    reserve: ReserveReport | None = None
    features: Mapping[str, object] = field(default_factory=dict)
    detail: str = ""

    @property
    def batching(self) -> BatchingDecision:
        """Batch limits, as they are reported."""
        found = self.knobs.get(BATCH_LIMITS)
        batching = found if isinstance(found, BatchingDecision) else _NO_BATCHING
        for knob in self.knobs.values():
            batching = knob.amended(batching)
        return batching

    @property
    def admission(self) -> AdmissionDecision:
        """Bounds on the requests that ready replicas can take."""
        found = self.knobs.get(ADMISSION)
        return found if isinstance(found, AdmissionDecision) else _NO_ADMISSION

    @property
    def gateway_limit(self) -> LimitDecision | None:
        """The bound in flight; None if none is to be written."""
        found = self.knobs.get(GATEWAY_LIMITS)
        return found if isinstance(found, LimitDecision) else None

    @property
    def bound(self) -> WrittenBound | None:
        """Where a bound in flight is written, and why; None if none is to be written."""
        return next((one for knob in self.knobs.values() if (one := knob.bound)), None)


def replace_knob(decision: Decision, name: str, knob: KnobDecision) -> Decision:
    """The decision with another decision of this knob."""
    return replace(decision, knobs={**decision.knobs, name: knob})


def hold(decision: Decision, reason: Reason, detail: str) -> Decision:
    """The decision as carried out if nothing of it could or should be written: a hold."""
    return replace(
        decision,
        action=Action.HOLD,
        reason=reason,
        limited_by=reason,
        replicas_after=decision.replicas_before,
        apply_replicas=False,
        knobs={name: knob.hold() for name, knob in decision.knobs.items()},
        detail=detail,
    )
