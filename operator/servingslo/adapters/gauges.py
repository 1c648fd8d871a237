"""A decision as metric samples of the operator's own /metrics page."""

from collections.abc import Callable, Iterator
from typing import Any

from servingslo.api.status_base import (
    GaugeRow,
    GaugeValue,
    MetricSample,
    gauge_values,
    told_gauges,
    value_of,
)
from servingslo.api.v1alpha1 import ServingSLOStatus
from servingslo.api.v1alpha1.status import predicted_count
from servingslo.explain.conditions.cause import nothing_to_scrape
from servingslo.explain.conditions.condition import ConditionStatus
from servingslo.explain.conditions.derived import ready_verdict
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import ObjectiveReport
from servingslo.policy.replicas.ownership import NOT_CARRIED_OUT
from servingslo.reasons import Reason
from servingslo.units import ratio_from_percent

NOT_READY = "servingslo_not_ready"
DESIRED = "servingslo_desired_replicas"
# Path of an attribute of a decision, or a function of it.
_Source = str | Callable[[Decision], object]
# Outcome of requests, and the field of their rate in a ledger.
_OUTCOMES = {
    **{name: f"{name}_per_second" for name in ("offered", "admitted", "degraded", "refused")},
    "queued": "queueing_per_second",
    **{name: f"{name}_per_second" for name in ("retried", "failed", "aborted")},
}


def desired_replicas(decision: Decision) -> int | None:
    """The count to be set now, by any client; None if no client is to set one.

    A client that follows this gauge acts. So there is no value while acting is switched off, or if
    the count would rest on metrics that are not fresh and another client sets it.
    """
    given = decision.handed_over
    if given is not None:
        return given.replicas
    return None if decision.limited_by in NOT_CARRIED_OUT else decision.replicas_after


def _number(name: str, text: str, source: _Source) -> GaugeRow:
    """A gauge with one number for each decision."""
    return GaugeRow(name=name, help=text, values=lambda one: (({}, value_of(one, source)),))


def _word(name: str, text: str, label: str, source: _Source) -> GaugeRow:
    """A gauge that is 1 for one value of its label, and absent if there is none."""

    def values(decision: Decision) -> Iterator[GaugeValue]:
        if (word := value_of(decision, source)) is not None:
            yield {label: str(word)}, 1

    return GaugeRow(name=name, help=text, labels=(label,), values=values)


def _by_objective(name: str, text: str, value: Callable[[ObjectiveReport], Any]) -> GaugeRow:
    def values(decision: Decision) -> Iterator[GaugeValue]:
        for one in decision.objectives:
            yield {"metric": one.metric, "percentile": f"{one.percentile:g}"}, value(one)

    return GaugeRow(name=name, help=text, labels=("metric", "percentile"), values=values)


def _rates(decision: Decision) -> Iterator[GaugeValue]:
    for outcome, rate in _OUTCOMES.items():
        yield {"outcome": outcome}, value_of(decision, f"demand.ledger.{rate}")


def _cost(decision: Decision) -> Iterator[GaugeValue]:
    if decision.cost is not None:
        yield {"currency": decision.cost.currency}, decision.cost.per_hour


def _not_ready(decision: Decision) -> Reason | None:
    ready = ready_verdict(decision)
    return ready.reason if ready.status is ConditionStatus.FALSE else None


def _refusals_seen(decision: Decision) -> bool | None:
    ledger = decision.demand.ledger
    return None if ledger is None else ledger.refused_per_second is not None


def _kv_usage(decision: Decision) -> float | None:
    count = predicted_count(decision)
    return None if count is None else count.kv_usage_ratio


def _adapters(field: str) -> Callable[[Decision], object]:
    """A number of the served models; None if the engines hold no adapters."""
    slots = "models.slots"
    return lambda one: None if value_of(one, slots) is None else getattr(one.models, field)


def _fresh(decision: Decision) -> bool | None:
    return None if nothing_to_scrape(decision) else decision.metrics is Reason.METRICS_FRESH


