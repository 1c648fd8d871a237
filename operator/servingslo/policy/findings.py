"""What was found before anything is decided, as steps of the decision: one function for each."""

from dataclasses import replace

from servingslo.estimation.arrivals import COUNTING_ERROR_RATIO
from servingslo.estimation.limits import Limit, LimitSource
from servingslo.estimation.margin import HIGHEST_SCORE, NEGLIGIBLE_SCORE
from servingslo.estimation.season import Season
from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep, StepValue
from servingslo.policy.guards import StepDownBlock
from servingslo.policy.state import LIMIT_FIELDS
from servingslo.reasons import Reason

ARRIVAL_RATE_KNOB = "arrival-rate"
KEPT_RATE_KNOB = "arrival-rate-kept"
SEASON_KNOB = "season"
MARGIN_KNOB = "demand-quantile"
# A step of a decision is one line of a log: so many slow or unreliable pods are named in it.
MOST_SLOW_NAMED = 5
MOST_NAMED = 3
# Below this share of the rate the season changes nothing that anybody would ask about.
TOLD_SHARE = 0.1


def law_step(context: TickContext) -> DecisionStep:
    """Where the service law is from and how far it is known to be off."""
    law = context.estimate.law
    inputs: dict[str, StepValue] = {
        "fit_error": law.fit_error,
        "samples": law.sample_count,
    }
    if law.stated_error_ratio is not None:
        inputs["stated_error"] = law.stated_error_ratio
    return DecisionStep(
        stage="model",
        knob="service-law",
        before=None,
        after=law.source,
        reason=law.reason,
        inputs=inputs,
    )


def limits_step(context: TickContext) -> DecisionStep | None:
    """A limit that nobody gave: the default, or what data show in its place; None without one.

    A limit that is learnt is told with the default that it takes the place of.
    """
    in_force = context.estimate.in_force
    named = zip(LIMIT_FIELDS, (in_force.max_num_seqs, in_force.max_num_batched_tokens), strict=True)
    unstated: list[tuple[str, Limit]] = [
        (name, limit)
        for name, limit in named
        if limit is not None and limit.source in {LimitSource.LEARNT, LimitSource.DEFAULT}
    ]
    if not unstated:
        return None
    learnt = [one for one in unstated if one[1].source is LimitSource.LEARNT]
    knob, told = (learnt or unstated)[0]
    inputs: dict[str, StepValue] = {}
    for name, limit in unstated:
        inputs[name] = limit.value
        inputs[f"{name}_source"] = limit.source.value
        inputs[f"{name}_default"] = limit.assumed
    return DecisionStep(
        stage="observed",
        knob=knob,
        before=told.assumed,
        after=told.value,
        reason=Reason.LIMITS_LEARNT if learnt else Reason.LIMITS_ASSUMED,
        inputs=inputs,
    )


def gateway_step(context: TickContext) -> DecisionStep | None:
    """Whose count the arrivals are, with both; None where no gateway is read.

    before: what the engines counted. after: the arrival rate that is planned with.
    """
    use = context.estimate.gateway
    if use is None:
        return None
    return DecisionStep(
        stage="observed",
        knob=ARRIVAL_RATE_KNOB,
        before=use.engines_per_second,
        after=context.estimate.arrival_rate_per_second,
        reason=use.reason,
        inputs={
            "gateway_per_second": use.gateway_per_second,
            "refused_per_second": use.refused_per_second,
        },
    )


def retries_step(context: TickContext) -> DecisionStep | None:
    """What is offered, and the first tries that are planned for; None where they are the same.

    measured: whether capacity that came has shown what refusals bring back; else it is assumed.
    """
    estimate = context.estimate
    offered, first = estimate.offered_rate_per_second, estimate.arrival_rate_per_second
    if offered is None or first is None or offered - first <= COUNTING_ERROR_RATIO * offered:
        return None
    return DecisionStep(
        stage="observed",
        knob="first-attempts",
        before=offered,
        after=first,
        reason=Reason.RETRIES_EXCLUDED,
        inputs={
            "refused_per_second": estimate.rejected_per_second,
            "measured": estimate.retries_known,
        },
    )


