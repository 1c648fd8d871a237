"""The status of a ServingSLO from a decision, and when it is worth a write.

Numbers are rounded. Values that change by themselves every tick (rates, queues, predictions) are
written only together with an important change, or after they drifted for a while. A stable world
writes nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from servingslo.adapters.kubernetes.api.timestamps import (
    seconds_from_timestamp,
    timestamp_from_seconds,
)
from servingslo.api.v1alpha1 import ServingSLOStatus
from servingslo.api.v1alpha1.status import (
    MAX_LINE_LENGTH,
    AdmissionStatus,
    BatchingStatus,
    BatchLimits,
    ClassStatus,
    CostStatus,
    DegradationStatus,
    ErrorBudgetStatus,
    GpusStatus,
    ModelStatus,
    ObjectiveStatus,
    ObservedStatus,
    PredictedStatus,
    ReplicaStatus,
)
from servingslo.controller.reporting.latency_status import (
    availability_status,
    latency_status,
    reserve_status,
)
from servingslo.controller.reporting.rounding import rounded
from servingslo.estimation.pods.gpus import GpuUse
from servingslo.explain.conditions.condition import Condition, ConditionStatus, ConditionType
from servingslo.models.burn_rates import FAST_BURN, SLOW_BURN
from servingslo.packing import packed
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import BudgetReport, CostReport, ObjectiveReport
from servingslo.policy.knobs.decisions import BatchingDecision, LimitsPlan
from servingslo.policy.knobs.lanes.decision import ClassReport
from servingslo.policy.replicas.guards import ADVICE_ONLY
from servingslo.reasons import Reason

# Fields that change with the noise of measurements.
_NOISY = frozenset(
    {
        "observed",
        "predicted",
        "model",
        "gpus",
        "admission",
        "classes",
        "degradation",
        "cost",
        "errorBudget",
        "reserve",
        "latency",
        "availability",
        "summary",
    }
)
# A measurement has drifted if it differs from the status by more than this, relatively.
_DRIFT_RATIO = 0.2
# Differences of requests and ratios below this do not matter.
_DRIFT_FLOOR = 0.05
_DRIFT_SECONDS = 60.0
# The same within each pool; its reason and its counts are no noise.
_NOISY_OF_POOL = frozenset({"observed", "utilization", "coldStartSeconds", "model", "gpus", "cost"})
# Of a resource with several pools alone; a status of a single target has none.
_OF_POOLS = ("pools", "poolsSummary")
_LONGEST_MESSAGE = 1024
_DECISION_LINES = 3
_DECIDED_FIELDS = (
    "observedGeneration",
    "replicas",
    "bindingConstraint",
    "observed",
    "predicted",
    "model",
    "gpus",
    "batching",
    "admission",
    "classes",
    "degradation",
    "cost",
    "errorBudget",
    "reserve",
    "latency",
    "availability",
)

Json = Mapping[str, Any]


def status_fields(
    decision: Decision, *, generation: int, last_batch_change_seconds: float | None
) -> dict[str, Any]:
    """The fields of a status that follow from a decision alone, as JSON; unknown ones are None."""
    status = ServingSLOStatus(
        observed_generation=generation,
        replicas=ReplicaStatus(
            current=decision.replicas.current,
            ready=decision.replicas.ready,
            desired=_desired(decision),
        ),
        binding_constraint=decision.binding,
        observed=_observed(decision),
        predicted=_predicted(decision),
        model=_model(decision),
        gpus=None if decision.gpus is None else _gpus(decision.gpus),
        batching=_batching(decision.batching, last_batch_change_seconds),
        admission=_admission(decision),
        classes=tuple(map(_class, decision.classes)) or None,
        degradation=_degradation(decision),
        cost=None if decision.cost is None else _cost(decision.cost),
        error_budget=None if decision.error_budget is None else _budget(decision.error_budget),
        reserve=reserve_status(decision.reserve),
        latency=latency_status(decision.latency),
        availability=availability_status(decision.availability),
    )
    fields = status.model_dump(by_alias=True, mode="json", exclude_none=True)
    # A field that is unknown now is removed, not left as it was.
    return {name: fields.get(name) or None for name in (*_DECIDED_FIELDS, *_OF_POOLS)}


def _class(one: ClassReport) -> ClassStatus:
    return ClassStatus(
        name=one.name,
        state=one.state.value,
        offered_per_second=rounded(one.offered_per_second),
        refused_per_second=rounded(one.refused_per_second),
        in_flight=rounded(one.in_flight),
        mean_seconds=rounded(one.mean_seconds),
        lane=one.after,
        error_budget_remaining=rounded(one.budget_remaining_ratio),
    )


def observed_field(decision: Decision) -> Json:
    """The field `observed` of a status, as JSON."""
    return _observed(decision).model_dump(by_alias=True, mode="json", exclude_none=True)


def conditions_field(conditions: Sequence[Condition]) -> list[Json]:
    """The conditions in the form of a status."""
    return [
        {
            "type": condition.type.value,
            "status": condition.status.value,
            "reason": condition.reason.value,
            "message": condition.message[:_LONGEST_MESSAGE],
            "lastTransitionTime": timestamp_from_seconds(condition.last_transition_seconds),
        }
        for condition in conditions
    ]


def conditions_of(status: Json, *, now_seconds: float) -> tuple[Condition, ...]:
    """The conditions in a status; those of unknown type or reason are left out."""
    spoken_of = {"observedGeneration": status.get("observedGeneration")}
    return tuple(
        condition
        for entry in status.get("conditions") or ()
        if (condition := _read_condition({**spoken_of, **entry}, now_seconds)) is not None
    )


def decision_record(document: Json, time: str) -> dict[str, Any]:
    """`status.lastDecision`: when a decision was made, and its document, packed.

    time: when it was decided; the document may be of a later tick with the same decision.
    """
    return {"time": time, "document": packed(document)}


def decision_lines(newest: str, before: Sequence[str]) -> list[str]:
    """The last decisions, newest first, at most three."""
    return [newest[:MAX_LINE_LENGTH], *before][:_DECISION_LINES]


def changed_fields(
    before: Json, after: Json, *, seconds_since_write: float | None
) -> dict[str, Any]:
    """The top-level fields to write; empty if nothing changed beyond noise.

    seconds_since_write: since this process wrote the status last; None if it never did.
    """
    differing = {key: after[key] for key in after if after[key] != before.get(key)}
    drifted = any(
        _drifted(before.get(key), after[key])
        for key in differing
        if key in _NOISY or key == "pools"
    )
    rested = seconds_since_write is None or seconds_since_write >= _DRIFT_SECONDS
    return differing if is_material(before, differing) or (drifted and rested) else {}


def is_material(before: Json, changed: Json) -> bool:
    """Whether more than measurements changed, so that a person may wait for it."""
    return any(
        _stable(key, changed[key]) != _stable(key, before.get(key))
        for key in changed
        if key not in _NOISY
    )


def _desired(decision: Decision) -> int | None:
    """The count that the target gets, or should get from another client; None while paused."""
    if decision.limited_by is Reason.PAUSED:
        return None
    advises = decision.limited_by in ADVICE_ONLY or decision.handed_over is not None
    return decision.recommended_replicas if advises else decision.replicas_after


def _observed(decision: Decision) -> ObservedStatus:
    demand = decision.demand
    return ObservedStatus(
        arrivals_per_second=rounded(demand.arrival_rate_per_second),
        forecast_per_second=rounded(demand.forecast_rate_per_second),
        objectives=tuple(map(_objective, decision.objectives)),
    )


def _objective(report: ObjectiveReport) -> ObjectiveStatus:
    low, high = rounded(report.share_low_ratio), rounded(report.share_high_ratio)
    return ObjectiveStatus(
        metric=report.metric,
        percentile=report.percentile,
        predicted_seconds=rounded(report.predicted_seconds),
        observed_seconds=rounded(report.observed_seconds),
        share_low=low,
        share_high=None if high == low else high,
    )


def _admission(decision: Decision) -> AdmissionStatus:
    limit = decision.gateway_limit
    return AdmissionStatus(
        admitted_per_second=rounded(decision.admission.admitted_rate_per_second),
        queue_limit=decision.admission.queue_limit,
        in_flight_limit=decision.admission.in_flight_limit,
        shed_fraction=rounded(decision.admission.shed_ratio),
        proxy_limit=None if limit is None else limit.after,
        proxies=None if limit is None else limit.proxies,
    )


def _degradation(decision: Decision) -> DegradationStatus | None:
    decided, ledger = decision.degradation, decision.demand.ledger
    if decided is None:
        return None
    return DegradationStatus(
        share=None if decided.unread else decided.after,
        degraded_per_second=None if ledger is None else rounded(ledger.degraded_per_second),
        reason=decided.reason,
    )


def _predicted(decision: Decision) -> PredictedStatus | None:
    """Predictions for the decided count in addition to the objectives; None if unknown."""
    for entry in decision.predicted_counts:
        if entry.replicas == decision.replicas_after:
            return PredictedStatus(utilization=rounded(entry.utilization_ratio))
    return None


def _model(decision: Decision) -> ModelStatus:
    return ModelStatus(
        fit_error=rounded(decision.model.fit_error),
        source=decision.model.source,
        runtime=decision.runtime.name,
    )


def _gpus(gpus: GpuUse) -> GpusStatus:
    return GpusStatus(
        utilization=rounded(gpus.utilization_ratio),
        law_utilization=rounded(gpus.law_ratio),
        power_watts=rounded(gpus.power_watts),
        joules_per_token=rounded(gpus.joules_per_token),
        missing=gpus.missing or None,
    )


def _limits(
    max_num_seqs: int | None, max_num_batched_tokens: int | None, plan: LimitsPlan | None
) -> BatchLimits | None:
    if max_num_seqs is None and max_num_batched_tokens is None:
        return None
    return BatchLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        replicas=None if plan is None else plan.replicas,
        in_flight_limit=None if plan is None else plan.in_flight_limit,
    )


def _cost(cost: CostReport) -> CostStatus:
    return CostStatus(
        currency=cost.currency,
        per_hour=rounded(cost.per_hour),
        per_million_tokens=rounded(cost.per_million_output_tokens),
        per_million_tokens_with_prompts=rounded(cost.per_million_tokens),
        saved_per_hour=rounded(cost.saved_per_hour),
    )


def _budget(budget: BudgetReport) -> ErrorBudgetStatus:
    rates = {burn.seconds: rounded(burn.rate) for burn in budget.burn_rates}
    return ErrorBudgetStatus(
        remaining=rounded(budget.remaining_ratio),
        remaining_at_most=rounded(budget.remaining_most_ratio),
        fast_burn=rates.get(FAST_BURN.long_seconds),
        slow_burn=rates.get(SLOW_BURN.long_seconds),
        covered=rounded(budget.covered_ratio),
    )


def _batching(batching: BatchingDecision, last_change_seconds: float | None) -> BatchingStatus:
    """The limits in force, and the recommended ones with their plan if they differ."""
    current = _limits(batching.current_max_num_seqs, batching.current_max_num_batched_tokens, None)
    recommended = _limits(
        batching.recommended_max_num_seqs,
        batching.recommended_max_num_batched_tokens,
        None,
    )
    if recommended == current:
        recommended = None
    elif recommended is not None:
        recommended = _limits(
            batching.recommended_max_num_seqs,
            batching.recommended_max_num_batched_tokens,
            batching.better or batching.today,
        )
    return BatchingStatus(
        current=current,
        recommended=recommended,
        last_change=None
        if last_change_seconds is None
        else timestamp_from_seconds(last_change_seconds),
    )


def _read_condition(entry: Json, now_seconds: float) -> Condition | None:
    since = seconds_from_timestamp(entry.get("lastTransitionTime"))
    try:
        return Condition(
            type=ConditionType(entry.get("type", "")),
            status=ConditionStatus(entry.get("status", "")),
            reason=Reason(entry.get("reason", "")),
            message=str(entry.get("message", "")),
            observed_generation=int(entry.get("observedGeneration") or 0),
            last_transition_seconds=now_seconds if since is None else since,
        )
    except ValueError:
        return None


def _stable(key: str, value: Any) -> Any:
    """The parts of a field that count as a change: messages and counts of plans jitter."""
    if key == "batching" and value:
        return {name: _without_plan(entry) for name, entry in value.items()}
    if key == "pools" and value:
        return [
            {
                name: _stable(name, entry)
                for name, entry in pool.items()
                if name not in _NOISY_OF_POOL
            }
            for pool in value
        ]
    if key == "lastDecision" and value:
        return {name: entry for name, entry in value.items() if name != "document"}
    if key != "conditions" or not value:
        return value
    return [
        entry if _names_pods(entry) else {name: entry[name] for name in entry if name != "message"}
        for entry in value
    ]


def _names_pods(entry: Json) -> bool:
    """Whether the message of a condition names pods that a person has to check."""
    failing = entry.get("reason") == Reason.PODS_FAILING
    return entry.get("type") == ConditionType.READY and (failing or entry.get("status") == "True")


def _without_plan(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    return {k: v for k, v in entry.items() if k not in {"replicas", "inFlightLimit"}}


def _drifted(before: Any, after: Any) -> bool:
    """Whether a number changed beyond noise, or a value appeared or disappeared."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return any(_drifted(before.get(key), after.get(key)) for key in {*before, *after})
    if isinstance(before, list) and isinstance(after, list):
        return len(before) != len(after) or any(map(_drifted, before, after))
    if isinstance(before, str) and isinstance(after, str):
        return False  # times
    if _is_number(before) and _is_number(after):
        return not math.isclose(before, after, rel_tol=_DRIFT_RATIO, abs_tol=_DRIFT_FLOOR)
    return bool(before != after)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
