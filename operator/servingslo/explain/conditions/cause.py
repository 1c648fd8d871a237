"""The one cause that prevents a verdict on a resource: dependent conditions are Unknown."""

from servingslo.explain.conditions.condition import ConditionStatus, Verdict
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.replicas.ownership import CONFLICTS
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
    if (unusable := target_unusable(decision)) is not None:
        message = "not known while the target cannot be used"
        return Verdict(ConditionStatus.UNKNOWN, unusable, message)
    if held_at_zero(decision):
        message = "not known while a user holds the target at 0 replicas"
        return Verdict(ConditionStatus.UNKNOWN, decision.reason, message)
    blind = blindness(decision)
    if blind is None:
        return None
    message = "not known without metrics"
    if blind.reason in _NOTHING_TO_SCRAPE:
        message = "not known before a pod is ready and scraped"
    return Verdict(ConditionStatus.UNKNOWN, blind.reason, message)


def nothing_to_scrape(decision: Decision) -> bool:
    """Whether metrics are missing only because no pod can have any, or the target is unusable."""
    if target_unusable(decision) or held_at_zero(decision):
        return True
    blind = blindness(decision)
    return blind is not None and blind.reason in _NOTHING_TO_SCRAPE
