"""What a decision reports: predictions next to observations, with finite numbers only."""

import math
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar, cast

from servingslo.estimation.engine_steps import long_known
from servingslo.estimation.law.trust import LawSource
from servingslo.estimation.requests.served_models import ServedModels
from servingslo.estimation.windows import families
from servingslo.models.cost import cost_per_megatoken
from servingslo.models.fleet.latency import Objective
from servingslo.models.fleet.objective_metrics import ROW_OF, ROWS
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import (
    ColdStartReport,
    CostReport,
    DecisionStep,
    DemandReport,
    LimitsUse,
    ModelUse,
    ObjectiveReport,
    PredictedCount,
    PredictedLatency,
)
from servingslo.policy.knobs.decisions import KnobDecision
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.proposal import Requirement
from servingslo.policy.replicas.sizing import Sized, carried_rate_per_second, infeasible_objectives

Report = TypeVar("Report")
# Models and adapters that a report names.
_MOST_NAMED = 8


def finite(value: float | None) -> float | None:
    """The value, or None if it is not a finite number: it is then unknown."""
    return value if value is not None and math.isfinite(value) else None


def finite_steps(steps: tuple[DecisionStep, ...]) -> tuple[DecisionStep, ...]:
    """The steps with finite numbers only."""
    return tuple(_finite_inputs(with_finite(step)) for step in steps)


def with_finite(report: Report) -> Report:
    """The same report, without the numbers of its own fields that are not finite."""
    one: Any = report
    unknown = [name for name in one.__slots__ if _is_infinite(getattr(one, name))]
    return cast("Report", replace(one, **dict.fromkeys(unknown))) if unknown else report


def _finite_inputs(step: DecisionStep) -> DecisionStep:
    if not any(map(_is_infinite, step.inputs.values())):
        return step
    inputs = {name: None if _is_infinite(one) else one for name, one in step.inputs.items()}
    return replace(step, inputs=inputs)


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def demand_report(context: TickContext) -> DemandReport:
    """Demand as measured and as planned for."""
    estimate, demand, workload = context.estimate, context.demand, context.estimate.workload
    load = None if demand is None else demand.scale_up_load
    report = DemandReport(
        arrival_rate_per_second=estimate.arrival_rate_per_second,
        forecast_rate_per_second=None if load is None else load.rate_per_second,
        planned_probability=None if demand is None else demand.probability,
        lead_seconds=context.lead_seconds,
        backlog_requests=estimate.backlog_requests,
        running_requests=estimate.running_requests,
        waiting_requests=estimate.waiting_requests,
        prompt_tokens_mean=estimate.prompt_tokens_mean,
        output_tokens_mean=estimate.output_tokens_mean,
        cached_ratio=estimate.cached_ratio,
        kv_usage_ratio=estimate.kv_usage_ratio,
        aborted_ratio=estimate.abort_ratio,
        scrape_dispersion=None if workload is None else workload.arrival_dispersion,
        ledger=estimate.ledger,
    )
    return with_finite(report)


def cost_report(
    context: TickContext, replicas: int | None, knobs: Iterable[KnobDecision]
) -> CostReport | None:
    """The cost of this count at the present demand; None without a price or a count."""
    price = context.targets.cost
    if price is None or replicas is None:
        return None
    per_hour = price.replica_hourly * replicas
    estimate = context.estimate
    rate, output = estimate.arrival_rate_per_second, estimate.output_tokens_mean
    generated = (rate or 0.0) * (output or 0.0)
    every = generated + (rate or 0.0) * (estimate.prompt_tokens_mean or 0.0)
    savings = [saving for knob in knobs if (saving := knob.saving) is not None]
    saved = sum(savings) if savings else None
    return CostReport(
        currency=price.currency,
        per_hour=per_hour,
        per_million_output_tokens=_per_million(per_hour, generated),
        per_million_tokens=_per_million(per_hour, every) if generated else None,
        saved_per_hour=None if saved is None else price.replica_hourly * saved,
    )


