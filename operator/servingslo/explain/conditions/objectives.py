"""Condition SLOMet: whether the objectives are met, as far as histograms show."""

from servingslo.explain.conditions.cause import dependent_verdict
from servingslo.explain.conditions.condition import ConditionStatus, Verdict
from servingslo.explain.format import objective_name
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import ObjectiveReport
from servingslo.reasons import Reason
from servingslo.units import format_duration

PERCENT = 100.0
# One missed objective is the answer, even if others are unknown.
_WORST_FIRST = (
    Reason.INFEASIBLE_OBJECTIVE,
    Reason.OBJECTIVES_MISSED,
    Reason.BELOW_BUCKET_RESOLUTION,
    Reason.METRICS_MISSING,
    Reason.NOT_OBSERVED,
    Reason.NO_TRAFFIC,
    Reason.WITHIN_OBJECTIVES,
)


def slo_met_verdict(decision: Decision) -> Verdict:
    """Whether every objective is met; the worst news first."""
    if (dependent := dependent_verdict(decision)) is not None:
        return dependent
    if decision.metrics is not Reason.METRICS_FRESH:
        message = "metrics are not fresh, so nothing is known about the objectives"
        return Verdict(ConditionStatus.UNKNOWN, decision.metrics, message)
    each = [_verdict(decision, objective) for objective in decision.objectives]
    if not each:
        return Verdict(ConditionStatus.UNKNOWN, Reason.NO_TRAFFIC, "no requests")
    message = "; ".join(verdict.message for verdict in each)
    worst = min(each, key=lambda one: _WORST_FIRST.index(one.reason))
    return Verdict(worst.status, worst.reason, message)


def _verdict(decision: Decision, objective: ObjectiveReport) -> Verdict:
    """The observed verdict on an objective, unless no count would meet it: then the possible value.

    An observed objective that is met counts as met, whatever the model predicts. Two digits: the
    value moves a little with every prompt, and a condition is written whenever it changes.
    """
    seen, message = objective_verdict(objective), infeasible_message(decision, objective)
    if not message or seen.status is ConditionStatus.TRUE:
        return seen
    return Verdict(ConditionStatus.FALSE, Reason.INFEASIBLE_OBJECTIVE, message)


def infeasible_message(decision: Decision, objective: ObjectiveReport) -> str:
    """That no count meets the objective, and which value could be met; '' if a count does."""
    about = (objective.metric, objective.percentile)
    found = (step for step in decision.steps if step.reason is Reason.INFEASIBLE_OBJECTIVE)
    of = (step for step in found if about == tuple(map(step.inputs.get, ("metric", "percentile"))))
    if (step := next(of, None)) is None:
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
    reason, why = Reason.NO_TRAFFIC, "no requests"
    if objective.missing:
        reason, why = Reason.METRICS_MISSING, objective.missing
    elif objective.unobserved:
        reason, why = Reason.NOT_OBSERVED, "requests arrive, but none was measured yet"
    return Verdict(ConditionStatus.UNKNOWN, reason, f"{name}: {why}")
