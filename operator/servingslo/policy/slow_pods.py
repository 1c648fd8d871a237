"""What a decision says of pods that serve more slowly than their siblings."""

from servingslo.policy.decision import DecisionStep
from servingslo.policy.frame import Frame
from servingslo.reasons import Reason

# A step of a decision is one line of a log.
MOST_NAMED = 5


def slow_pods_step(frame: Frame) -> DecisionStep | None:
    """The slow pods by name, with how many times as long their steps take; None without any."""
    slow = frame.estimate.slow_pods
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
