"""What a decision says of a gateway's count: used, added to, or why it was not."""

from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep


def gateway_step(context: TickContext) -> DecisionStep | None:
    """Whose count the arrivals are, with both; None where no gateway is read.

    before: what the engines counted. after: the arrival rate that is planned with.
    """
    use = context.estimate.gateway
    if use is None:
        return None
    return DecisionStep(
        stage="observed",
        knob="arrival-rate",
        before=use.engines_per_second,
        after=context.estimate.arrival_rate_per_second,
        reason=use.reason,
        inputs={
            "gateway_per_second": use.gateway_per_second,
            "refused_per_second": use.refused_per_second,
        },
    )
