"""Who decides the count and who carries it out: owners, other scalers, the mode, refusals."""

from dataclasses import replace

from servingslo.policy.decision_parts import HandOver
from servingslo.policy.inputs import (
    Actuation,
    Limits,
    Mode,
    Observation,
    SignalProblem,
    Targets,
)
from servingslo.reasons import Reason

_OWNERSHIP = (
    Reason.TARGET_NOT_FOUND,
    Reason.TARGET_NOT_SCALABLE,
    Reason.TARGET_NOT_READABLE,
    Reason.PERMISSION_DENIED,
    Reason.CLUSTER_UNAVAILABLE,
    Reason.SCALER_CONFLICT,
    Reason.TARGET_CONFLICT,
)
# Another client sets the count; the operator's own result is still reported.
CONFLICTS = frozenset({Reason.SCALER_CONFLICT, Reason.TARGET_CONFLICT})
# Acting is switched off: the decision is still made, with its own reason.
ADVICE_ONLY = frozenset({Reason.RECOMMEND_ONLY, Reason.KILL_SWITCH})
# With each of these a decision is only reported: no client carries its count out.
NOT_CARRIED_OUT = frozenset(
    {
        *_OWNERSHIP,
        *ADVICE_ONLY,
        Reason.SCALED_TO_ZERO_BY_USER,
        Reason.PAUSED,
        Reason.NODES_OF_AN_ENGINE,
    }
)
# Ordered pods are not created; the plan goes on.
_REFUSALS = frozenset({Reason.QUOTA_REACHED, Reason.PODS_REFUSED})
_NOBODY = "no HorizontalPodAutoscaler or ScaledObject is on it"
_NOT_SERVED = "the operator serves KEDA no scaler"
_UNASKED = "does not ask the operator: KEDA does by a trigger of type external-push"
_NO_METRICS = (
    Reason.PROMETHEUS_UNAVAILABLE,
    Reason.SEVERAL_RUNTIMES,
    Reason.SEVERAL_MODELS,
    Reason.MODEL_NOT_SERVED,
    Reason.METRIC_NOT_OF_RUNTIME,
    Reason.METRICS_IMPLAUSIBLE,
    Reason.METRICS_TOO_MANY,
    Reason.METRICS_MISSING,
    Reason.METRICS_STALE,
    Reason.METRICS_PARTIAL,
    Reason.METRICS_NOT_A_NUMBER,
)


def advises(limited_by: Reason | None, handed_over: HandOver | None) -> bool:
    """Whether the count of a decision is for another client, or nobody, to carry out."""
    return limited_by in ADVICE_ONLY or handed_over is not None


def ownership_problem(
    observation: Observation, actuation: Actuation = Actuation.SCALE, *, may_sleep: bool = False
) -> SignalProblem | None:
    """Why the operator must not decide the replica count; None if it may.

    With another `actuation`, the client that scales the target is no problem, but with Keda it
    must ask the operator. may_sleep: a target at zero is allowed.
    """
    found = [
        problem
        for problem in observation.problems
        if problem.reason in _OWNERSHIP
        and (problem.reason is not Reason.SCALER_CONFLICT or _is_rival(problem, actuation))
    ]
    if found:
        # A target that cannot be used at all comes before a target that another client uses.
        first = min(found, key=lambda problem: problem.reason in CONFLICTS)
        unasked = first.unasking and actuation is Actuation.KEDA
        return replace(first, detail=f"{first.detail} and {_UNASKED}") if unasked else first
    if observation.desired_replicas is None:
        return SignalProblem(
            reason=Reason.TARGET_NOT_READABLE, detail="the replica count of the target is unknown"
        )
    if observation.desired_replicas == 0 and not may_sleep:
        return SignalProblem(
            reason=Reason.SCALED_TO_ZERO_BY_USER,
            detail="the operator decides again at 1 replica or more",
        )
    return None


def _is_rival(scaler: SignalProblem, actuation: Actuation) -> bool:
    """Whether another scaler of the target sets a count of its own."""
    return actuation is Actuation.SCALE or (actuation is Actuation.KEDA and scaler.unasking)


def metrics_problem(observation: Observation) -> SignalProblem | None:
    """Why the engines of this workload cannot be observed, if the reader reports it."""
    return next((p for p in observation.problems if p.reason in _NO_METRICS), None)


def refused_pods(observation: Observation) -> SignalProblem | None:
    """Why ordered pods are not created; None if they are."""
    return next((p for p in observation.problems if p.reason in _REFUSALS), None)


def acting_limit(targets: Targets, limits: Limits) -> Reason | None:
    """Why a decision is only reported and not carried out; None if it is carried out."""
    if limits.recommend_only:
        return Reason.KILL_SWITCH
    if targets.mode is Mode.PAUSED:
        return Reason.PAUSED
    if targets.mode is Mode.RECOMMEND:
        return Reason.RECOMMEND_ONLY
    return None


def hand_over(
    targets: Targets,
    observation: Observation,
    wanted: int | None,
    *,
    known: bool,
    scaler_served: bool = True,
) -> HandOver | None:
    """Who receives the count, and which count; None if the operator sets it.

    wanted: None if the target's count is unknown. known: the count rests on fresh metrics. Without
    them no count is handed over: the other scaler then does what it is configured to do in that
    case. scaler_served: KEDA can ask the operator.
    """
    if targets.actuation is Actuation.SCALE:
        return None
    scalers = [p.detail for p in observation.problems if p.reason is Reason.SCALER_CONFLICT]
    if targets.actuation is Actuation.NONE:
        reason, replicas = Reason.REPORTED_ONLY, None
    elif targets.actuation is Actuation.KEDA and not scaler_served:
        reason, replicas, scalers = Reason.SCALER_NOT_SERVED, None, [_NOT_SERVED]
    else:
        reason = Reason.HANDED_OVER if scalers else Reason.NOBODY_SCALES
        replicas = wanted if known else None
    detail = "; ".join(scalers) or _NOBODY
    return HandOver(actuation=targets.actuation, reason=reason, replicas=replicas, detail=detail)
