"""The conditions of a ServingSLO, each derived from the decision alone."""

from collections.abc import Sequence

from servingslo.explain.condition import Condition, ConditionStatus, ConditionType, Verdict
from servingslo.explain.format import count, objective_name
from servingslo.explain.knob_conditions import admission_verdict, batching_verdict
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import DecisionStep, HandOver, ObjectiveReport
from servingslo.reasons import Reason
from servingslo.units import format_duration

PERCENT = 100.0


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
_DETAILED = frozenset({"pending", "queue", "step-down", "reverts"})


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
        ConditionType.BATCHING_IN_SYNC: batching_verdict(decision),
        ConditionType.ADMISSION_BOUND: admission_verdict(decision),
    }


def objective_verdict(objective: ObjectiveReport) -> Verdict:
    """Whether one objective is met, as far as histogram buckets can tell.

    The message holds no measured number: conditions are written when they change, and a share
    differs on every tick. Shares stand in status.observed and in text().
    """
    low, high = objective.share_low_ratio, objective.share_high_ratio
    name = objective_name(objective)
    if low is None or high is None:
        return _unknown(objective, name)
    wanted = objective.percentile / PERCENT
    if low >= wanted:
        return Verdict(ConditionStatus.TRUE, Reason.WITHIN_OBJECTIVES, f"{name}: met")
    if high < wanted:
        return Verdict(ConditionStatus.FALSE, Reason.OBJECTIVES_MISSED, f"{name}: missed")
    message = f"{name}: the threshold lies between two histogram buckets"
    return Verdict(ConditionStatus.UNKNOWN, Reason.BELOW_BUCKET_RESOLUTION, message)


def _unknown(objective: ObjectiveReport, name: str) -> Verdict:
    """Why nothing is known of an objective: what cannot be known is not a lack of requests."""
    if objective.missing:
        message = f"{name}: {objective.missing} is not exported"
        return Verdict(ConditionStatus.UNKNOWN, Reason.METRICS_MISSING, message)
    if objective.unobserved:
        message = f"{name}: requests arrive, and none was observed yet"
        return Verdict(ConditionStatus.UNKNOWN, Reason.NOT_OBSERVED, message)
    return Verdict(ConditionStatus.UNKNOWN, Reason.NO_TRAFFIC, f"{name}: no requests")


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
        message = f"{message}; not read of how the engine is started: {decision.limits.unread}"
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
        seen, missing = "every pod was seen lately", decision.metrics_missing
        message = f"{seen}; not exported: {missing}" if missing else seen
        return Verdict(ConditionStatus.TRUE, Reason.METRICS_FRESH, message)
    blind = blindness(decision)
    if blind is not None:
        return Verdict(ConditionStatus.FALSE, decision.metrics, _blind_message(blind))
    # The decision's own detail may be about something else: who owns the target, above all.
    own = decision.detail if decision.limited_by is decision.metrics else ""
    usual = _METRICS.get(decision.metrics, "no metrics")
    named = f"{usual}: {decision.metrics_missing}" if decision.metrics_missing else usual
    message = own or named
    return Verdict(ConditionStatus.FALSE, decision.metrics, message)


def blindness(decision: Decision) -> DecisionStep | None:
    """The step that says why nothing could be decided for want of metrics; None where it could."""
    return next((step for step in decision.steps if step.stage == "signals"), None)


def _blind_message(step: DecisionStep) -> str:
    told, detail = _METRICS.get(step.reason, ""), step.inputs.get("detail")
    if step.inputs.get("names_cause"):
        told = ""
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
        Reason.METRICS_MISSING,
        Reason.NOT_OBSERVED,
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
