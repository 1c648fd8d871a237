"""Condition SLOMet: whether the objectives are met, as far as histograms show."""

from servingslo.explain.conditions.cause import dependent_verdict
from servingslo.explain.conditions.condition import ConditionStatus, Verdict
from servingslo.explain.format import objective_name
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import ObjectiveReport
from servingslo.reasons import Reason
from servingslo.units import format_duration

PERCENT = 100.0


def slo_met_verdict(decision: Decision) -> Verdict:
    """Whether every objective is met; the worst news first."""
    if (dependent := dependent_verdict(decision)) is not None:
        return dependent
    if decision.metrics is not Reason.METRICS_FRESH:
        message = "metrics are not fresh, so nothing is known about the objectives"
        return Verdict(ConditionStatus.UNKNOWN, decision.metrics, message)
    each = [objective_verdict(objective) for objective in decision.objectives]
    if not each:
        return Verdict(ConditionStatus.UNKNOWN, Reason.NO_TRAFFIC, "no requests")
    each = [
        _infeasible(decision, objective, verdict)
        for objective, verdict in zip(decision.objectives, each, strict=True)
    ]
    message = "; ".join(verdict.message for verdict in each)
    # The worst news first: one missed objective is the answer, even if others are unknown.
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
    """The observed verdict on an objective, unless no count would meet it: then the possible value.

    An observed objective that is met counts as met, whatever the model predicts. Two digits: the
    value moves a little with every prompt, and a condition is written whenever it changes.
    """
    message = infeasible_message(decision, objective)
    if not message or seen.status is ConditionStatus.TRUE:
        return seen
    return Verdict(ConditionStatus.FALSE, Reason.INFEASIBLE_OBJECTIVE, message)


def infeasible_message(decision: Decision, objective: ObjectiveReport) -> str:
    """That no count meets the objective, and which value could be met; '' if a count does."""
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


def objective_verdict(objective: ObjectiveReport) -> Verdict:
    """Whether one objective is met, as far as histogram buckets show.

    The message holds no measured number: conditions are written when they change, and a share
    differs on every tick. Shares are in status.observed and in text().
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
    """Why nothing is known of an objective, if the cause is not a lack of requests."""
    if objective.missing:
        message = f"{name}: {objective.missing} is not exported"
        return Verdict(ConditionStatus.UNKNOWN, Reason.METRICS_MISSING, message)
    if objective.unobserved:
        message = f"{name}: requests arrive, but none was measured yet"
        return Verdict(ConditionStatus.UNKNOWN, Reason.NOT_OBSERVED, message)
    return Verdict(ConditionStatus.UNKNOWN, Reason.NO_TRAFFIC, f"{name}: no requests")
