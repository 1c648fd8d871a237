"""What a decision says of rises that nothing foretells and that keep coming."""

from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep
from servingslo.reasons import Reason

KEPT_RATE_KNOB = "arrival-rate-kept"


def recurrence_step(context: TickContext) -> DecisionStep | None:
    """The rate that is kept capacity for, where bursts recur and the forecast alone says less.

    before: what is forecast at the lead time. after: what two bursts of the last hour reached.
    """
    demand, known = context.demand, context.estimate.forecast.recurrence
    if demand is None or known is None or known.rate_per_second <= demand.up.rate_per_second:
        return None
    return DecisionStep(
        stage="forecast",
        knob=KEPT_RATE_KNOB,
        before=demand.up.rate_per_second,
        after=known.rate_per_second,
        reason=Reason.BURSTS_RECUR,
        inputs={"bursts": known.count, "interval_seconds": known.interval_seconds},
    )
