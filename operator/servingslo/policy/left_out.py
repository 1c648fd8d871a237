"""What a decision says of ready pods that cannot be relied on."""

from servingslo.policy.decision import DecisionStep, StepValue
from servingslo.policy.frame import Frame
from servingslo.policy.guards import StepDownBlock
from servingslo.reasons import Reason

# Of pods that are left out, or in doubt, so many are named.
MOST_NAMED = 3


def with_left_out(frame: Frame, steps: tuple[DecisionStep, ...]) -> tuple[DecisionStep, ...]:
    """The steps with one that names the pods left out or in doubt, where none does already.

    By the model others are ordered on top of those left out, and the step that says so names them;
    of those in doubt the step that gives none away does. Measured saturation leaves pods out of
    what serves, and a hold orders nothing: they are named all the same.
    """
    told = {step.reason for step in steps}
    if Reason.UNRELIABLE_PODS in told or not (frame.unreliable or frame.doubtful):
        return steps
    step = DecisionStep(
        stage="observed",
        knob="pods-left-out" if frame.unreliable else "pods-in-doubt",
        before=None,
        after=len(frame.unreliable or frame.doubtful),
        reason=Reason.UNRELIABLE_PODS,
        inputs=left_out_inputs(frame) if frame.unreliable else _doubtful_inputs(frame),
    )
    return (*steps, step)


def left_out_inputs(frame: Frame) -> dict[str, StepValue]:
    """How many pods are left out, and 'llama-7 (zero throughput)': the first few with why."""
    return {"excluded_pods": frame.excluded, "detail": _named(frame.unreliable)}


def doubtful_block(frame: Frame) -> StepDownBlock | None:
    """While most pods seem to lie: what they say of demand is no ground to give any away."""
    if not frame.doubtful:
        return None
    return StepDownBlock(reason=Reason.UNRELIABLE_PODS, inputs=_doubtful_inputs(frame))


def _doubtful_inputs(frame: Frame) -> dict[str, StepValue]:
    return {"doubted_pods": len(frame.doubtful), "detail": _named(frame.doubtful)}


def _named(pods: tuple[tuple[str, str], ...]) -> str:
    first = pods[:MOST_NAMED]
    named = ", ".join(f"{name} ({why.replace('-', ' ')})" for name, why in first)
    more = len(pods) - len(first)
    return named + (f" and {more} more" if more else "")