def unscraped_pods_step(context: TickContext) -> DecisionStep | None:
    """What the pods that were scraped count, and the rate that stands; None where they agree."""
    estimate = context.estimate
    if estimate.discarded_per_second is None:
        return None
    return DecisionStep(
        stage="observed",
        knob=ARRIVAL_RATE_KNOB,
        before=estimate.discarded_per_second,
        after=estimate.offered_rate_per_second,
        reason=Reason.PODS_UNSCRAPED,
    )


def season_step(context: TickContext) -> DecisionStep | None:
    """What history holds, at the tick at which it was read; else what the season changes, if much.

    before and after, of the arrival rate: expected at the lead time without the season and with it.
    """
    if context.observation.history is not None:
        return _season_found(context)
    demand, forecast = context.demand, context.estimate.forecast
    if demand is None or forecast.season is None:
        return None
    plain = replace(forecast, season=None).mean_per_second(demand.lead_seconds)
    expected = demand.mean_at_lead_per_second
    if abs(expected - plain) <= TOLD_SHARE * max(expected, plain):
        return None
    return DecisionStep(
        stage="forecast",
        knob=ARRIVAL_RATE_KNOB,
        before=plain,
        after=expected,
        reason=Reason.SEASON_EXPECTED,
        inputs={
            "weight": forecast.season_weight(demand.lead_seconds),
            "lead_seconds": demand.lead_seconds,
        },
    )


def _season_found(context: TickContext) -> DecisionStep | None:
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
        after=_season_name(finding.season),
        reason=finding.reason,
        inputs=inputs,
    )


def _season_name(season: Season | None) -> str | None:
    if season is None:
        return None
    return "weekly" if season.rest_days else "daily"


def recurrence_step(context: TickContext) -> DecisionStep | None:
    """The rate that is kept capacity for, where surges recur and the forecast alone says less.

    before: what is forecast at the lead time. after: what two surges of the last hour reached.
    """
    demand, known = context.demand, context.estimate.forecast.recurrence
    if (
        demand is None
        or known is None
        or known.rate_per_second <= demand.scale_up_load.rate_per_second
    ):
        return None
    return DecisionStep(
        stage="forecast",
        knob=KEPT_RATE_KNOB,
        before=demand.scale_up_load.rate_per_second,
        after=known.rate_per_second,
        reason=Reason.SURGES_RECUR,
        inputs={"bursts": known.count, "interval_seconds": known.interval_seconds},
    )


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


def slow_pods_step(context: TickContext) -> DecisionStep | None:
    """The slow pods by name, with how many times as long their steps take; None without any."""
    slow = context.estimate.slow_pods
    if not slow:
        return None
    named = ", ".join(f"{pod.pod} x{pod.ratio:.1f}" for pod in slow[:MOST_SLOW_NAMED])
    return DecisionStep(
        stage="observed",
        knob="slow-pods",
        before=None,
        after=len(slow),
        reason=Reason.SLOW_PODS,
        inputs={"pods": named},
    )


def latency_step(context: TickContext) -> DecisionStep | None:
    """Says of observed percentiles that no histogram is behind them, and what is."""
    estimate = context.estimate
    if not estimate.means or not estimate.observed:
        return None
    asked = {objective.metric.value for objective in context.targets.objectives}
    from_law = bool(asked & estimate.observed.keys() - estimate.summaries)
    return DecisionStep(
        stage="observed",
        knob="latency",
        before=None,
        after=None,
        reason=Reason.LATENCY_FROM_MEANS if from_law else Reason.LATENCY_OF_WORST_POD,
        inputs={f"mean_{name}_seconds": delta.mean for name, delta in estimate.means.items()},
    )


_STEPS = (
    law_step,
    limits_step,
    gateway_step,
    retries_step,
    unscraped_pods_step,
    season_step,
    recurrence_step,
    margin_step,
    slow_pods_step,
    latency_step,
)


def findings(context: TickContext) -> tuple[DecisionStep, ...]:
    """A step for everything that there is something to say about."""
    found = (step(context) for step in _STEPS)
    return tuple(step for step in found if step is not None)


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
        knob="unreliable-pods" if context.unreliable else "suspect-pods",
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
    return {"suspect_pods": len(context.suspect), "detail": _named(context.suspect)}


def _named(pods: tuple[tuple[str, str], ...]) -> str:
    first = pods[:MOST_NAMED]
    named = ", ".join(f"{name} ({why.replace('-', ' ')})" for name, why in first)
    more = len(pods) - len(first)
    return named + (f" and {more} more" if more else "")
