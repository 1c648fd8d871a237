"""What a decision says of ready pods that cannot be relied on."""

from servingslo.policy.decision import DecisionStep, StepValue
from servingslo.policy.frame import Frame
from servingslo.reasons import Reason

# Of pods that are left out so many are named.
MOST_NAMED = 3


def with_left_out(frame: Frame, steps: tuple[DecisionStep, ...]) -> tuple[DecisionStep, ...]:
    """The steps with one that names the pods left out, where none of them does already.

    By the model others are ordered on top of them, and the step that says so names them. Measured
    saturation leaves them out of what serves, and a hold orders nothing: they are named all the
    same.
    """
    if not frame.unreliable or Reason.UNRELIABLE_PODS in {step.reason for step in steps}:
        return steps
    step = DecisionStep(
        stage="observed",
        knob="pods-left-out",
        before=None,
        after=frame.excluded,
        reason=Reason.UNRELIABLE_PODS,
        inputs=left_out_inputs(frame),
    )
    return (*steps, step)


def left_out_inputs(frame: Frame) -> dict[str, StepValue]:
    """How many pods are left out, and 'llama-7 (zero throughput)': the first few with why."""
    first = frame.unreliable[:MOST_NAMED]
    named = ", ".join(f"{name} ({why.replace('-', ' ')})" for name, why in first)
    more = frame.excluded - len(first)
    return {
        "excluded_pods": frame.excluded,
        "detail": named + (f" and {more} more" if more else ""),
    }
