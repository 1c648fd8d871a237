"""One log line for each decision, for people and programs, and when a line is due."""

from collections.abc import Iterator

from servingslo.estimation.gateway.ledger import RequestLedger
from servingslo.estimation.law.trust import OF_SPEC, LawSource
from servingslo.explain import features
from servingslo.explain.conditions.cause import blindness, dependent_verdict
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType
from servingslo.explain.conditions.derived import (
    limit_detail,
    suspect_pods,
    unreliable_pods,
    verdicts,
)
from servingslo.explain.conditions.failing_pods import failing_pods
from servingslo.explain.format import count, number, percentile, quoted, replica_change
from servingslo.explain.parts.degradation import degradation_pairs
from servingslo.explain.parts.gpus import gpu_pairs
from servingslo.explain.parts.models import model_pairs
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import ConstraintNeed, ModelUse
from servingslo.policy.knobs.decisions import AdmissionDecision, BatchingDecision, LimitDecision
from servingslo.policy.knobs.lanes.decision import LaneState
from servingslo.reasons import Action, Reason
from servingslo.units import format_duration

EVENT_NAME = "decided"
# An unchanged decision is repeated this often, so silence means that no decisions are made.
REPEAT_SECONDS = 600.0
# Most characters of a message from Prometheus or the API server; the condition has all of it.
_LONGEST_DETAIL = 300
_MODES = {Reason.RECOMMEND_ONLY: "Recommend", Reason.KILL_SWITCH: "KillSwitch"}


def log_line(decision: Decision) -> str:
    """The decision as key=value pairs, most important first; unknown values are left out."""
    return " ".join([EVENT_NAME, *(f"{key}={quoted(value)}" for key, value in _pairs(decision))])


def fails(decision: Decision) -> bool:
    """Whether the line is a warning: no decision is possible, or pods fail.

    During each start, no pod is ready or scraped yet; that is no warning.
    """
    ready = verdicts(decision)[ConditionType.READY]
    starts = ready.reason in {Reason.PENDING_PODS, Reason.WARMING_UP}
    return ready.status is ConditionStatus.FALSE and not starts


def held_by(decision: Decision) -> Reason | None:
    """What keeps this decision from acting, if it holds and a person should know."""
    if decision.action is not Action.HOLD:
        return None
    blind = blindness(decision)
    return decision.limited_by if blind is None else blind.reason


def why_line(decision: Decision, held_seconds: float) -> str:
    """One line on a long hold: its duration, its cause, and the sentence of the conditions."""
    told = verdicts(decision)
    ready = told[ConditionType.READY]
    not_ready = ready.status is ConditionStatus.FALSE
    told_by = ready if not_ready else told.get(ConditionType.SCALING_LIMITED, ready)
    pool = {"pool": decision.pool} if decision.pool else {}
    pairs = {
        "namespace": decision.namespace,
        "name": decision.name,
        **pool,
        "held_by": str(held_by(decision) or decision.reason),
        "held_for": format_duration(round(held_seconds)),
        "replicas": count(decision.replicas_after),
        "detail": told_by.message[:_LONGEST_DETAIL],
    }
    return " ".join(["why", *(f"{key}={quoted(value)}" for key, value in pairs.items())])


def material_change(previous: Decision | None, current: Decision) -> bool:
    """Whether a decision deserves a line after the last logged one.

    It does if action, count, binding constraint or reason changed; if the report on batch limits or
    admission changed; if limits became known from another source or cannot be read; if the stated
    law came into use or went out of use; if GPUs began or ceased to refute the law; if the state of
    a class changed, except that one which refused some is open for now; or if the last line is ten
    minutes old. previous: the last logged decision, None if there was none.
    """
    if previous is None or _essence(previous) != _essence(current):
        return True
    if _lane_changed(previous, current):
        return True
    return abs(current.time_seconds - previous.time_seconds) >= REPEAT_SECONDS


