"""A decision as metric samples of the operator's own /metrics page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from servingslo.api.status_base import gauge_values, told_gauges
from servingslo.api.v1alpha1 import ServingSLOStatus
from servingslo.api.v1alpha1.status import predicted_count
from servingslo.estimation.gateway.ledger import RequestLedger
from servingslo.estimation.requests.served_models import ServedModels
from servingslo.explain.conditions.cause import held_at_zero
from servingslo.explain.conditions.condition import ConditionStatus
from servingslo.explain.conditions.derived import ready_verdict
from servingslo.policy.decision import Decision
from servingslo.policy.replicas.ownership import NOT_CARRIED_OUT
from servingslo.units import ratio_from_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """One gauge sample. labels: in addition to namespace and name, which every sample has."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeFamily:
    """A gauge that decisions fill. labels: in addition to namespace and name."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


_OBJECTIVE = ("metric", "percentile")
NOT_READY = "servingslo_not_ready"
DESIRED = "servingslo_desired_replicas"
# Numbers of the status that are gauges too stand there (api/v1alpha1/status.py).
GAUGES = (
    *(
        GaugeFamily(name=name, help=text, labels=labels)
        for name, text, labels in told_gauges(ServingSLOStatus)
    ),
    GaugeFamily(name="servingslo_replicas_current", help="Replicas the decision started from."),
    GaugeFamily(
        name=DESIRED,
        help="Replicas to set now, by the operator or another autoscaler.",
    ),
    GaugeFamily(
        name="servingslo_replicas_recommended", help="Replicas wanted, whether or not they are set."
    ),
    GaugeFamily(name="servingslo_replicas_pending", help="Replicas ordered and not ready."),
    GaugeFamily(
        name="servingslo_replicas_needed",
        help="Replicas that one constraint alone asks for.",
        labels=("constraint",),
    ),
    GaugeFamily(
        name="servingslo_binding_constraint",
        help="1 for the constraint that asks for the most replicas.",
        labels=("constraint",),
    ),
    GaugeFamily(
        name="servingslo_limited_by",
        help="1 while a guard keeps the planner from the required count.",
        labels=("reason",),
    ),
    GaugeFamily(
        name=NOT_READY,
        help="1 while nothing can be decided for the resource.",
        labels=("reason",),
    ),
    GaugeFamily(
        name="servingslo_requests_per_second",
        help="Requests by outcome: offered = admitted + degraded + refused + queued; offered "
        "include retried, admitted failed and aborted.",
        labels=("outcome",),
    ),
    GaugeFamily(
        name="servingslo_refusals_seen",
        help="1 if gateway or engines count refused requests, 0 if neither does.",
    ),
    GaugeFamily(
        name="servingslo_class_requests_per_second",
        help="Requests of a class at the gateway by outcome: offered = admitted + refused.",
        labels=("class", "outcome"),
    ),
    GaugeFamily(name="servingslo_backlog_requests", help="Requests to be drained."),
    GaugeFamily(name="servingslo_cold_start_seconds", help="Cold start in the plan."),
    GaugeFamily(
        name="servingslo_cost_per_hour",
        help="Cost of the decided replicas per hour, if a price is stated.",
        labels=("currency",),
    ),
    GaugeFamily(
        name="servingslo_kv_usage_ratio", help="Predicted use of the KV cache at that count."
    ),
    GaugeFamily(
        name="servingslo_objective_seconds", help="Threshold of an objective.", labels=_OBJECTIVE
    ),
    GaugeFamily(
        name="servingslo_objective_target_ratio",
        help="Share of requests that the objective wants within its threshold.",
        labels=_OBJECTIVE,
    ),
    GaugeFamily(
        name="servingslo_within_objective_greatest_ratio",
        help="Greatest share of requests within the threshold.",
        labels=_OBJECTIVE,
    ),
    GaugeFamily(
        name="servingslo_adapter_slots", help="Different adapters that one engine's batch may hold."
    ),
    GaugeFamily(name="servingslo_adapters_in_flight", help="Different adapters with requests."),
    GaugeFamily(
        name="servingslo_adapters_waiting",
        help="Adapters that engines name beyond their slots, summed over engines.",
    ),
    GaugeFamily(name="servingslo_model_trusted", help="1 while the latency model decides."),
    GaugeFamily(
        name="servingslo_model_relative_error_ratio",
        help="Largest deviation of observed from predicted percentiles of the objectives.",
    ),
    GaugeFamily(name="servingslo_metrics_fresh", help="1 while the metrics in use are fresh."),
    GaugeFamily(name="servingslo_metrics_age_seconds", help="Age of the oldest sample in use."),
    GaugeFamily(
        name="servingslo_admission_bound",
        help="1 for the reason of condition AdmissionBound, if a bound is to be written.",
        labels=("reason",),
    ),
    GaugeFamily(
        name="servingslo_degradation",
        help="1 for the reason of condition FallbackUsable, if a fallback is named.",
        labels=("reason",),
    ),
)


def metric_samples(decision: Decision) -> tuple[MetricSample, ...]:
    """Samples of the GAUGES families; an unknown value has no sample."""
    found = (*_values(decision), *gauge_values(ServingSLOStatus, decision))
    return tuple(
        MetricSample(name=name, value=float(value), labels=labels)
        for name, labels, value in found
        if value is not None
    )


def desired_replicas(decision: Decision) -> int | None:
    """The count to be set now, by any client; None if no client is to set one.

    A client that follows this gauge acts. So there is no value while acting is switched off, or if
    the count would rest on metrics that are not fresh and another client sets it.
    """
    given = decision.handed_over
    if given is not None:
        return given.replicas
    return None if decision.limited_by in NOT_CARRIED_OUT else decision.replicas_after


_Value = tuple[str, dict[str, str], float | None]


def _values(decision: Decision) -> Iterator[_Value]:
    none: dict[str, str] = {}
    demand, model = decision.demand, decision.model
    yield "servingslo_replicas_current", none, decision.replicas_before
    yield DESIRED, none, desired_replicas(decision)
    yield "servingslo_replicas_recommended", none, decision.recommended_replicas
    yield "servingslo_replicas_pending", none, decision.replicas.pending
    for need in decision.needs:
        yield "servingslo_replicas_needed", {"constraint": need.constraint.value}, need.replicas
    if decision.binding is not None:
        yield "servingslo_binding_constraint", {"constraint": decision.binding.value}, 1
    if decision.limited_by is not None:
        yield "servingslo_limited_by", {"reason": decision.limited_by.value}, 1
    ready = ready_verdict(decision)
    if ready.status is ConditionStatus.FALSE:
        yield NOT_READY, {"reason": ready.reason.value}, 1
    yield from _ledger_values(demand.ledger)
    yield "servingslo_backlog_requests", none, demand.backlog_requests
    if decision.cold_start is not None:
        yield "servingslo_cold_start_seconds", none, decision.cold_start.seconds
    if decision.cost is not None:
        labels = {"currency": decision.cost.currency}
        yield "servingslo_cost_per_hour", labels, decision.cost.per_hour
    yield from _predicted_values(decision)
    yield from _objective_values(decision)
    yield from _adapter_values(decision.models)
    yield "servingslo_model_trusted", none, model.trusted
    yield "servingslo_model_relative_error_ratio", none, model.relative_error
    fresh = None if held_at_zero(decision) else decision.metrics.value == "MetricsFresh"
    yield "servingslo_metrics_fresh", none, fresh
    yield "servingslo_metrics_age_seconds", none, decision.metrics_age_seconds
    bound = decision.gateway_limit
    if bound is not None:
        yield "servingslo_admission_bound", {"reason": bound.reason.value}, 1
    elif decision.lanes is not None and decision.lanes.written:
        yield "servingslo_admission_bound", {"reason": decision.lanes.reason.value}, 1
    yield from _class_values(decision)
    if decision.degradation is not None:
        yield "servingslo_degradation", {"reason": decision.degradation.reason.value}, 1


def _adapter_values(models: ServedModels | None) -> Iterator[_Value]:
    if models is not None and models.slots is not None:
        yield "servingslo_adapter_slots", {}, models.slots
        yield "servingslo_adapters_in_flight", {}, models.adapters_in_flight
        yield "servingslo_adapters_waiting", {}, models.adapters_waiting


def _class_values(decision: Decision) -> Iterator[_Value]:
    for one in decision.classes:
        for outcome, rate in (
            ("offered", one.offered_per_second),
            ("admitted", one.admitted_per_second),
            ("refused", one.refused_per_second),
        ):
            labels = {"class": one.name, "outcome": outcome}
            yield "servingslo_class_requests_per_second", labels, rate


def _ledger_values(ledger: RequestLedger | None) -> Iterator[_Value]:
    if ledger is None:
        return
    yield "servingslo_refusals_seen", {}, ledger.refused_per_second is not None
    for outcome, rate in (
        ("offered", ledger.offered_per_second),
        ("admitted", ledger.admitted_per_second),
        ("degraded", ledger.degraded_per_second),
        ("refused", ledger.refused_per_second),
        ("queued", ledger.queueing_per_second),
        ("retried", ledger.retried_per_second),
        ("failed", ledger.failed_per_second),
        ("aborted", ledger.aborted_per_second),
    ):
        yield "servingslo_requests_per_second", {"outcome": outcome}, rate


def _predicted_values(decision: Decision) -> Iterator[_Value]:
    if (count := predicted_count(decision)) is not None:
        yield "servingslo_kv_usage_ratio", {}, count.kv_usage_ratio


def _objective_values(decision: Decision) -> Iterator[_Value]:
    for objective in decision.objectives:
        labels = {"metric": objective.metric, "percentile": f"{objective.percentile:g}"}
        yield "servingslo_objective_seconds", labels, objective.threshold_seconds
        yield "servingslo_objective_target_ratio", labels, ratio_from_percent(objective.percentile)
        yield "servingslo_within_objective_greatest_ratio", labels, objective.share_high_ratio
