"""What a decision says of a count that does not stand, because new pods served unseen."""

from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep
from servingslo.reasons import Reason


def new_pods_step(context: TickContext) -> DecisionStep | None:
    """What the pods that were scraped count, and the rate that stands; None where they agree."""
    estimate = context.estimate
    if estimate.discarded_per_second is None:
        return None
    return DecisionStep(
        stage="observed",
        knob="arrival-rate",
        before=estimate.discarded_per_second,
        after=estimate.offered_rate_per_second,
        reason=Reason.NEW_PODS_UNSEEN,
    )
