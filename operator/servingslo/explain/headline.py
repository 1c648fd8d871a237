"""The first answer, as one reason and one line: what is wrong, or why this count."""

from collections.abc import Mapping, Sequence

from servingslo.explain.conditions.cause import failing_pods
from servingslo.explain.conditions.condition import (
    Condition,
    ConditionStatus,
    ConditionType,
    Verdict,
)
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.format import counted, joined
from servingslo.explain.limit_sentences import ROUTINE_LIMITS
from servingslo.explain.summary import because
from servingslo.policy.decision import Decision
from servingslo.reasons import Reason

_LONGEST = 512
# Conditions whose False is reported first.
_WORST_FIRST = (
    ConditionType.READY,
    ConditionType.SLO_MET,
    ConditionType.METRICS_FRESH,
    ConditionType.ADMISSION_BOUND,
    ConditionType.BATCHING_IN_SYNC,
)


def headline(conditions: Sequence[Condition], decision: Decision | None) -> Reason | None:
    """The reason of what is wrong, else that of the decision; None before any condition.

    decision: None if nothing was decided, because the spec is invalid or the mode is Paused.
    """
    of_type = {condition.type: condition for condition in conditions}
    for type_ in _WORST_FIRST:
        if type_ in of_type and of_type[type_].status is ConditionStatus.FALSE:
            return of_type[type_].reason
    ready = of_type.get(ConditionType.READY)
    if decision is None:
        return None if ready is None else ready.reason
    if failing_pods(decision):
        return Reason.PODS_FAILING
    limited = of_type.get(ConditionType.SCALING_LIMITED)
    if limited is not None and limited.reason not in ROUTINE_LIMITS:
        return limited.reason
    return decision.reason


def answer_line(
    decision: Decision, verdicts_on_it: Mapping[ConditionType, Verdict] | None = None
) -> str:
    """Are objectives met, why this count, what limits it: one line for `kubectl describe`.

    verdicts_on_it: if they are known.
    """
    told = verdicts(decision) if verdicts_on_it is None else verdicts_on_it
    ready, limited = told[ConditionType.READY], told.get(ConditionType.SCALING_LIMITED)
    why = because(decision) or decision.reason.value
    pods = failing_pods(decision)
    parts = (
        told[ConditionType.SLO_MET].message,
        f"{counted(decision.replicas_after, 'replica')}: {why}",
        f"failing: {pods}" if pods else "",
    )
    if ready.status is ConditionStatus.FALSE:
        parts = (ready.message, "", "")
    return shortened(joined((*parts, "" if limited is None else limited.message), ". "))


def shortened(answer: str) -> str:
    """As much of an answer as status.summary holds."""
    return answer if len(answer) <= _LONGEST else f"{answer[: _LONGEST - 1]}…"
