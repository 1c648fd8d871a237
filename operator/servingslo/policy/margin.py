"""The margin of demand in a plan: what the error budget adds to the quantile, and why."""

from dataclasses import replace

from servingslo.estimation import margin
from servingslo.estimation.margin import HIGHEST_SCORE, NEGLIGIBLE_SCORE
from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep
from servingslo.policy.state import PlannerState
from servingslo.reasons import Reason

MARGIN_KNOB = "demand-quantile"
# More likely than not, demand moves as in a crowd.
CROWD_PROBABILITY = 0.5
# Capacity for a crowd is there one lead time after it; what waited for it has left one later.
CROWD_LEADS = 2.0


def tracked(context: TickContext, state: PlannerState, *, acting: bool) -> PlannerState:
    """The memory after this tick's requests were held against the error budget.

    Only where the margin is what decides: misses while nothing can be seen, while the model is not
    trusted, at the maximum, during a rollout, while cards are short, while somebody else sets the
    count, or behind a crowd, say nothing about it.
    acting: decisions are carried out.
    """
    state = _with_crowd(context, state)
    crowd = state.margin.crowd_seconds
    if crowd is not None and context.now_seconds - crowd < CROWD_LEADS * context.lead_seconds:
        return state
    if (
        not acting
        or not context.trusted
        or context.signals.no_metrics is not None
        or context.unschedulable
        or context.observation.rollout_in_progress
        or context.current >= context.bounds.maximum
    ):
        return state
    seconds, observed = state.estimator.observed.latest(context.now_seconds)
    offered = context.estimate.offered_rate_per_second or 0.0
    rejected = context.estimate.rejected_per_second / offered if offered > 0 else 0.0
    burn = margin.burn_ratio(context.targets.objectives, observed, min(rejected, 1.0))
    return replace(state, margin=margin.learn(state.margin, burn, seconds))


def _with_crowd(context: TickContext, state: PlannerState) -> PlannerState:
    if context.estimate.forecast.surge_probability < CROWD_PROBABILITY:
        return state
    return replace(state, margin=replace(state.margin, crowd_seconds=context.now_seconds))


def margin_step(context: TickContext) -> DecisionStep | None:
    """What the error budget did to the quantile planned for; None while it does nothing."""
    demand, held, budget = context.demand, context.state.margin, context.error_budget
    if demand is None or context.margin_score < NEGLIGIBLE_SCORE:
        return None
    return DecisionStep(
        stage="margin",
        knob=MARGIN_KNOB,
        before=demand.plain_probability,
        after=demand.probability,
        reason=Reason.ERROR_BUDGET_BURNING,
        inputs={
            "burn_ratio": held.burn_ratio,
            "margin_score": context.margin_score,
            "at_bound": context.margin_score == HIGHEST_SCORE,
            **({} if budget is None else {"budget_remaining_ratio": budget.remaining_ratio}),
        },
    )