def _per_million(per_hour: float, tokens_per_second: float) -> float | None:
    return cost_per_megatoken(per_hour, tokens_per_second) if tokens_per_second > 0 else None


def objective_reports(
    context: TickContext, requirement: Requirement, replicas: int | None
) -> tuple[ObjectiveReport, ...]:
    """Each objective with its prediction at this count, without lost pods, and its observation."""
    sized = requirement.sized
    reports = []
    for objective in context.targets.objectives:
        predicted = None
        if sized is not None and replicas is not None and replicas > context.excluded:
            count, rate = replicas - context.excluded, sized.load.rate_per_second
            predicted = sized.case.seconds_of(objective.metric, objective.percentile, count, rate)
        reports.append(_objective_report(context, objective, predicted))
    return tuple(reports)


def cold_start_report(context: TickContext) -> ColdStartReport:
    """The cold start of the plan, stated or measured, and its parts."""
    measured = context.estimate.cold_start
    return ColdStartReport(
        seconds=context.cold_start_seconds,
        source=measured.source if context.targets.cold_start_seconds is None else "stated",
        sample_count=measured.sample_count,
        scheduling_seconds=finite(measured.scheduling_mean_seconds),
        image_seconds=finite(measured.image_mean_seconds),
        loading_seconds=finite(measured.loading_mean_seconds),
    )


def predicted_counts(
    context: TickContext, requirement: Requirement, replicas: int | None
) -> tuple[PredictedCount, ...]:
    """Predictions for one replica fewer, this count, and one more."""
    if requirement.sized is None or replicas is None:
        return ()
    case, rate = requirement.sized.case, requirement.sized.load.rate_per_second
    reports = []
    for count in range(max(replicas - 1, 1 + context.excluded), replicas + 2):
        fleet = case.fleet(count - context.excluded)
        saturation = case.model.saturation_rate_per_second * fleet.engines
        reports.append(
            PredictedCount(
                replicas=count,
                utilization_ratio=rate / saturation,
                kv_usage_ratio=case.frontier.reading(attrgetter("kv_usage_ratio"), rate, fleet),
                meets_objectives=_meets_all(context, requirement, count),
            )
        )
    return tuple(map(with_finite, reports))


# Metrics reported for every count, whatever the objectives.
_TOLD_METRICS = tuple(row.metric for row in ROWS if row.always_told)


def with_latencies(decision: Decision, sized: Sized | None) -> Decision:
    """The decision with the latencies and the greatest rate of each predicted count.

    Latencies of each objective, and of TTFT, TPOT and queue time at the largest percentile of all;
    none while no latency model is trusted. They are computed only for a report: a tick needs only
    whether a percentile is within its threshold, which costs less. sized: of the state that came
    with the decision.
    """
    if sized is None or not sized.case.objectives:
        return decision
    infeasible = infeasible_objectives(decision.needs)
    excluded = decision.replicas.excluded
    return replace(
        decision,
        predicted_counts=tuple(
            replace(
                count,
                latencies=_latencies(sized, count.replicas - excluded),
                greatest_rate_per_second=carried_rate_per_second(
                    sized.case, infeasible, count.replicas - excluded
                ),
            )
            for count in decision.predicted_counts
        ),
    )


def _latencies(sized: Sized, count: int) -> tuple[PredictedLatency, ...]:
    """The percentiles of one count, by metric."""
    case = sized.case
    asked = [(objective.metric, objective.percentile) for objective in case.objectives]
    largest = max(percentile for _, percentile in asked)
    metrics = {metric for metric, _ in asked}
    asked += [(m, largest) for m in _TOLD_METRICS if m in case.model.metrics - metrics]
    return tuple(
        PredictedLatency(
            metric=metric.value,
            percentile=percentile,
            seconds=finite(case.seconds_of(metric, percentile, count, sized.load.rate_per_second)),
        )
        for metric, percentile in sorted(asked)
    )


