"""What prevents a verdict on a resource, so that conditions are Unknown; and pods that fail."""

from servingslo.explain.conditions.condition import ConditionStatus, Verdict
from servingslo.explain.format import counted
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.replicas.ownership import CONFLICTS
from servingslo.policy.replicas.pods import FAILURE_SHARE, Condition
from servingslo.reasons import Reason

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
# Nothing was scraped because there was nothing to scrape.
_NOTHING_TO_SCRAPE = frozenset({Reason.PENDING_PODS, Reason.WARMING_UP})


def blindness(decision: Decision) -> DecisionStep | None:
    """The step with the reason why metrics allow no decision; None if they allow one."""
    return next((step for step in decision.steps if step.stage == "signals"), None)


def target_unusable(decision: Decision) -> Reason | None:
    """Why the target cannot be read or scaled at all; None if it can."""
    unusable = NOT_READY_REASONS - CONFLICTS
    both = (decision.reason, decision.limited_by)
    return next((reason for reason in both if reason is not None and reason in unusable), None)


def held_at_zero(decision: Decision) -> bool:
    """Whether a user set the target to 0: it has no metrics, and nothing is wrong with them."""
    return decision.reason is Reason.SCALED_TO_ZERO_BY_USER


def dependent_verdict(decision: Decision) -> Verdict | None:
    """The verdict of a condition that needs metrics, if there are none; None if there are some."""
    blind = blindness(decision)
    if (unusable := target_unusable(decision)) is not None:
        reason, why = unusable, "while the target cannot be used"
    elif held_at_zero(decision):
        reason, why = decision.reason, "while a user holds the target at 0 replicas"
    elif blind is not None:
        none_ready = blind.reason in _NOTHING_TO_SCRAPE
        why = "before a pod is ready and scraped" if none_ready else "without metrics"
        reason = blind.reason
    else:
        return None
    return Verdict(ConditionStatus.UNKNOWN, reason, f"not known {why}")


def nothing_to_scrape(decision: Decision) -> bool:
    """Whether metrics are missing only because no pod can have any, or the target is unusable."""
    if target_unusable(decision) or held_at_zero(decision):
        return True
    blind = blindness(decision)
    return blind is not None and blind.reason in _NOTHING_TO_SCRAPE


def failing_pods(decision: Decision) -> str:
    """'llama-7 (OOMKilled), llama-9 (…)': the first failing pods with reasons; '' without any."""
    step = _failure(decision)
    return "" if step is None else str(step.inputs["detail"])


def workload_fails(decision: Decision) -> str:
    """'3 of 5 pods fail: …' if half of the pods or more fail, or none serves; else ''."""
    step = _failure(decision)
    if step is None:
        return ""
    failing, pods = step.inputs.get(f"{Condition.FAILING.value.name}_pods"), step.inputs.get("pods")
    if not isinstance(failing, int) or not isinstance(pods, int):
        return ""
    if failing < FAILURE_SHARE * pods and decision.replicas.ready:
        return ""
    verb = "fails" if failing == 1 else "fail"
    return f"{failing} of {counted(pods, 'pod')} {verb}: {failing_pods(decision)}"


def _failure(decision: Decision) -> DecisionStep | None:
    return next((step for step in decision.steps if step.reason is Reason.PODS_FAILING), None)
