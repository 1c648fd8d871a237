"""Failing pods, as a decision names them."""

from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.replicas.pods import FAILURE_SHARE, Condition
from servingslo.reasons import Reason


def failing_pods(decision: Decision) -> str:
    """'llama-7 (OOMKilled), llama-9 (…)': the first failing pods with reasons; '' without any."""
    step = _step(decision)
    return "" if step is None else str(step.inputs["detail"])


def workload_fails(decision: Decision) -> str:
    """'3 of 5 pods fail: …' if half of the pods or more fail, or none serves; else ''."""
    step = _step(decision)
    if step is None:
        return ""
    failing, pods = step.inputs.get(f"{Condition.FAILING.value.name}_pods"), step.inputs.get("pods")
    if not isinstance(failing, int) or not isinstance(pods, int):
        return ""
    if failing < FAILURE_SHARE * pods and decision.replicas.ready:
        return ""
    verb = "fails" if failing == 1 else "fail"
    return f"{failing} of {pods} {'pod' if pods == 1 else 'pods'} {verb}: {failing_pods(decision)}"


def _step(decision: Decision) -> DecisionStep | None:
    return next((step for step in decision.steps if step.reason is Reason.PODS_FAILING), None)
