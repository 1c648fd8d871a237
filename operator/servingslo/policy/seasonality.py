"""What a decision says of the season: what history holds, and where it moves the forecast."""

from dataclasses import replace

from servingslo.estimation.season import Season
from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep, StepValue
from servingslo.reasons import Reason

SEASON_KNOB = "season"
RATE_KNOB = "arrival-rate"
# Below this share of the rate the season changes nothing that anybody would ask about.
TOLD_SHARE = 0.1


def season_step(context: TickContext) -> DecisionStep | None:
    """What history holds, at the tick at which it was read; else what the season changes, if much.

    before and after, of the arrival rate: expected at the lead time without the season and with it.
    """
    if context.observation.history is not None:
        return _finding(context)
    demand, forecast = context.demand, context.estimate.forecast
    if demand is None or forecast.season is None:
        return None
    plain = replace(forecast, season=None).mean_per_second(demand.lead_seconds)
    expected = demand.mean_at_lead_per_second
    if abs(expected - plain) <= TOLD_SHARE * max(expected, plain):
        return None
    return DecisionStep(
        stage="forecast",
        knob=RATE_KNOB,
        before=plain,
        after=expected,
        reason=Reason.SEASON_EXPECTED,
        inputs={
            "weight": forecast.season_weight(demand.lead_seconds),
            "lead_seconds": demand.lead_seconds,
        },
    )


def _finding(context: TickContext) -> DecisionStep | None:
    finding = context.state.estimator.forecast.season.finding
    history = context.observation.history
    if finding is None or history is None:
        return None
    inputs: dict[str, StepValue] = {
        "days": finding.day_count,
        "explained_ratio": finding.strength_ratio,
        "changes_explained_ratio": finding.change_ratio,
    }
    if history.detail:
        inputs["detail"] = history.detail
    return DecisionStep(
        stage="forecast",
        knob=SEASON_KNOB,
        before=None,
        after=_name(finding.season),
        reason=finding.reason,
        inputs=inputs,
    )


def _name(season: Season | None) -> str | None:
    if season is None:
        return None
    return "weekly" if season.rest_days else "daily"
