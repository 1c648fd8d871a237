"""One log line for each decision, for people and programs, and when a line is due."""

from collections.abc import Iterator

from servingslo.estimation.gateway.ledger import RequestLedger
from servingslo.estimation.law.trust import OF_SPEC, LawSource
from servingslo.explain import features
from servingslo.explain.conditions.cause import blindness, dependent_verdict, failing_pods
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType
from servingslo.explain.conditions.derived import (
    limit_detail,
    suspect_pods,
    unreliable_pods,
    verdicts,
)
from servingslo.explain.format import (
    count,
    key_value_line,
    number,
    per_second,
    percentile,
    replica_change,
)
from servingslo.explain.parts.gpus import gpu_pairs
from servingslo.explain.parts.models import model_pairs
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import ConstraintNeed, ModelUse
from servingslo.policy.knobs.decisions import BatchingDecision
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
    return key_value_line(EVENT_NAME, _pairs(decision))


def further_lines(decision: Decision) -> Iterator[str]:
    """What features say in lines of their own."""
    whose = (("namespace", decision.namespace), ("name", decision.name))
    for event, pairs in features.knob_log_lines(decision.knobs):
        yield key_value_line(event, (*whose, *pairs))


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
    pairs = (
        ("namespace", decision.namespace),
        ("name", decision.name),
        ("pool", decision.pool),
        ("held_by", held_by(decision) or decision.reason),
        ("held_for", format_duration(round(held_seconds))),
        ("replicas", count(decision.replicas_after)),
        ("detail", told_by.message[:_LONGEST_DETAIL]),
    )
    return key_value_line("why", pairs)


def material_change(previous: Decision | None, current: Decision) -> bool:
    """Whether a decision deserves a line after the last logged one.

    It does if action, count, binding constraint or reason changed; if the report on batch limits or
    admission changed; if limits became known from another source or cannot be read; if the stated
    law came into use or went out of use; if GPUs began or ceased to refute the law; if a feature
    has news; or if the last line is ten minutes old. previous: the last logged decision, None if
    there was none.
    """
    if previous is None or _essence(previous) != _essence(current):
        return True
    then, now = ({**one.features, **one.knobs} for one in (previous, current))
    if features.is_news(then, now):
        return True
    return abs(current.time_seconds - previous.time_seconds) >= REPEAT_SECONDS


def _essence(decision: Decision) -> tuple[object, ...]:
    knobs = (decision.batching, decision.admission, decision.gateway_limit)
    reported = (*knobs, decision.handed_over)
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
        *(None if one is None else one.reason for one in reported),
    )


def _pairs(decision: Decision) -> Iterator[tuple[str, object]]:
    wanted, age = decision.recommended_replicas, decision.metrics_age_seconds
    yield "namespace", decision.namespace
    yield "name", decision.name
    yield "pool", decision.pool
    yield "action", decision.action
    yield "replicas", replica_change(decision)
    yield "recommended", None if wanted == decision.replicas_after else wanted
    yield "reason", decision.reason
    yield from _limit_pairs(decision)
    yield "binding", decision.binding
    yield "need", " ".join(map(_need, decision.needs))
    yield from _demand_pairs(decision)
    yield from model_pairs(decision.models)
    for objective in decision.objectives:
        key = f"{objective.metric}_{percentile(objective)}"
        yield f"predicted_{key}", _duration(objective.predicted_seconds)
        yield f"observed_{key}", _duration(objective.observed_seconds)
    yield from features.pairs(decision.features)
    yield from _law_pairs(decision.model)
    yield from gpu_pairs(decision.gpus, decision.model.reason)
    yield "runtime", decision.runtime.name
    yield "limits", decision.limits.sources
    yield "limits_unread", decision.limits.unread
    yield "metrics_missing", decision.metrics_missing
    if dependent_verdict(decision) is None:
        yield from _batching_pairs(decision.batching)
    yield "admitted", per_second(decision.admission.admitted_rate_per_second)
    yield "in_flight_limit", decision.admission.in_flight_limit
    if (bound := decision.gateway_limit) is not None:
        yield "proxy_limit", bound.after
        yield "limit", bound.reason
    yield from features.knob_pairs(decision.knobs)
    yield "failing_pods", failing_pods(decision)
    yield "unreliable_pods", unreliable_pods(decision)
    yield "suspect_pods", suspect_pods(decision)
    yield "age", None if age is None else format_duration(round(age))


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(seconds)


def _limit_pairs(decision: Decision) -> Iterator[tuple[str, object]]:
    """What limits the decision or prevents its execution, with the detail."""
    given, mode = decision.handed_over, _mode(decision)
    yield "actuation", None if given is None else given.actuation
    yield "mode", mode
    if not mode and decision.limited_by is not decision.reason:
        yield "limited_by", decision.limited_by
    blind = blindness(decision)
    seen = "" if blind is None else str(blind.inputs.get("detail") or "")
    yield "detail", (limit_detail(decision) or decision.detail or seen)[:_LONGEST_DETAIL]


def _mode(decision: Decision) -> str:
    """Whether the decision is only advice; '' if it is carried out."""
    return _MODES.get(decision.limited_by, "") if decision.limited_by is not None else ""


def _law_pairs(model: ModelUse) -> Iterator[tuple[str, str]]:
    """The source of a law that is not the running fit, and why a law is refused."""
    if model.trusted and model.source != LawSource.FIT:
        yield "law", model.source
    elif model.reason in {Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT, Reason.GPUS_DISAGREE}:
        yield "law", model.reason.value


def _batching_pairs(batching: BatchingDecision) -> Iterator[tuple[str, str]]:
    """Why the limits in force stay or change, and the better limits if there are any."""
    if batching.reason is Reason.BATCHING_OFF:
        return
    yield "batching", batching.reason.value
    for name, now, better in batching.changes:
        yield name, f"{count(now)}->{better}"


def _ledger_pairs(ledger: RequestLedger | None) -> Iterator[tuple[str, object]]:
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
        yield "offered", per_second(ledger.offered_per_second)
        yield "admitted_now", per_second(ledger.admitted_per_second)
    for name, rate in some.items():
        yield name, per_second(rate)


def _demand_pairs(decision: Decision) -> Iterator[tuple[str, object]]:
    demand = decision.demand
    yield "arrival", per_second(demand.arrival_rate_per_second)
    if demand.forecast_rate_per_second is not None:
        ahead = "" if demand.lead_seconds is None else f"@{number(demand.lead_seconds)}s"
        yield "forecast", f"{number(demand.forecast_rate_per_second)}/s{ahead}"
    yield from _ledger_pairs(demand.ledger)


def _need(need: ConstraintNeed) -> str:
    """'ttft:3'; 'ttft:>24' if no larger count was examined; 'ttft:infeasible' if none is enough."""
    told = f">{need.more_than}" if need.more_than else "infeasible"
    return f"{need.constraint.value}:{told if need.replicas is None else need.replicas}"
