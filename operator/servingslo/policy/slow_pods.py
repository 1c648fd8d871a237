"""What a decision says of pods that serve more slowly than their siblings."""

from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep
from servingslo.reasons import Reason

# A step of a decision is one line of a log.
MOST_NAMED = 5


def slow_pods_step(context: TickContext) -> DecisionStep | None:
    """The slow pods by name, with how many times as long their steps take; None without any."""
    slow = context.estimate.slow_pods
    if not slow:
        return None
    named = ", ".join(f"{pod.pod} x{pod.ratio:.1f}" for pod in slow[:MOST_NAMED])
    return DecisionStep(
        stage="observed",
        knob="slow-pods",
        before=None,
        after=len(slow),
        reason=Reason.SLOW_PODS,
        inputs={"pods": named},
    )
