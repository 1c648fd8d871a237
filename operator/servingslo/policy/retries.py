"""What a decision says of requests that come again because they were refused."""

from servingslo.estimation.arrivals import COUNTING_ERROR_RATIO
from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep
from servingslo.reasons import Reason


def retries_step(context: TickContext) -> DecisionStep | None:
    """What is offered, and the first tries that are planned for; None where they are the same.

    measured: whether capacity that came has shown what refusals bring back; else it is assumed.
    """
    estimate = context.estimate
    offered, first = estimate.offered_rate_per_second, estimate.arrival_rate_per_second
    if offered is None or first is None or offered - first <= COUNTING_ERROR_RATIO * offered:
        return None
    return DecisionStep(
        stage="observed",
        knob="first-tries",
        before=offered,
        after=first,
        reason=Reason.RETRIES_LEFT_OUT,
        inputs={
            "refused_per_second": estimate.rejected_per_second,
            "measured": estimate.retries_known,
        },
    )
