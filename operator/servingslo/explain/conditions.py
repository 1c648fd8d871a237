"""The conditions of a ServingSLO, each derived from the decision alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from servingslo.explain.format import count, objective_name
from servingslo.policy.decision import (
    Decision,
    DecisionStep,
    HandOver,
    LimitDecision,
    ObjectiveReport,
)
from servingslo.reasons import Reason
from servingslo.units import format_duration

PERCENT = 100.0


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


NOT_READY_REASONS = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.TARGET_NOT_FOUND,
        Reason.TARGET_NOT_SCALABLE,
        Reason.TARGET_NOT_READABLE,
        Reason.PERMISSION_DENIED,
        Reason.CLUSTER_UNAVAILABLE,
        Reason.SCALER_CONFLICT,
        Reason.TARGET_CONFLICT,
        Reason.INTERNAL_ERROR,
    }
)
# Without ages: they differ on every tick, and a condition is written when it changes.
_METRICS = {
    Reason.NO_WAKE_UP_SIGNAL: "the target sleeps",
    Reason.METRICS_STALE: "samples are too old",
    Reason.METRICS_MISSING: "no samples of the target's pods; do the labels of the scrape fit?",
    Reason.METRICS_PARTIAL: "part of the samples is missing",
    Reason.METRICS_NOT_A_NUMBER: "samples are not numbers",
    Reason.METRICS_IMPLAUSIBLE: "samples say what cannot be",
    Reason.SEVERAL_RUNTIMES: "the pods export the metrics of several runtimes",
    Reason.SEVERAL_MODELS: "the pods serve several models",
    Reason.MODEL_NOT_SERVED: "the pods serve other models",
    Reason.METRIC_NOT_OF_RUNTIME: "an objective is about what the runtime does not have",
    Reason.PROMETHEUS_UNAVAILABLE: "Prometheus does not answer",
}
_STATED_LAW = {
    Reason.LAW_FROM_SPEC: "service law from spec.serviceLaw, until one is fitted here",
    Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT: "spec.serviceLaw does not predict what is seen; "
    "measured saturation decides meanwhile",
}
# Stages whose steps name pods that are coming or doubted, or who puts the count back.
_DETAILED = frozenset({"pending", "step-down", "reverts"})
_IN_SYNC = frozenset({Reason.BATCHING_IN_SYNC, Reason.BATCHING_GAIN_TOO_SMALL})
_OUT_OF_SYNC = frozenset(
    {
        Reason.BATCHING_RECOMMENDED,
        Reason.BATCHING_CHANGED,
        Reason.BATCHING_ROLLED_BACK,
        Reason.BATCHING_CANARY_STARTED,
        Reason.BATCHING_CANARY_HELD,
        Reason.BATCHING_CANARY_RUNNING,
        Reason.BATCHING_CANARY_FAILED,
        Reason.BATCHING_CANARY_NOT_COMPARED,
        Reason.BATCHING_CANARY_NOT_POSSIBLE,
        Reason.BATCHING_LEFT_TO_USER,
        Reason.BATCHING_TOO_SOON,
        Reason.PENDING_PODS,
        Reason.STABILIZED,
        Reason.WRITE_CONFLICT,
        Reason.WRITE_FAILED,
        Reason.LAW_FROM_SPEC,
        Reason.ROLLOUT_IN_PROGRESS,
        Reason.NOT_PERMITTED,
        Reason.KIND_NOT_SUPPORTED,
        Reason.ARGUMENTS_NOT_UNDERSTOOD,
        Reason.CONTAINER_NOT_FOUND,
        Reason.RECOMMEND_ONLY,
        Reason.KILL_SWITCH,
        Reason.PAUSED,
    }
)


_LIMIT_MESSAGES = {
    Reason.LIMIT_VERIFIED: "the bound is written, and held under load",
    Reason.LIMIT_UNVERIFIED: "the bound is written; load has not been near it yet",
    Reason.LIMIT_NOT_HELD: "the bound is written, and not held",
    Reason.LIMIT_OPENED: "nothing is known of what replicas can serve; what stood before holds",
}
_LIMIT_STATUS = {
    Reason.LIMIT_VERIFIED: ConditionStatus.TRUE,
    Reason.LIMIT_UNVERIFIED: ConditionStatus.UNKNOWN,
    Reason.LIMIT_OPENED: ConditionStatus.UNKNOWN,
}


def conditions(
    decision: Decision,
    previous: Sequence[Condition] = (),
    *,
    generation: int,
    now_seconds: float,
) -> tuple[Condition, ...]:
    """All conditions after a decision, in a fixed order.

    previous: those in status now; a condition keeps its transition time while its status stays.
    """
    since = {condition.type: condition for condition in previous}
    return tuple(
        _stamped(type_, verdict, since.get(type_), generation, now_seconds)
        for type_, verdict in verdicts(decision).items()
    )


def not_ready(
    reason: Reason,
    message: str,
    previous: Sequence[Condition] = (),
    *,
    generation: int,
    now_seconds: float,
) -> tuple[Condition, ...]:
    """Conditions of a resource that could not be decided for: Ready is False, others stay."""
    verdict = Verdict(ConditionStatus.FALSE, reason, message)
    kept = {condition.type: condition for condition in previous}
    ready = ConditionType.READY
    kept[ready] = _stamped(ready, verdict, kept.get(ready), generation, now_seconds)
    return tuple(kept[type_] for type_ in ConditionType if type_ in kept)


def verdicts(decision: Decision) -> dict[ConditionType, Verdict]:
    """What each condition says of a decision."""
    return {
        ConditionType.READY: ready_verdict(decision),
        ConditionType.METRICS_FRESH: _metrics_fresh(decision),
        ConditionType.MODEL_TRUSTED: _model_trusted(decision),
        ConditionType.SLO_MET: _slo_met(decision),
        ConditionType.SCALING_LIMITED: _scaling_limited(decision),
        ConditionType.BATCHING_IN_SYNC: _batching_in_sync(decision),
        ConditionType.ADMISSION_BOUND: _admission_bound(decision),
    }


def objective_verdict(objective: ObjectiveReport) -> Verdict:
    """Whether one objective is met, as far as histogram buckets can tell.

    The message holds no measured number: conditions are written when they change, and a share
    differs on every tick. Shares stand in status.observed and in text().
    """
    low, high = objective.share_low_ratio, objective.share_high_ratio
    name = objective_name(objective)
    if low is None or high is None:
        return Verdict(ConditionStatus.UNKNOWN, Reason.NO_TRAFFIC, f"{name}: no requests")
    wanted = objective.percentile / PERCENT
    if low >= wanted:
        return Verdict(ConditionStatus.TRUE, Reason.WITHIN_OBJECTIVES, f"{name}: met")
    if high < wanted:
        return Verdict(ConditionStatus.FALSE, Reason.OBJECTIVES_MISSED, f"{name}: missed")
    message = f"{name}: the threshold lies between two histogram buckets"
    return Verdict(ConditionStatus.UNKNOWN, Reason.BELOW_BUCKET_RESOLUTION, message)


def _stamped(
    type_: ConditionType,
    verdict: Verdict,
    before: Condition | None,
    generation: int,
    now_seconds: float,
) -> Condition:
    same = before is not None and before.status is verdict.status
    return Condition(
        type=type_,
        status=verdict.status,
        reason=verdict.reason,
        message=verdict.message,
        observed_generation=generation,
        last_transition_seconds=(
            before.last_transition_seconds if before is not None and same else now_seconds
        ),
    )


def ready_verdict(decision: Decision) -> Verdict:
    """Whether the resource can be decided for, and why not."""
    for reason in (decision.reason, decision.limited_by):
        if reason in NOT_READY_REASONS and reason is not None:
            return Verdict(ConditionStatus.FALSE, reason, decision.detail or "hands off the target")
    blind = blindness(decision)
    if blind is not None:
        return Verdict(ConditionStatus.FALSE, blind.reason, _blind_message(blind))
    message = "the target is watched and decided for"
    if pods := unreliable_pods(decision):
        message = f"{message}; left out as unreliable: {pods}"
    elif pods := suspect_pods(decision):
        message = f"{message}; in doubt: {pods}"
    if told := zero_message(decision):
        message = f"{message}; {told}"
    if handed := handed_over_message(decision.handed_over):
        message = f"{message}; {handed}"
    if decision.limits.unread:
        message = f"{message}; of the engine's flags not read: {decision.limits.unread}"
    return Verdict(ConditionStatus.TRUE, Reason.READY, message)


def zero_message(decision: Decision) -> str:
    """That the target sleeps, and how long the first request waits; '' where it does not.

    Two digits: a condition is written when it changes.
    """
    for step in decision.steps:
        if step.stage != "zero":
            continue
        if step.reason is Reason.NO_WAKE_UP_SIGNAL:
            return f"it does not sleep: {step.inputs['detail']}"
        seconds = step.inputs.get("first_request_seconds")
        if isinstance(seconds, float) and decision.replicas_after == 0:
            return f"asleep: the first request waits {format_duration(float(f'{seconds:.2g}'))}"
    return ""


def handed_over_message(given: HandOver | None) -> str:
    """Who carries the count out; '' where the operator does."""
    if given is None:
        return ""
    if given.reason is Reason.REPORTED_ONLY:
        return f"actuation is None: the count is told and not set ({given.detail})"
    if given.reason is Reason.SCALER_NOT_SERVED:
        return f"actuation is Keda, and nobody is given the count: {given.detail}"
    return f"the count is given to others (actuation {given.actuation.value}): {given.detail}"


def _metrics_fresh(decision: Decision) -> Verdict:
    if decision.metrics is Reason.METRICS_FRESH:
        return Verdict(ConditionStatus.TRUE, Reason.METRICS_FRESH, "every pod was seen lately")
    blind = blindness(decision)
    if blind is not None:
        return Verdict(ConditionStatus.FALSE, decision.metrics, _blind_message(blind))
    # The decision's own detail may be about something else: who owns the target, above all.
    own = decision.detail if decision.limited_by is decision.metrics else ""
    message = own or _METRICS.get(decision.metrics, "no metrics")
    return Verdict(ConditionStatus.FALSE, decision.metrics, message)


def blindness(decision: Decision) -> DecisionStep | None:
    """The step that says why nothing could be decided for want of metrics; None where it could."""
    return next((step for step in decision.steps if step.stage == "signals"), None)


def _blind_message(step: DecisionStep) -> str:
    told, detail = _METRICS.get(step.reason, ""), step.inputs.get("detail")
    return ": ".join(str(part) for part in (told, detail) if part) or "no metrics"


def _model_trusted(decision: Decision) -> Verdict:
    model = decision.model
    status = ConditionStatus.TRUE if model.trusted else ConditionStatus.FALSE
    message = (
        f"service law from {model.source}"
        if model.trusted
        else "no service law is trusted; measured saturation decides meanwhile"
    )
    return Verdict(status, model.reason, _STATED_LAW.get(model.reason, message))


def _slo_met(decision: Decision) -> Verdict:
    if decision.metrics is not Reason.METRICS_FRESH:
        message = "metrics are not fresh, so nothing is known of the objectives"
        return Verdict(ConditionStatus.UNKNOWN, decision.metrics, message)
    each = [objective_verdict(objective) for objective in decision.objectives]
    if not each:
        return Verdict(ConditionStatus.UNKNOWN, Reason.NO_TRAFFIC, "no requests")
    each = [
        _infeasible(decision, objective, verdict)
        for objective, verdict in zip(decision.objectives, each, strict=True)
    ]
    message = "; ".join(verdict.message for verdict in each)
    # The worst news first: one objective missed is the answer, whatever is unknown beside it.
    for reason in (
        Reason.INFEASIBLE_OBJECTIVE,
        Reason.OBJECTIVES_MISSED,
        Reason.BELOW_BUCKET_RESOLUTION,
        Reason.NO_TRAFFIC,
        Reason.WITHIN_OBJECTIVES,
    ):
        for verdict in each:
            if verdict.reason is reason:
                return Verdict(verdict.status, reason, message)
    return each[0]


def _infeasible(decision: Decision, objective: ObjectiveReport, seen: Verdict) -> Verdict:
    """What is seen of an objective, unless no count would meet it: then what could be met.

    An objective that is met, whatever the model says of it, is met. Two digits: the value moves a
    little with every prompt, and a condition is written when it changes.
    """
    message = infeasible_message(decision, objective)
    if not message or seen.status is ConditionStatus.TRUE:
        return seen
    return Verdict(ConditionStatus.FALSE, Reason.INFEASIBLE_OBJECTIVE, message)


def infeasible_message(decision: Decision, objective: ObjectiveReport) -> str:
    """That no count would meet the objective, and what one would; '' where one would."""
    step = next(
        (
            step
            for step in decision.steps
            if step.reason is Reason.INFEASIBLE_OBJECTIVE
            and step.inputs.get("metric") == objective.metric
            and step.inputs.get("percentile") == objective.percentile
        ),
        None,
    )
    if step is None:
        return ""
    message = f"{objective_name(objective)}: no number of replicas meets it"
    least = step.inputs.get("least_feasible_seconds")
    if isinstance(least, float):
        message = f"{message}; the least feasible value is {format_duration(float(f'{least:.2g}'))}"
    return message


def _scaling_limited(decision: Decision) -> Verdict:
    if decision.limited_by is None:
        message = "the planner sets the count that it wants"
        return Verdict(ConditionStatus.FALSE, Reason.NOT_LIMITED, message)
    wanted, set_to = decision.recommended_replicas, decision.replicas_after
    message = f"{count(wanted)} wanted, {count(set_to)} set"
    if wanted is None or wanted == set_to:
        message = f"{count(set_to)} set"
    given = decision.handed_over
    carried = given.detail if given is not None and given.reason is decision.limited_by else ""
    detail = limit_detail(decision) or decision.detail or carried
    if detail:
        message = f"{message}: {detail}"
    return Verdict(ConditionStatus.TRUE, decision.limited_by, message)


def limit_detail(decision: Decision) -> str:
    """What is said of the pods that do not come, or that seem to lie; '' of other limits."""
    return next(
        (
            str(detail)
            for step in decision.steps
            if step.stage in _DETAILED and step.reason is decision.limited_by
            if (detail := step.inputs.get("detail"))
        ),
        "",
    )


def unreliable_pods(decision: Decision) -> str:
    """The ready pods that are no capacity, by name and with why; '' without any."""
    return _unreliable(decision, "excluded_pods")


def suspect_pods(decision: Decision) -> str:
    """Pods that seem to be none but are too many to be left out; '' without any."""
    return _unreliable(decision, "suspect_pods")


def _unreliable(decision: Decision, counted: str) -> str:
    return next(
        (
            str(step.inputs["detail"])
            for step in decision.steps
            if step.reason is Reason.UNRELIABLE_PODS and counted in step.inputs
        ),
        "",
    )


def _batching_in_sync(decision: Decision) -> Verdict:
    batching = decision.batching
    if batching.reason in _IN_SYNC:
        status = ConditionStatus.TRUE
    elif batching.reason in _OUT_OF_SYNC:
        status = ConditionStatus.FALSE
    else:
        status = ConditionStatus.UNKNOWN
    changes = [
        f"{knob} {count(now)} → {wanted}"
        for knob, now, wanted in (
            ("max_num_seqs", batching.current_max_num_seqs, batching.recommended_max_num_seqs),
            (
                "max_num_batched_tokens",
                batching.current_max_num_batched_tokens,
                batching.recommended_max_num_batched_tokens,
            ),
        )
        if wanted is not None and wanted != now
    ]
    message = "; ".join(changes) or "no other limits are recommended"
    detail = f": {batching.detail}" if batching.detail else ""
    return Verdict(status, batching.reason, message + detail)


def _admission_bound(decision: Decision) -> Verdict:
    """Whether there is a bound in status.admission, and whether a gateway enforces it."""
    if decision.gateway_limit is not None:
        return _gateway_limit(decision.gateway_limit)
    reason = decision.admission.reason
    if reason is Reason.ADMISSION_UNKNOWN:
        return Verdict(ConditionStatus.UNKNOWN, reason, "no bound can be computed")
    if decision.admission.queue_limit is None:
        return Verdict(ConditionStatus.FALSE, reason, "no bound is asked for")
    message = "a bound is recommended in status.admission; the operator enforces none"
    return Verdict(ConditionStatus.TRUE, reason, message)


def _gateway_limit(limit: LimitDecision) -> Verdict:
    """Whether the gateway's bound is written, and what load has shown of it.

    Without the bound itself, which changes often: it stands in status.admission.
    """
    where = f"{limit.kind}/{limit.object_name}"
    told = _LIMIT_MESSAGES.get(limit.reason, "the bound is not written")
    message = f"{where}: {told}" + (f": {limit.detail}" if limit.detail else "")
    status = _LIMIT_STATUS.get(limit.reason, ConditionStatus.FALSE)
    return Verdict(status, limit.reason, message)