# Numbers of the status that are gauges too stand there (api/v1alpha1/status.py).
_ROWS = (
    _number(
        "servingslo_replicas_current", "Replicas the decision started from.", "replicas_before"
    ),
    _number(
        DESIRED, "Replicas to set now, by the operator or another autoscaler.", desired_replicas
    ),
    _number(
        "servingslo_replicas_recommended",
        "Replicas wanted, whether or not they are set.",
        "recommended_replicas",
    ),
    _number("servingslo_replicas_pending", "Replicas ordered and not ready.", "replicas.pending"),
    GaugeRow(
        name="servingslo_replicas_needed",
        help="Replicas that one constraint alone asks for.",
        labels=("constraint",),
        values=lambda one: (({"constraint": n.constraint.value}, n.replicas) for n in one.needs),
    ),
    _word(
        "servingslo_binding_constraint",
        "1 for the constraint that asks for the most replicas.",
        "constraint",
        "binding",
    ),
    _word(
        "servingslo_limited_by",
        "1 while a guard keeps the planner from the required count.",
        "reason",
        "limited_by",
    ),
    _word(NOT_READY, "1 while nothing can be decided for the resource.", "reason", _not_ready),
    GaugeRow(
        name="servingslo_requests_per_second",
        help="Requests by outcome: offered = admitted + degraded + refused + queued; offered "
        "include retried, admitted failed and aborted.",
        labels=("outcome",),
        values=_rates,
    ),
    _number(
        "servingslo_refusals_seen",
        "1 if gateway or engines count refused requests, 0 if neither does.",
        _refusals_seen,
    ),
    _number("servingslo_backlog_requests", "Requests to be drained.", "demand.backlog_requests"),
    _number("servingslo_cold_start_seconds", "Cold start in the plan.", "cold_start.seconds"),
    GaugeRow(
        name="servingslo_cost_per_hour",
        help="Cost of the decided replicas per hour, if a price is stated.",
        labels=("currency",),
        values=_cost,
    ),
    _number("servingslo_kv_usage_ratio", "Predicted use of the KV cache at that count.", _kv_usage),
    _by_objective(
        "servingslo_objective_seconds",
        "Threshold of an objective.",
        lambda one: one.threshold_seconds,
    ),
    _by_objective(
        "servingslo_objective_target_ratio",
        "Share of requests that the objective wants within its threshold.",
        lambda one: ratio_from_percent(one.percentile),
    ),
    _by_objective(
        "servingslo_within_objective_greatest_ratio",
        "Greatest share of requests within the threshold.",
        lambda one: one.share_high_ratio,
    ),
    _number(
        "servingslo_adapter_slots",
        "Different adapters that one engine's batch may hold.",
        "models.slots",
    ),
    _number(
        "servingslo_adapters_in_flight",
        "Different adapters with requests.",
        _adapters("adapters_in_flight"),
    ),
    _number(
        "servingslo_adapters_waiting",
        "Adapters that engines name beyond their slots, summed over engines.",
        _adapters("adapters_waiting"),
    ),
    _number("servingslo_model_trusted", "1 while the latency model decides.", "model.trusted"),
    _number(
        "servingslo_model_relative_error_ratio",
        "Largest deviation of observed from predicted percentiles of the objectives.",
        "model.relative_error",
    ),
    _number("servingslo_metrics_fresh", "1 while the metrics in use are fresh.", _fresh),
    _number(
        "servingslo_metrics_age_seconds", "Age of the oldest sample in use.", "metrics_age_seconds"
    ),
    _word(
        "servingslo_admission_bound",
        "1 for the reason of condition AdmissionBound, if a bound is to be written.",
        "reason",
        "bound.reason",
    ),
)
GAUGES = (*told_gauges(ServingSLOStatus), *(row.family for row in _ROWS))


def metric_samples(decision: Decision) -> tuple[MetricSample, ...]:
    """Samples of the GAUGES families; an unknown value has no sample."""
    own = (sample for row in _ROWS for sample in row.samples(decision))
    return (*own, *gauge_values(ServingSLOStatus, decision))
