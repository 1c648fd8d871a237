"""What a decision says of ready pods that cannot be relied on."""

from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep, StepValue
from servingslo.policy.guards import StepDownBlock
from servingslo.reasons import Reason

# Of pods that are left out, or in doubt, so many are named.
MOST_NAMED = 3


def with_unreliable(
    context: TickContext, steps: tuple[DecisionStep, ...]
) -> tuple[DecisionStep, ...]:
    """The steps with one that names the pods left out or in doubt, where none does already.

    By the model others are ordered on top of those left out, and the step that says so names them;
    of those in doubt the step that gives none away does. Measured saturation leaves pods out of
    what serves, and a hold orders nothing: they are named all the same.
    """
    told = {step.reason for step in steps}
    if Reason.UNRELIABLE_PODS in told or not (context.unreliable or context.suspect):
        return steps
    step = DecisionStep(
        stage="observed",
        knob="pods-left-out" if context.unreliable else "pods-in-doubt",
        before=None,
        after=len(context.unreliable or context.suspect),
        reason=Reason.UNRELIABLE_PODS,
        inputs=unreliable_inputs(context) if context.unreliable else _suspect_inputs(context),
    )
    return (*steps, step)


def unreliable_inputs(context: TickContext) -> dict[str, StepValue]:
    """How many pods are left out, and 'llama-7 (zero throughput)': the first few with why."""
    return {"excluded_pods": context.excluded, "detail": _named(context.unreliable)}


def suspect_block(context: TickContext) -> StepDownBlock | None:
    """While most pods seem to lie: what they say of demand is no ground to give any away."""
    if not context.suspect:
        return None
    return StepDownBlock(reason=Reason.UNRELIABLE_PODS, inputs=_suspect_inputs(context))


def _suspect_inputs(context: TickContext) -> dict[str, StepValue]:
    return {"doubted_pods": len(context.suspect), "detail": _named(context.suspect)}


def _named(pods: tuple[tuple[str, str], ...]) -> str:
    first = pods[:MOST_NAMED]
    named = ", ".join(f"{name} ({why.replace('-', ' ')})" for name, why in first)
    more = len(pods) - len(first)
    return named + (f" and {more} more" if more else "")