def limits_use(context: TickContext) -> LimitsUse:
    """Both limits with their sources."""
    in_force = context.estimate.in_force
    sequences, budget = in_force.max_num_seqs, in_force.max_num_batched_tokens
    return LimitsUse(
        max_num_seqs=None if sequences is None else sequences.value,
        max_num_seqs_source=None if sequences is None else sequences.source.value,
        max_num_batched_tokens=None if budget is None else budget.value,
        max_num_batched_tokens_source=None if budget is None else budget.source.value,
        unread=in_force.unread,
    )


def metrics_missing(context: TickContext) -> str:
    """Which series are missing: for some pods, or for all, if they are not expected to appear."""
    if context.signals.detail:
        return context.signals.detail
    histograms = [ROW_OF[one.metric].histogram for one in context.targets.objectives]
    known = long_known(context.state.estimator.engines)
    serving = context.signals.serving_pods
    broken = (m for pod in serving for e in pod.engines for m in families.not_numbers(e))
    told = dict.fromkeys(f"{name} (not a number)" for name in broken)
    return families.in_words([*families.exported_by_none(serving, histograms, known), *told])


def model_use(context: TickContext) -> ModelUse:
    """The law that was used, and how far it is trusted."""
    law = context.estimate.law
    return ModelUse(
        trusted=context.trusted,
        reason=context.model_reason,
        source=law.source if context.prepared is not None else LawSource.SATURATION,
        law=law.law,
        relative_error=_percentile_error(context),
        fit_error=finite(law.fit_error),
        sample_count=law.sample_count,
    )


def models_report(context: TickContext) -> ServedModels | None:
    """The models and adapters with the largest numbers."""
    models = context.estimate.models
    return models and replace(
        models,
        adapter_requests=models.adapter_requests[:_MOST_NAMED],
        token_shares=models.token_shares[:_MOST_NAMED],
    )


def _percentile_error(context: TickContext) -> float | None:
    """The largest |observed / predicted − 1| over the objectives, None before a comparison."""
    ratios = [context.estimate.calibration.get(one.metric) for one in context.targets.objectives]
    return max((abs(ratio - 1.0) for ratio in ratios if ratio is not None), default=None)


def _objective_report(
    context: TickContext, objective: Objective, predicted: float | None
) -> ObjectiveReport:
    observed = context.estimate.observed.get(objective.metric)
    share = context.estimate.observed_share(objective)
    low, high = share or (None, None)
    missing, unobserved = "", None
    if share is None:
        histogram = ROW_OF[objective.metric].histogram
        known = long_known(context.state.estimator.engines)
        missing = families.missing_observations(context.signals.serving_pods, histogram, known)
        arrive = (context.estimate.arrival_rate_per_second or 0.0) > 0.0
        unobserved = True if arrive and not missing else None
    percentile = objective.percentile
    report = ObjectiveReport(
        metric=objective.metric.value,
        percentile=percentile,
        threshold_seconds=objective.threshold_seconds,
        predicted_seconds=predicted,
        calibration_ratio=context.estimate.calibration.get(objective.metric),
        observed_seconds=None if observed is None else observed.quantile(percentile),
        least_seconds=None if observed is None else observed.least_quantile(percentile),
        share_low_ratio=low,
        share_high_ratio=high,
        missing=missing,
        unobserved=unobserved,
    )
    return with_finite(report)


def _meets_all(context: TickContext, requirement: Requirement, replicas: int) -> bool | None:
    """Whether this count meets every need, with tolerated failures and lost pods on top.

    False if an objective is infeasible. None while the latency model is not trusted and no need
    rules the count out: its latency is then not known.
    """
    holding = replicas - context.excluded - context.targets.replicas.tolerated_failures
    # Every need is a least count, so the needs already show which counts meet them.
    if any(need.replicas is None or need.replicas > holding for need in requirement.needs):
        return False
    return True if context.trusted else None