def _essence(decision: Decision) -> tuple[object, ...]:
    return (
        decision.action,
        decision.replicas_before,
        decision.replicas_after,
        decision.recommended_replicas,
        decision.binding,
        decision.reason,
        _mode(decision),
        decision.model.source in OF_SPEC,
        decision.model.reason is Reason.GPUS_DISAGREE,
        decision.limits.sources,
        decision.limits.unread,
        decision.runtime,
        failing_pods(decision),
        features.essence(decision.features),
        decision.batching.reason,
        decision.admission.reason,
        None if decision.gateway_limit is None else decision.gateway_limit.reason,
        None if decision.degradation is None else decision.degradation.reason,
        None if decision.handed_over is None else decision.handed_over.reason,
        None if decision.lanes is None else decision.lanes.reason,
    )


def _lane_changed(previous: Decision, current: Decision) -> bool:
    """A lane at its bound refuses some in one window and none in the next; that is no news."""
    before = {one.name: one.state for one in previous.classes}
    now = {one.name: one.state for one in current.classes}
    eased = (LaneState.FULL, LaneState.OPEN)
    return before.keys() != now.keys() or any(
        before[name] != state and (before[name], state) != eased for name, state in now.items()
    )


def _pairs(decision: Decision) -> Iterator[tuple[str, str]]:
    yield "namespace", decision.namespace
    yield "name", decision.name
    if decision.pool:
        yield "pool", decision.pool
    yield "action", decision.action.value
    yield "replicas", replica_change(decision)
    if decision.recommended_replicas not in {None, decision.replicas_after}:
        yield "recommended", str(decision.recommended_replicas)
    yield "reason", decision.reason.value
    yield from _limit_pairs(decision)
    if decision.binding is not None:
        yield "binding", decision.binding.value
    if decision.needs:
        yield "need", " ".join(map(_need, decision.needs))
    yield from _demand_pairs(decision)
    yield from model_pairs(decision.models)
    for objective in decision.objectives:
        key = f"{objective.metric}_{percentile(objective)}"
        if objective.predicted_seconds is not None:
            yield f"predicted_{key}", format_duration(objective.predicted_seconds)
        if objective.observed_seconds is not None:
            yield f"observed_{key}", format_duration(objective.observed_seconds)
    yield from features.pairs(decision.features)
    yield from _law_pairs(decision.model)
    yield from gpu_pairs(decision.gpus, decision.model.reason)
    yield from _limits_pairs(decision)
    if dependent_verdict(decision) is None:
        yield from _batching_pairs(decision.batching)
    yield from _admission_pairs(decision.admission)
    yield from _bound_pairs(decision.gateway_limit)
    yield from degradation_pairs(decision.degradation)
    yield from _pod_pairs(decision)
    if decision.metrics_age_seconds is not None:
        yield "age", format_duration(round(decision.metrics_age_seconds))


def _pod_pairs(decision: Decision) -> Iterator[tuple[str, str]]:
    """The pods that fail, are left out or are in doubt."""
    for key, pods in (
        ("failing_pods", failing_pods(decision)),
        ("unreliable_pods", unreliable_pods(decision)),
        ("suspect_pods", suspect_pods(decision)),
    ):
        if pods:
            yield key, pods


def _limit_pairs(decision: Decision) -> Iterator[tuple[str, str]]:
    """What limits the decision or prevents its execution, with the detail."""
    if decision.handed_over is not None:
        yield "actuation", decision.handed_over.actuation.value
    if mode := _mode(decision):
        yield "mode", mode
    elif decision.limited_by not in {None, decision.reason}:
        yield "limited_by", str(decision.limited_by)
    blind = blindness(decision)
    seen = "" if blind is None else str(blind.inputs.get("detail") or "")
    if detail := limit_detail(decision) or decision.detail or seen:
        yield "detail", detail[:_LONGEST_DETAIL]


def _mode(decision: Decision) -> str:
    """Whether the decision is only advice; '' if it is carried out."""
    return _MODES.get(decision.limited_by, "") if decision.limited_by is not None else ""


