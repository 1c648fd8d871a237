"""A rise that may be a crowd's beginning: what a decision says of it, and what if it is none."""

from dataclasses import replace

from servingslo.policy.behavior import BehaviorState
from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep
from servingslo.reasons import Reason

CROWD_KNOB = "crowd-probability"


def onset_step(context: TickContext) -> DecisionStep | None:
    """The probability that a rise which has just begun is a crowd; None where nothing rises.

    before: when it was first seen, None at that tick. after: what is planned with now.
    """
    onset = context.estimate.forecast.onset
    if onset is None:
        return None
    return DecisionStep(
        stage="forecast",
        knob=CROWD_KNOB,
        before=onset.crowd_probability if onset.refuted else None,
        after=0.0 if onset.refuted else onset.crowd_probability,
        reason=Reason.CROWD_REFUTED if onset.refuted else Reason.CROWD_POSSIBLE,
        inputs={"rate_if_crowd_per_second": onset.end_per_second},
    )


def crowd_refuted(context: TickContext) -> bool:
    """Whether the newest window has shown that a rise is no crowd."""
    onset = context.estimate.forecast.onset
    return onset is not None and onset.refuted


def without_refuted(context: TickContext, state: BehaviorState) -> BehaviorState:
    """The memory without what was recommended for a crowd that turned out to be none.

    Demand has not fallen since, so that there is no swing to be smoothed.
    """
    onset = context.estimate.forecast.onset
    if onset is None or not onset.refuted:
        return state
    kept = tuple(r for r in state.recommendations if r[0] < onset.since_seconds)
    return replace(state, recommendations=kept)