def _law_pairs(model: ModelUse) -> Iterator[tuple[str, str]]:
    """The source of a law that is not the running fit, and why a law is refused."""
    if model.trusted and model.source != LawSource.FIT:
        yield "law", model.source
    elif model.reason in {Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT, Reason.GPUS_DISAGREE}:
        yield "law", model.reason.value


def _limits_pairs(decision: Decision) -> Iterator[tuple[str, str]]:
    """The runtime of the engines, and the source of their batch limits.

    One word, or the source of the sequences before that of the token budget.
    """
    if decision.runtime.name is not None:
        yield "runtime", decision.runtime.name
    limits = decision.limits
    if limits.sources is not None:
        yield "limits", limits.sources
    if limits.unread:
        yield "limits_unread", limits.unread
    if decision.metrics_missing:
        yield "metrics_missing", decision.metrics_missing


def _batching_pairs(batching: BatchingDecision) -> Iterator[tuple[str, str]]:
    """Why the limits in force stay or change, and the better limits if there are any."""
    if batching.reason is Reason.BATCHING_OFF:
        return
    yield "batching", batching.reason.value
    for name, now, better in (
        ("max_num_seqs", batching.current_max_num_seqs, batching.recommended_max_num_seqs),
        (
            "max_num_batched_tokens",
            batching.current_max_num_batched_tokens,
            batching.recommended_max_num_batched_tokens,
        ),
    ):
        if better is not None and better != now:
            yield name, f"{count(now)}->{better}"


def _admission_pairs(admission: AdmissionDecision) -> Iterator[tuple[str, str]]:
    """The recommended bounds; nothing if none are requested."""
    if admission.admitted_rate_per_second is not None:
        yield "admitted", f"{number(admission.admitted_rate_per_second)}/s"
    if admission.in_flight_limit is not None:
        yield "in_flight_limit", str(admission.in_flight_limit)


def _bound_pairs(bound: LimitDecision | None) -> Iterator[tuple[str, str]]:
    """The bound of each proxy, and whether it is written and holds."""
    if bound is None:
        return
    if bound.after is not None:
        yield "proxy_limit", str(bound.after)
    yield "limit", bound.reason.value


def _ledger_pairs(ledger: RequestLedger | None) -> Iterator[tuple[str, str]]:
    """Rates of requests if some were refused or queued; 'unseen' if refusals are not measured."""
    if ledger is None:
        return
    if ledger.refused_per_second is None:
        yield "refused", "unseen"
        return
    told = {
        "degraded": ledger.degraded_per_second,
        "refused": ledger.refused_per_second,
        "queueing": ledger.queueing_per_second,
        "retried": ledger.retried_per_second,
        "failed": ledger.failed_per_second or 0.0,
        "aborted": ledger.aborted_per_second or 0.0,
    }
    some = {name: rate for name, rate in told.items() if number(rate) not in {"0", "-0"}}
    if some:
        yield "offered", f"{number(ledger.offered_per_second)}/s"
        yield "admitted_now", f"{number(ledger.admitted_per_second)}/s"
    for name, rate in some.items():
        yield name, f"{number(rate)}/s"


def _demand_pairs(decision: Decision) -> Iterator[tuple[str, str]]:
    demand = decision.demand
    if demand.arrival_rate_per_second is not None:
        yield "arrival", f"{number(demand.arrival_rate_per_second)}/s"
    if demand.forecast_rate_per_second is not None:
        ahead = "" if demand.lead_seconds is None else f"@{number(demand.lead_seconds)}s"
        yield "forecast", f"{number(demand.forecast_rate_per_second)}/s{ahead}"
    yield from _ledger_pairs(demand.ledger)


def _need(need: ConstraintNeed) -> str:
    """'ttft:3'; 'ttft:>24' if no larger count was examined; 'ttft:infeasible' if none is enough."""
    told = f">{need.more_than}" if need.more_than else "infeasible"
    return f"{need.constraint.value}:{told if need.replicas is None else need.replicas}"
